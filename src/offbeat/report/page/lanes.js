// The clients' lanes, drawn: download, compute, upload, jobs in a queue, absences; server steps as marks above.
//
// view: { line, from, to, by, picked, width }: which run, which part of its time, coloured by what, which job is
// outlined ({lane, job} or null), and how wide the drawing is.

const LANE = 15,
  HEAD = 22,
  FOOT = 30,
  GUTTER = 46,
  WIDER = 110, // where clients have names
  END = 10;
const RAMP = [
  [71, 45, 123],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
]; // viridis

// The page's columns as one object a job, times in those of the run.
function unpack(line) {
  const unit = line.span / 1e6;
  const get = (name, i) => (line.jobs[name].length === 1 ? line.jobs[name][0] : line.jobs[name][i]);
  let i = 0;
  const lanes = line.counts.map((count) => {
    const jobs = [];
    let free = 0; // when the client has done all that came before
    for (const last = i + count; i < last; i++) {
      const job = Object.fromEntries(["job", "task", "version", "staleness", "fate"].map((key) => [key, get(key, i)]));
      job.reason = line.reasons[get("reason", i)];
      job.sent = get("sent", i) * unit;
      job.started = job.sent + get("wait", i) * unit;
      job.finished = job.started + get("work", i) * unit;
      job.end = job.finished + get("back", i) * unit;
      job.turn = Math.min(job.started, Math.max(job.sent, free));
      free = Math.max(free, job.finished);
      jobs.push(job);
    }
    return jobs;
  });
  return {
    ...line,
    lanes,
    most: Math.max(1, ...lanes.flat().map((job) => job.staleness)),
    steps: line.steps.map((time) => time * unit),
    away: line.away.map(([lane, a, b]) => [lane, a * unit, b * unit]),
  };
}

// What the lanes of a run show besides computing.
function features(line) {
  const long = 1e-6 * line.span;
  const some = (test) => line.lanes.some((jobs) => jobs.some(test));
  return {
    download: some((job) => job.started - job.turn > long),
    upload: some((job) => job.end - job.finished > long),
    queue: some((job) => job.turn - job.sent > long),
    lost: some((job) => job.fate === 1),
    away: line.away.length > 0,
  };
}

const laneHeight = (line) => HEAD + line.lanes.length * LANE + FOOT;
const gutterOf = (view) => (view.line.names.length ? WIDER : GUTTER);
const nameOf = (line, lane) => line.names[lane] ?? line.clients[lane];
const rightOf = (view) => view.width - END;
const toPixels = (view) => scale(view.from, view.to, gutterOf(view), rightOf(view));

function drawLanes(canvas, view) {
  const { line, width } = view;
  const sharp = devicePixelRatio || 1;
  const height = laneHeight(line);
  canvas.width = width * sharp;
  canvas.height = height * sharp;
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(canvas);
  const ink = (name) => style.getPropertyValue(`--${name}`);
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  pen.font = `11px ${ink("sans")}`;
  pen.textBaseline = "middle";
  drawClients(pen, ink, view);
  drawTimes(pen, ink, view);
  pen.beginPath();
  pen.rect(gutterOf(view), 0, rightOf(view) - gutterOf(view), height);
  pen.clip();
  drawAway(pen, ink, view);
  drawBins(pen, ink, view);
  drawJobs(pen, ink, view);
  drawSteps(pen, ink, view);
  drawPicked(pen, ink, view);
}

function drawClients(pen, ink, view) {
  pen.textAlign = "right";
  view.line.clients.forEach((_, row) => {
    pen.fillStyle = ink("faint");
    pen.fillRect(gutterOf(view), HEAD + row * LANE + 1, rightOf(view) - gutterOf(view), LANE - 2);
    pen.fillStyle = ink("soft");
    const [right, middle] = [gutterOf(view) - 8, HEAD + row * LANE + LANE / 2 + 0.5];
    pen.fillText(nameOf(view.line, row), right, middle, right - 2);
  });
  pen.textAlign = "left";
  pen.fillText("client", 2, HEAD / 2);
}

function drawTimes(pen, ink, view) {
  const px = toPixels(view);
  const base = HEAD + view.line.lanes.length * LANE;
  pen.textAlign = "center";
  for (const mark of px.marks(Math.max(2, view.width / 120))) {
    pen.fillStyle = ink("rule");
    pen.fillRect(px(mark) - 0.5, base + 2, 1, 4);
    pen.fillStyle = ink("soft");
    pen.fillText(show(mark, "number"), Math.min(Math.max(px(mark), gutterOf(view) + 6), rightOf(view) - 12), base + 17);
  }
}

