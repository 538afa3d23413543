// Lines with bands around them.
//
// spec: () => { label, x: {name, kind}, y: {name, kind, log, floor, ceiling}, height, ends, refs, traces }
// trace: { name, colour, dash, x, y, areas: [[low, high, opacity]], total, count, range, thin, step }
//   areas are drawn below the line; where `count` is below `total` some runs have ended, and the line is dashed.
//   range: [low, high], shown in the tip; quiet: not in the tip; tag: a number that stands before its name;
//   pale: there to compare with, not in the CSV.
// refs: [{x or y, text}], dashed lines to compare with.

function chart(host, spec) {
  host.classList.add("plot");
  let state = null; // what the last drawing knows: scales, traces, frame
  let cursor = null; // data x
  const redraw = onPage(host, (width) => {
    state = drawChart(host, spec(), width);
    wire();
    if (state) host.append(saving(state));
  });

  function wire() {
    if (!state) return;
    const image = state.image;
    const look = (event) =>
      point(state.x.back(event.clientX - image.getBoundingClientRect().left), event.clientX, event.clientY);
    image.addEventListener("pointermove", look);
    image.addEventListener("pointerdown", look); // a finger does not hover
    image.addEventListener("pointerleave", clear);
    image.addEventListener("blur", clear);
    image.addEventListener("keydown", key);
  }

  function clear() {
    cursor = null;
    state?.over.replaceChildren();
    hideTip();
  }

  function point(x, px, py) {
    const xs = state.xs;
    if (!xs.length) return;
    cursor = xs[nearest(xs, x)];
    const rows = [];
    const marks = [
      svg("line", { class: "cursor", x1: state.x(cursor), x2: state.x(cursor), y1: state.top, y2: state.bottom }),
    ];
    for (const trace of state.traces.filter((t) => !t.quiet)) {
      const at = trace.step ? stepAt(trace.x, cursor) : nearest(trace.x, cursor);
      const [from, to] = [trace.x[0], trace.x[trace.x.length - 1]];
      const slack = state.x.back(4) - state.x.back(0);
      if (at < 0 || trace.y[at] === null || cursor < from - slack || (cursor > to + slack && !trace.step)) continue;
      const row = { colour: trace.colour, name: named(trace), value: show(trace.y[at], state.spec.y.kind), less: "" };
      if (trace.range) {
        const [low, high] = trace.range.map((side) => show(side[at], state.spec.y.kind));
        if (low !== high) row.less = `${low} to ${high}`;
      }
      if (trace.count && trace.count[at] < trace.total) row.less += ` (${trace.count[at]} of ${trace.total} seeds)`;
      rows.push(row);
      if (state.visible(trace.y[at]))
        marks.push(
          svg("circle", {
            class: "dot",
            r: 4,
            fill: trace.colour,
            cx: state.x(trace.step ? cursor : trace.x[at]),
            cy: state.y(trace.y[at]),
          }),
        );
    }
    state.over.replaceChildren(...marks);
    const box = state.image.getBoundingClientRect();
    showTip(
      px ?? box.left + state.x(cursor),
      py ?? box.top + box.height / 2,
      `${state.spec.x.name} ${show(cursor, state.spec.x.kind)}`,
      rows,
    );
  }

  function key(event) {
    const xs = state.xs;
    if (!xs.length) return;
    const now = cursor === null ? -1 : nearest(xs, cursor);
    const far = (from, way) => {
      // to the next point that is a few pixels away
      let to = from + way;
      while (to > 0 && to < xs.length - 1 && Math.abs(state.x(xs[to]) - state.x(xs[Math.max(0, from)])) < 4) to += way;
      return Math.max(0, Math.min(xs.length - 1, to));
    };
    const moves = {
      ArrowRight: () => far(now, 1),
      ArrowLeft: () => far(now, -1),
      Home: () => 0,
      End: () => xs.length - 1,
    };
    if (event.key === "Escape") clear();
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(xs[moves[event.key]()]);
    speak();
  }

  return redraw;
}

