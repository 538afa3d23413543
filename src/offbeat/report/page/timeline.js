// The timeline of the clients: which run, which part of it, and the job that is pointed at or walked to.

const FATES = ["arrived", "lost", "still in flight at the end"];
const TIMELINE_LABEL =
  "Timeline of the clients. Left and right move between jobs, up and down between clients, " +
  "plus and minus zoom, 0 shows the whole run.";

function timeline(host, bar, keys) {
  const view = { line: null, from: 0, to: 1, by: data.tasks.length > 1 ? "task" : "activity", picked: null, width: 0 };
  const canvas = make("canvas", {
    tabindex: 0,
    role: "application",
    "aria-roledescription": "timeline",
    "aria-label": TIMELINE_LABEL,
  });
  const slider = make("input", { type: "range", min: 0, max: 1000, "aria-label": "Visible part of the run" });
  const note = make("p", { class: "note" });
  host.classList.add("plot");
  host.append(canvas, slider);
  host.after(note);

  const redraw = onPage(host, (width) => {
    if (!view.line) return;
    view.width = width;
    drawLanes(canvas, view);
    const rest = view.line.span - (view.to - view.from);
    slider.hidden = rest <= view.line.span * 1e-3;
    slider.value = slider.hidden ? 0 : Math.round((1000 * view.from) / rest);
  });

  // The part that is shown

  function open(index) {
    view.line = unpack(data.timelines[index]);
    view.picked = null;
    const { line } = view;
    const pace = Math.max(1, ...line.counts) / (line.until || 1); // jobs of the busiest client in a unit of time
    const { download, upload, queue } = features(line);
    if (view.by === "activity" && !download && !upload && !queue) colourBy("staleness"); // they only ever compute
    note.textContent = line.note ? `Shown: ${line.note}.` : "";
    note.hidden = !line.note;
    listKeys(keys, view);
    move(0, Math.max(line.span / 50, 60 / pace)); // single jobs can be told from each other
  }

  function move(start, width = view.to - view.from) {
    width = Math.min(view.line.span, width);
    view.from = Math.max(0, Math.min(view.line.span - width, start));
    view.to = view.from + width;
    redraw();
  }

  function zoom(factor, around = view.picked ? view.picked.job.started : (view.from + view.to) / 2) {
    const width = Math.min(view.line.span, Math.max(view.line.span / 2000, (view.to - view.from) * factor));
    move(around - ((around - view.from) / (view.to - view.from)) * width, width);
  }

  const whole = () => move(0, view.line.span);

  // The job that is told of

  function pick(lane, job, x, y) {
    view.picked = job ? { lane, job } : null;
    redraw();
    if (!job) return hideTip();
    const box = canvas.getBoundingClientRect();
    const at = Math.max(gutterOf(view), Math.min(rightOf(view), toPixels(view)(job.started)));
    describe(nameOf(view.line, lane), job, x ?? box.left + at, y ?? box.top + HEAD + lane * LANE);
  }

  const drop = () => pick(0, null);

  function look(event) {
    const box = canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - HEAD) / LANE);
    const px = toPixels(view);
    const [time, slack] = [px.back(event.clientX - box.left), px.back(2) - px.back(0)];
    pick(lane, jobAt(view.line.lanes[lane] ?? [], time, slack), event.clientX, event.clientY);
  }

  function walk(down, along) {
    const { lanes } = view.line;
    const next = view.picked ? neighbour(lanes, view.picked, down, along) : firstShown(lanes, view.from);
    if (!next) return;
    if (next.job.started < view.from || next.job.started > view.to) move(next.job.started - (view.to - view.from) / 2);
    pick(next.lane, next.job);
    speak();
  }

  // Switches above it

  const select = make("select", { "aria-label": "Run" });
  data.timelines.forEach((each, index) => select.append(make("option", { value: index }, each.run)));
  select.addEventListener("change", () => open(Number(select.value)));
  const ways = ["activity", "staleness", ...(data.tasks.length > 1 ? ["task"] : [])];
  const colours = choice("Colour by", ways, view.by, (value) => {
    view.by = value;
    listKeys(keys, view);
    redraw();
  });
  const colourBy = (value) => {
    view.by = value;
    colours.querySelector(`input[value=${value}]`).checked = true;
  };
  const zooming = make("span", { class: "tools" });
  zooming.append(
    tool("−", "Zoom out", () => zoom(2)),
    tool("+", "Zoom in", () => zoom(0.5)),
  );
  zooming.append(tool("whole run", "Show the whole run", whole));
  bar.append(select, colours, zooming);
  slider.addEventListener("input", () => move((slider.value / 1000) * (view.line.span - (view.to - view.from))));

  // Pointer and keys

  let grip = null; // where a drag began
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.clientX, from: view.from };
    canvas.setPointerCapture(event.pointerId);
    look(event);
  });
  canvas.addEventListener("pointerup", () => (grip = null));
  canvas.addEventListener("pointermove", (event) => {
    if (!grip || Math.abs(event.clientX - grip.x) <= 3) return look(event);
    hideTip();
    const share = (event.clientX - grip.x) / (rightOf(view) - gutterOf(view));
    move(grip.from - share * (view.to - view.from));
  });
  canvas.addEventListener("pointerleave", drop);
  canvas.addEventListener("blur", drop);
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const around = toPixels(view).back(event.clientX - canvas.getBoundingClientRect().left);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, around);
    },
    { passive: false },
  );
  const acts = {
    ArrowRight: () => walk(0, 1),
    ArrowLeft: () => walk(0, -1),
    ArrowDown: () => walk(1, 0),
    ArrowUp: () => walk(-1, 0),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: whole,
    Escape: drop,
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in acts) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  });

  open(0);
}

