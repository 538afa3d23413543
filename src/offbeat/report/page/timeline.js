// A lane for each client: download, compute, upload, jobs in its queue, absences; server steps as marks above.

const LANE = 15, HEAD = 22, FOOT = 30, GUTTER = 46, END = 10;
const FATES = ["arrived", "lost", "still on its way at the end"];
const RAMP = [[71, 45, 123], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis

// The page's columns as one object a job, times in those of the run.
function unpack(line) {
  const unit = line.span / 1e6;
  const get = (name, i) => (line.jobs[name].length === 1 ? line.jobs[name][0] : line.jobs[name][i]);
  const lanes = [];
  let i = 0;
  for (const count of line.counts) {
    const jobs = [];
    let free = 0;
    for (let k = 0; k < count; k++, i++) {
      const sent = get("sent", i) * unit, started = sent + get("wait", i) * unit, finished = started + get("work", i) * unit;
      const job = { number: get("job", i), sent, started, finished, end: finished + get("back", i) * unit, task: get("task", i), version: get("version", i), staleness: get("staleness", i), fate: get("fate", i), reason: line.reasons[get("reason", i)] };
      job.turn = Math.min(started, Math.max(sent, free)); // until then the client was at earlier work
      free = Math.max(free, finished);
      jobs.push(job);
    }
    lanes.push(jobs);
  }
  const most = Math.max(1, ...lanes.flat().map((job) => job.staleness));
  return { ...line, lanes, most, steps: line.steps.map((t) => t * unit), away: line.away.map(([lane, a, b]) => [lane, a * unit, b * unit]) };
}

function timeline(host, bar, keys) {
  host.classList.add("plot");
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline of the clients. Left and right go from job to job, up and down from client to client, plus and minus zoom, 0 shows the whole run." });
  const slider = make("input", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "Part of the run that is shown" });
  const note = make("p", { class: "note" });
  host.append(canvas, slider);
  host.after(note);
  let line, from, to, by = data.tasks.length > 1 ? "task" : "activity", picked = null; // picked: {lane, job}
  const redraw = onPage(host, () => line && draw());
  const tool = (text, label, act) => { const button = make("button", { type: "button", class: "tool", "aria-label": label, title: label }, text); button.addEventListener("click", act); return button; };

  const select = make("select", { "aria-label": "Run" });
  data.timelines.forEach((each, index) => select.append(make("option", { value: index }, each.run)));
  select.addEventListener("change", () => open(Number(select.value)));
  const ways = [["activity", "activity"], ["staleness", "staleness"], ...(data.tasks.length > 1 ? [["task", "task"]] : [])];
  const colours = choice("Colour by", ways, by, (value) => { by = value; redraw(); legendOf(); });
  const colourBy = (value) => { by = value; colours.querySelectorAll("input").forEach((input) => { input.checked = input.value === value; }); };
  bar.append(select, colours,
    make("span", { class: "tools" }, tool("−", "Zoom out", () => zoom(2)), tool("+", "Zoom in", () => zoom(0.5)), tool("whole run", "Show the whole run", () => { [from, to] = [0, line.span]; redraw(); })));

  function open(index) {
    line = unpack(data.timelines[index]);
    // a stretch in which single jobs can be told from each other
    const busiest = Math.max(1, ...line.lanes.map((jobs) => jobs.length)) / (line.until || 1);
    [from, to] = [0, Math.min(line.span, Math.max(line.span / 50, 60 / busiest))];
    picked = null;
    if (by === "activity" && line.lanes.flat().every((job) => job.end - job.sent - (job.finished - job.started) < 1e-6 * line.span)) colourBy("staleness"); // they only ever compute
    note.textContent = line.note ? `Shown: ${line.note}.` : "";
    note.hidden = !line.note;
    legendOf();
    redraw();
  }

  function legendOf() {
    const item = (look, text, colour) => { const key = make("i", { class: look, "aria-hidden": "true" }, look === "cross" ? "✕" : ""); if (colour) key.style.background = colour; return make("li", {}, key, text); };
    const compute = by === "activity" ? [item("", "computing", "var(--compute)")]
      : by === "task" ? data.tasks.map((name, i) => item("", `computing ${name}`, colour(i)))
      : [item("ramp", `computing, staleness 0 to ${line.most.toLocaleString("en")} (logarithmic)`)];
    const some = (test) => line.lanes.some((jobs) => jobs.some(test));
    keys.replaceChildren(...compute,
      ...(some((j) => j.started - j.turn > 1e-6 * line.span) ? [item("half", "download", "var(--download)")] : []),
      ...(some((j) => j.end - j.finished > 1e-6 * line.span) ? [item("half", "upload, or held until asked for", "var(--upload)")] : []),
      ...(some((j) => j.turn - j.sent > 1e-6 * line.span) ? [item("strip", "a job waits in the queue", "var(--queue)")] : []),
      ...(some((j) => j.fate === 1) ? [item("cross", "lost")] : []),
      ...(line.away.length ? [item("away", "not there")] : []),
      item("strip", "server step (marks above the lanes)", "var(--ink)"));
  }

  const right = () => host.clientWidth - END;
  const px = (time) => GUTTER + ((time - from) / (to - from)) * (right() - GUTTER);
  const time = (x) => from + ((x - GUTTER) / (right() - GUTTER)) * (to - from);
  const tall = () => HEAD + line.lanes.length * LANE + FOOT;

  function draw() {
    const width = host.clientWidth, height = tall(), sharp = devicePixelRatio || 1;
    canvas.width = width * sharp; canvas.height = height * sharp; canvas.style.height = `${height}px`;
    const style = getComputedStyle(host), ink = (name) => style.getPropertyValue(`--${name}`);
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.font = `11px ${ink("sans")}`;
    pen.textBaseline = "middle";
    line.lanes.forEach((_, row) => {
      pen.fillStyle = ink("faint"); pen.fillRect(GUTTER, HEAD + row * LANE + 1, right() - GUTTER, LANE - 2);
      pen.fillStyle = ink("soft"); pen.textAlign = "right"; pen.fillText(line.clients[row], GUTTER - 8, HEAD + row * LANE + LANE / 2 + 0.5);
    });
    pen.textAlign = "left"; pen.fillText("client", 2, HEAD / 2);
    pen.save();
    pen.beginPath(); pen.rect(GUTTER, 0, right() - GUTTER, height); pen.clip();
    drawAway(pen, ink);
    drawBins(pen, ink);
    line.lanes.forEach((jobs, row) => jobs.forEach((job) => { if (job.end >= from && job.sent <= to) drawJob(pen, ink, job, HEAD + row * LANE); }));
    drawSteps(pen, ink);
    if (picked) drawPicked(pen, ink);
    pen.restore();
    pen.fillStyle = ink("soft"); pen.strokeStyle = ink("rule"); pen.textAlign = "center";
    const base = HEAD + line.lanes.length * LANE;
    for (const mark of linearMarks(from, to, Math.max(2, width / 120))) {
      pen.beginPath(); pen.moveTo(px(mark), base + 2); pen.lineTo(px(mark), base + 6); pen.stroke();
      pen.fillText(show(mark, "number"), Math.min(Math.max(px(mark), GUTTER + 6), right() - 12), base + 17);
    }
    const whole = to - from >= line.span * 0.999;
    slider.hidden = whole;
    slider.value = whole ? 0 : Math.round((1000 * from) / (line.span - (to - from)));
  }

  function drawJob(pen, ink, job, top) {
    const piece = (a, b, y, height, fill) => { if (b > a) { pen.fillStyle = fill; pen.fillRect(px(a), y, Math.max(0.6, px(b) - px(a) - (px(b) - px(a) > 3 ? 0.8 : 0)), height); } };
    pen.globalAlpha = job.fate === 1 ? 0.4 : 1;
    piece(job.sent, job.turn, top + LANE - 4, 2.5, ink("queue"));
    piece(job.turn, job.started, top + 5, 5, ink("download"));
    piece(job.started, job.finished, top + 2, LANE - 4, shade(ink, job));
    piece(job.finished, job.end, top + 5, 5, ink("upload"));
    pen.globalAlpha = 1;
    if (job.fate === 1) {
      pen.strokeStyle = ink("lost"); pen.lineWidth = 1.6;
      const [x, y] = [px(job.end), top + LANE / 2];
      pen.beginPath(); pen.moveTo(x - 3, y - 3); pen.lineTo(x + 3, y + 3); pen.moveTo(x + 3, y - 3); pen.lineTo(x - 3, y + 3); pen.stroke();
    }
  }

  function shade(ink, job) {
    if (by === "activity") return ink("compute");
    if (by === "task") return ink(`c${job.task % 7}`);
    if (job.staleness < 0) return ink("away");
    const at = (Math.log1p(job.staleness) / Math.log1p(line.most)) * (RAMP.length - 1);
    const [a, b] = [RAMP[Math.floor(at)], RAMP[Math.min(RAMP.length - 1, Math.floor(at) + 1)]];
    return `rgb(${a.map((v, k) => Math.round(v + (b[k] - v) * (at - Math.floor(at)))).join(" ")})`;
  }

  function drawBins(pen, ink) {
    line.bins.forEach((shares, row) => shares.forEach((share, k) => {
      const [a, b] = [(k * line.span) / shares.length, ((k + 1) * line.span) / shares.length];
      if (b <= line.until || b < from || a > to || !share) return;
      pen.globalAlpha = 0.15 + 0.006 * share; pen.fillStyle = ink("compute");
      const left = px(Math.max(a, line.until));
      pen.fillRect(left, HEAD + row * LANE + 3, px(b) - left, LANE - 6);
    }));
    pen.globalAlpha = 1;
  }

  function drawAway(pen, ink) {
    pen.strokeStyle = ink("away"); pen.lineWidth = 1.5;
    for (const [row, a, b] of line.away) {
      if (b < from || a > to) continue;
      const [left, end, top] = [px(a), px(b), HEAD + row * LANE + 1];
      pen.save(); pen.beginPath(); pen.rect(left, top, end - left, LANE - 2); pen.clip(); pen.beginPath();
      for (let x = left - LANE; x < end; x += 5) { pen.moveTo(x, top + LANE); pen.lineTo(x + LANE, top); }
      pen.stroke(); pen.restore();
    }
  }

  function drawSteps(pen, ink) {
    const seen = line.steps.filter((t) => t >= from && t <= to);
    const sparse = seen.length * 14 < right() - GUTTER;
    pen.fillStyle = ink("ink");
    for (const t of seen) {
      pen.globalAlpha = sparse ? 0.8 : 0.45; pen.fillRect(px(t) - 0.6, HEAD - 11, 1.2, 8);
      if (sparse) { pen.globalAlpha = 0.12; pen.fillRect(px(t) - 0.5, HEAD - 3, 1, line.lanes.length * LANE + 3); }
    }
    pen.globalAlpha = 1;
  }

  function drawPicked(pen, ink) {
    const { lane, job } = picked;
    pen.strokeStyle = ink("ink"); pen.lineWidth = 1.5;
    pen.strokeRect(px(job.sent) - 1, HEAD + lane * LANE + 0.5, Math.max(4, px(job.end) - px(job.sent)) + 2, LANE - 1);
  }

  function describe(x, y, job, lane) {
    const n = (value) => show(value, "number");
    const rows = [
      ...(data.tasks.length > 1 ? [{ name: "task", value: data.tasks[job.task] }] : []),
      { name: "sent", value: n(job.sent) }, { name: "started", value: n(job.started) }, { name: "finished", value: n(job.finished) },
      job.fate === 0 ? { name: "arrived", value: n(job.end) } : { name: FATES[job.fate], value: job.fate === 1 ? `${n(job.end)}, ${job.reason}` : "" },
      ...(job.version >= 0 ? [{ name: "version", value: job.version.toLocaleString("en") }] : []),
      ...(job.staleness >= 0 ? [{ name: "staleness", value: job.staleness.toLocaleString("en") }] : []),
    ];
    showTip(x, y, `client ${line.clients[lane]}, job ${job.number}`, rows);
  }

  // The job at this time: the one at work, else the newest one on its way.
  function jobAt(lane, t) {
    const slack = ((to - from) / (right() - GUTTER)) * 2;
    const there = (line.lanes[lane] ?? []).filter((job) => job.sent - slack <= t && t <= job.end + slack);
    return there.find((job) => job.started <= t && t <= job.finished) ?? there[there.length - 1];
  }

  function pick(lane, job, x, y) {
    picked = job ? { lane, job } : null;
    redraw();
    if (!job) return hideTip();
    const box = canvas.getBoundingClientRect();
    describe(x ?? box.left + Math.max(GUTTER, Math.min(right(), px(job.started))), y ?? box.top + HEAD + lane * LANE, job, lane);
  }

  function zoom(factor, around = picked ? picked.job.started : (from + to) / 2) {
    const width = Math.min(line.span, Math.max(line.span / 2000, (to - from) * factor));
    move(around - ((around - from) / (to - from)) * width, width);
  }

  function move(start, width = to - from) {
    from = Math.max(0, Math.min(line.span - width, start));
    to = from + width;
    redraw();
  }

  let grip = null; // where a drag began
  canvas.addEventListener("pointerdown", (event) => { grip = { x: event.clientX, from }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { grip = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (grip && Math.abs(event.clientX - grip.x) > 3) { hideTip(); return move(grip.from - ((event.clientX - grip.x) / (right() - GUTTER)) * (to - from)); }
    const box = canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - HEAD) / LANE);
    pick(lane, jobAt(lane, time(event.clientX - box.left)), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => pick(0, null));
  canvas.addEventListener("blur", () => pick(0, null));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const keysOf = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "+" || event.key === "=") return zoom(0.5);
    if (event.key === "-") return zoom(2);
    if (event.key === "0") { [from, to] = [0, line.span]; return redraw(); }
    if (event.key === "Escape") return pick(0, null);
    if (!(event.key in keysOf)) return;
    event.preventDefault();
    step(...keysOf[event.key]);
    speak();
  });
  slider.addEventListener("input", () => move((slider.value / 1000) * (line.span - (to - from))));

  function step(down, along) {
    if (!picked) { const lane = line.lanes.findIndex((jobs) => jobs.length); return lane >= 0 && pick(lane, line.lanes[lane].find((job) => job.end >= from) ?? line.lanes[lane][0]); }
    let { lane, job } = picked;
    if (along) job = line.lanes[lane][line.lanes[lane].indexOf(job) + along] ?? job;
    else {
      do lane += down; while (line.lanes[lane] && !line.lanes[lane].length);
      if (!line.lanes[lane]) return;
      job = line.lanes[lane].reduce((best, each) => (Math.abs(each.started - job.started) < Math.abs(best.started - job.started) ? each : best));
    }
    if (job.started < from || job.started > to) move(job.started - (to - from) / 2);
    pick(lane, job);
  }

  open(0);
}