const named = (trace) => (trace.tag ? `${trace.tag} ${trace.name}` : trace.name);

const stepAt = (xs, x) => {
  let at = -1;
  for (let i = 0; i < xs.length && xs[i] <= x; i++) at = i;
  return at;
};

function drawChart(host, spec, width) {
  const traces = spec.traces.filter((t) => t.x.length);
  if (!traces.length) {
    host.replaceChildren(make("p", { class: "empty" }, spec.empty ?? "Nothing to show: every algorithm is hidden."));
    return null;
  }
  const wide = width > 620;
  const shownLines = traces.filter((t) => !t.quiet).length;
  const ends = spec.ends && (wide || many); // numbers stand at the ends also where names have no room
  const endText = (t) => {
    const whole = (wide ? named(t) : t.tag) ?? "";
    return whole.length > 34 ? `${whole.slice(0, 33)}…` : whole;
  };
  const gap = shownLines > 8 ? 12 : 14;
  const least = spec.ends && many ? shownLines * gap + 70 : 0; // so that all have a place
  const height = Math.max(least, spec.height ?? Math.max(220, Math.min(400, width * 0.42)));
  const log = spec.y.log;
  const [low, high] = extent(traces, spec);
  const longest = Math.max(...traces.map((t) => endText(t).length));
  const margin = { top: spec.y.name ? 28 : 12, right: ends ? 16 + (many ? 6.4 : 7.2) * longest : 14, bottom: 42 };
  const rough = scale(low, high, height - margin.bottom, margin.top, log);
  const marks = rough.marks(Math.max(4, height / 60));
  const texts = marks.map((mark) => show(mark, spec.y.kind, 4));
  const left = 14 + 7 * Math.max(3, ...texts.map((text) => text.length));
  const [from, to] = spec.x.range ?? [
    Math.min(...traces.map((t) => t.x[0])),
    Math.max(...traces.map((t) => t.x[t.x.length - 1])),
  ];
  const x = scale(from, to > from ? to : from + 1, left, width - margin.right);
  const y = rough;
  const visible = (value) => value !== null && (!log || value > 0);
  const [top, bottom] = [margin.top, height - margin.bottom];

  const image = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    tabindex: 0,
    role: "application",
    "aria-roledescription": "plot",
    "aria-label": `${spec.label}. Use the arrow keys to move along it.`,
  });
  marks.forEach((mark, i) =>
    image.append(
      svg("line", { class: "grid", x1: left, x2: width - margin.right, y1: y(mark), y2: y(mark) }),
      svg("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, texts[i]),
    ),
  );
  image.append(svg("line", { class: "base", x1: left, x2: width - margin.right, y1: bottom, y2: bottom }));
  for (const mark of x.marks(Math.max(3, (width - left) / 110)))
    image.append(
      svg("line", { class: "base", x1: x(mark), x2: x(mark), y1: bottom, y2: bottom + 4 }),
      svg(
        "text",
        { x: x(mark), y: bottom + 18, "text-anchor": x(mark) > width - 20 ? "end" : "middle" },
        show(mark, spec.x.kind, 4),
      ),
    );
  image.append(
    svg("text", { x: (left + width - margin.right) / 2, y: height - 6, "text-anchor": "middle" }, spec.x.name),
  );

  if (spec.y.name) image.append(svg("text", { class: "title", x: 2, y: 13 }, spec.y.name));

  for (const ref of spec.refs ?? []) {
    const flat = ref.y !== undefined;
    const at = flat ? y(ref.y) : x(ref.x);
    image.append(
      svg(
        "line",
        flat
          ? { class: "ref", x1: left, x2: width - margin.right, y1: at, y2: at }
          : { class: "ref", x1: at, x2: at, y1: top, y2: bottom },
      ),
    );
    if (ref.text)
      image.append(
        flat
          ? svg("text", { x: width - margin.right - 4, y: at - 5, "text-anchor": "end" }, ref.text)
          : svg("text", { x: at + 4, y: top + 10 + 14 * (ref.row ?? 0) }, ref.text),
      );
  }
  for (const trace of traces)
    for (const [a, b, opacity] of trace.areas ?? [])
      image.append(
        svg("path", { class: "area", d: areaPath(trace.x, a, b, x, y, visible), fill: trace.colour, opacity }),
      );
  const lines = traces.flatMap((trace) =>
    linePaths(trace, x, y, visible).map(([path, whole]) => ({ trace, path, whole })),
  );
  for (const line of lines)
    image.append(
      svg("path", {
        class: line.trace.thin ? "line thin" : "line",
        d: line.path,
        stroke: line.trace.colour,
        ...strokes(line, lines),
      }),
    );
  if (ends) endLabels(traces, x, y, visible, top, bottom, gap, endText).forEach((node) => image.append(node));
  const over = svg("g");
  image.append(over);
  host.replaceChildren(image);
  const xs = [...new Set(traces.filter((t) => !t.quiet).flatMap((t) => t.x))].sort((a, b) => a - b);
  return { image, over, spec, traces, x, y, xs, top, bottom, visible };
}