function drawAway(pen, ink, view) {
  const px = toPixels(view);
  pen.strokeStyle = ink("away");
  pen.lineWidth = 1.5;
  for (const [row, a, b] of view.line.away.filter(([, a, b]) => b >= view.from && a <= view.to)) {
    const [left, right, top] = [px(a), px(b), HEAD + row * LANE + 1];
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, LANE - 2);
    pen.clip();
    pen.beginPath();
    for (let x = Math.max(left, gutterOf(view)) - LANE; x < Math.min(right, view.width); x += 5) {
      pen.moveTo(x, top + LANE);
      pen.lineTo(x + LANE, top);
    }
    pen.stroke();
    pen.restore();
  }
}

// Where single jobs are not on the page: the share of time spent computing, the darker the more.
function drawBins(pen, ink, view) {
  const { line } = view;
  const px = toPixels(view);
  pen.fillStyle = ink("compute");
  line.bins.forEach((shares, row) =>
    shares.forEach((share, k) => {
      const [a, b] = [k, k + 1].map((edge) => (edge * line.span) / shares.length);
      if (!share || b <= line.until || b < view.from || a > view.to) return;
      const left = px(Math.max(a, line.until));
      pen.globalAlpha = 0.15 + 0.006 * share;
      pen.fillRect(left, HEAD + row * LANE + 3, px(b) - left, LANE - 6);
    }),
  );
  pen.globalAlpha = 1;
}

function drawJobs(pen, ink, view) {
  const px = toPixels(view);
  view.line.lanes.forEach((jobs, row) => {
    const top = HEAD + row * LANE;
    for (const job of jobs.filter((each) => each.end >= view.from && each.sent <= view.to)) {
      pen.globalAlpha = job.fate === 1 ? 0.4 : 1;
      drawPiece(pen, px, job.sent, job.turn, top + LANE - 4, 2.5, ink("queue"));
      drawPiece(pen, px, job.turn, job.started, top + 5, 5, ink("download"));
      drawPiece(pen, px, job.started, job.finished, top + 2, LANE - 4, shade(ink, view, job));
      drawPiece(pen, px, job.finished, job.end, top + 5, 5, ink("upload"));
      pen.globalAlpha = 1;
      if (job.fate === 1) drawCross(pen, ink, px(job.end), top + LANE / 2);
    }
  });
}

function drawPiece(pen, px, from, to, top, height, fill) {
  if (to <= from) return;
  const long = px(to) - px(from);
  pen.fillStyle = fill;
  pen.fillRect(px(from), top, Math.max(0.6, long > 3 ? long - 0.8 : long), height);
}

function drawCross(pen, ink, x, y) {
  pen.strokeStyle = ink("lost");
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.moveTo(x - 3, y - 3);
  pen.lineTo(x + 3, y + 3);
  pen.moveTo(x + 3, y - 3);
  pen.lineTo(x - 3, y + 3);
  pen.stroke();
}

function shade(ink, view, job) {
  if (view.by === "activity") return ink("compute");
  if (view.by === "task") return ink(`c${job.task % 8}`);
  if (job.staleness < 0) return ink("away");
  const at = (Math.log1p(job.staleness) / Math.log1p(view.line.most)) * (RAMP.length - 1);
  const [low, part] = [Math.floor(at), at - Math.floor(at)];
  const [a, b] = [RAMP[low], RAMP[Math.min(RAMP.length - 1, low + 1)]];
  return `rgb(${a.map((value, k) => Math.round(value + (b[k] - value) * part)).join(" ")})`;
}

function drawSteps(pen, ink, view) {
  const px = toPixels(view);
  const seen = view.line.steps.filter((time) => time >= view.from && time <= view.to);
  const sparse = seen.length * 14 < rightOf(view) - gutterOf(view);
  pen.fillStyle = ink("ink");
  for (const time of seen) {
    pen.globalAlpha = sparse ? 0.8 : 0.45;
    pen.fillRect(px(time) - 0.6, HEAD - 11, 1.2, 8);
    pen.globalAlpha = 0.12;
    if (sparse) pen.fillRect(px(time) - 0.5, HEAD - 3, 1, view.line.lanes.length * LANE + 3);
  }
  pen.globalAlpha = 1;
}

function drawPicked(pen, ink, view) {
  if (!view.picked) return;
  const { lane, job } = view.picked;
  const px = toPixels(view);
  pen.strokeStyle = ink("ink");
  pen.lineWidth = 1.5;
  pen.strokeRect(px(job.sent) - 1, HEAD + lane * LANE + 0.5, Math.max(4, px(job.end) - px(job.sent)) + 2, LANE - 1);
}