function tool(text, label, act) {
  const button = make("button", { type: "button", class: "tool", "aria-label": label, title: label }, text);
  button.addEventListener("click", act);
  return button;
}

// The job at this time: the one at work, else the newest one on its way.
function jobAt(jobs, time, slack) {
  const there = jobs.filter((job) => job.sent - slack <= time && time <= job.end + slack);
  return there.find((job) => job.started <= time && time <= job.finished) ?? there[there.length - 1];
}

function firstShown(lanes, from) {
  const lane = lanes.findIndex((jobs) => jobs.length);
  return lane < 0 ? null : { lane, job: lanes[lane].find((job) => job.end >= from) ?? lanes[lane][0] };
}

// The job before or after it in its lane, or the one that started at about the same time in the lane above or below.
function neighbour(lanes, { lane, job }, down, along) {
  if (along) return { lane, job: lanes[lane][lanes[lane].indexOf(job) + along] ?? job };
  do lane += down;
  while (lanes[lane] && !lanes[lane].length);
  if (!lanes[lane]) return null;
  const off = (other) => Math.abs(other.started - job.started);
  return { lane, job: lanes[lane].reduce((best, each) => (off(each) < off(best) ? each : best)) };
}

function describe(client, job, x, y) {
  const rows = [];
  const row = (name, value) => rows.push({ name, value });
  const at = (time) => show(time, "number");
  if (data.tasks.length > 1) row("task", data.tasks[job.task]);
  row("sent", at(job.sent));
  row("started", at(job.started));
  row("finished", at(job.finished));
  const why = job.fate === 1 ? `, ${job.reason}` : "";
  row(FATES[job.fate], job.fate === 2 ? "" : at(job.end) + why);
  if (job.version >= 0) row("version", show(job.version, "count"));
  if (job.staleness >= 0) row("staleness", show(job.staleness, "count"));
  showTip(x, y, `client ${client}, job ${job.job}`, rows);
}

// What the colours mean, as far as they occur.
function listKeys(keys, view) {
  const has = features(view.line);
  const item = (look, text, fill) => {
    const key = make("i", { class: look, "aria-hidden": "true" }, look === "cross" ? "✕" : "");
    if (fill) key.style.background = fill;
    return make("li", {}, key, text);
  };
  const computing = {
    activity: () => [item("", "computing", "var(--compute)")],
    task: () => data.tasks.map((name, index) => item("", `computing ${name}`, colour(index))),
    staleness: () => [item("ramp", `computing, staleness 0 to ${show(view.line.most, "count")} (logarithmic)`)],
  };
  keys.replaceChildren(...computing[view.by]());
  const behind = data.tasks.length > 1 ? ", or behind a job that was dropped" : ""; // those are in no log
  if (has.download) keys.append(item("half", `download${behind}`, "var(--download)"));
  if (has.upload) keys.append(item("half", "upload, or held until requested", "var(--upload)"));
  if (has.queue) keys.append(item("strip", "job waiting in the queue", "var(--queue)"));
  if (has.lost) keys.append(item("cross", "lost"));
  if (has.away) keys.append(item("away", "offline"));
  keys.append(item("strip", "server step (marks above the lanes)", "var(--ink)"));
}