function extent(traces, spec) {
  const values = [];
  const keep = (v) => {
    if (v !== null && (!spec.y.log || v > 0)) values.push(v);
  };
  for (const t of traces) {
    t.y.forEach(keep);
    for (const [a, b] of t.areas ?? []) {
      a.forEach(keep);
      b.forEach(keep);
    }
  }
  for (const ref of spec.refs ?? []) if (ref.y !== undefined) keep(ref.y);
  let [low, high] = spec.y.range ?? [
    values.reduce((a, b) => Math.min(a, b), Infinity),
    values.reduce((a, b) => Math.max(a, b), -Infinity),
  ];
  if (!Number.isFinite(low)) [low, high] = spec.y.log ? [0.1, 1] : [0, 1];
  if (spec.y.log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  if (spec.y.floor !== undefined) low = Math.min(low, spec.y.floor);
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  return [low === spec.y.floor ? low : low - pad, Math.min(high + pad, spec.y.ceiling ?? Infinity)];
}

function areaPath(xs, low, high, x, y, visible) {
  const forth = [],
    back = [];
  xs.forEach((value, i) => {
    if (visible(low[i]) && visible(high[i])) {
      forth.push(`${x(value).toFixed(1)},${y(high[i]).toFixed(1)}`);
      back.unshift(`${x(value).toFixed(1)},${y(low[i]).toFixed(1)}`);
    }
  });
  return forth.length > 1 ? `M${forth.join("L")}L${back.join("L")}Z` : "";
}

// [path, whole]: pieces of the line, by whether all runs are still going.
function linePaths(trace, x, y, visible) {
  const pieces = [];
  let piece = null,
    before = null;
  trace.x.forEach((value, i) => {
    if (!visible(trace.y[i])) {
      piece = before = null;
      return;
    }
    const spot = `${x(value).toFixed(1)},${y(trace.y[i]).toFixed(1)}`;
    const whole = !trace.count || trace.count[i] >= trace.total;
    if (!piece || piece.whole !== whole) {
      piece = { whole, spots: before ? [before] : [] };
      pieces.push(piece);
    }
    if (trace.step && piece.spots.length)
      piece.spots.push(`${x(value).toFixed(1)},${piece.spots[piece.spots.length - 1].split(",")[1]}`);
    piece.spots.push(spot);
    before = spot;
  });
  return pieces.map(({ spots, whole }) => [spots.length > 1 ? `M${spots.join("L")}` : `M${spots[0]}h0.01`, whole]);
}

// Dashes: the trace's own, dots where runs have ended; lines that lie on each other take turns.
function strokes(line, lines) {
  if (!line.whole) return { "stroke-dasharray": "1 5" };
  const same = lines.filter((other) => other.path === line.path);
  if (same.length === 1) return { "stroke-dasharray": line.trace.dash || undefined };
  return {
    "stroke-dasharray": `10 ${10 * (same.length - 1)}`,
    "stroke-dashoffset": -10 * same.indexOf(line),
    "stroke-linecap": "butt",
  };
}

// Names beside the ends of lines, moved apart where they would meet; a thin line leads to one that was moved.
function endLabels(traces, x, y, visible, top, bottom, gap, text) {
  const spots = [];
  for (const t of traces.filter((each) => !each.quiet)) {
    let at = t.x.length - 1;
    while (at > 0 && !visible(t.y[at])) at--;
    if (visible(t.y[at])) spots.push({ t, x: x(t.x[at]) + 8, from: y(t.y[at]), y: y(t.y[at]) });
  }
  spots.sort((a, b) => a.y - b.y);
  const apart = (a, b) => !many && Math.abs(a.x - b.x) >= 90;
  if (many) spots.forEach((s) => (s.x = Math.max(...spots.map((each) => each.x)))); // one column
  spots.forEach((s, i) => {
    if (i && !apart(s, spots[i - 1])) s.y = Math.max(s.y, spots[i - 1].y + gap);
  });
  for (let i = spots.length - 1, floor = bottom - 2; i >= 0; i--) {
    spots[i].y = Math.min(spots[i].y, i < spots.length - 1 && apart(spots[i], spots[i + 1]) ? bottom - 2 : floor);
    floor = spots[i].y - gap;
  }
  return spots.flatMap((s) => {
    const label = svg("text", { class: many ? "end small" : "end", x: s.x, y: s.y + 4 }, text(s.t));
    label.style.fill = s.t.colour;
    const moved = many && Math.abs(s.y - s.from) > 3;
    const lead = svg("path", { class: "lead", d: `M${s.x - 8} ${s.from}L${s.x - 2} ${s.y}`, stroke: s.t.colour });
    return moved ? [lead, label] : [label];
  });
}

// Saving a plot as SVG or PNG, its numbers as CSV

function saving(state) {
  const bar = make("div", { class: "save", role: "group", "aria-label": "Save this plot" });
  const name = state.spec.label.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  const ways = {
    SVG: () => download(`${name}.svg`, "image/svg+xml", standalone(state.image)),
    PNG: () => picture(state.image, (url) => follow(`${name}.png`, url)),
    CSV: () => download(`${name}.csv`, "text/csv", table(state)),
    "Copy CSV": () => navigator.clipboard.writeText(table(state)).then(() => (live.textContent = "Copied")),
  };
  for (const [text, act] of Object.entries(ways)) {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", act);
    bar.append(button);
  }
  return bar;
}

function follow(name, url) {
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  follow(name, url);
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const SHOWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font", "text-anchor"];

// The plot as a file of its own: what the style sheet says stands at every element, on the page's background.
function standalone(image) {
  const copy = image.cloneNode(true);
  const theirs = [...copy.querySelectorAll("*")];
  [...image.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(node);
    theirs[i].setAttribute("style", SHOWN.map((key) => `${key}:${style.getPropertyValue(key)}`).join(";"));
  });
  const [, , width, height] = image.getAttribute("viewBox").split(" ");
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(svg("rect", { width, height, fill: paper }));
  copy.setAttribute("width", width);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

function picture(image, done) {
  const [, , width, height] = image.getAttribute("viewBox").split(" ").map(Number);
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  const drawn = new Image();
  drawn.onload = () => {
    canvas.getContext("2d").drawImage(drawn, 0, 0, 2 * width, 2 * height);
    done(canvas.toDataURL("image/png"));
  };
  drawn.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(image))}`;
}

// One row a point of a line; low and high where it has a range.
function table(state) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const rows = [["series", state.spec.x.name, state.spec.y.name ?? "value", "low", "high"].map(quoted).join(",")];
  for (const t of state.traces.filter((each) => !each.pale))
    t.x.forEach((x, i) =>
      rows.push([quoted(named(t)), x, t.y[i] ?? "", t.range?.[0][i] ?? "", t.range?.[1][i] ?? ""].join(",")),
    );
  return rows.join("\n") + "\n";
}
