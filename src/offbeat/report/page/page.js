// The page: which plots there are, and the switches above them.

const NAMES = { time: data.clock, updates: "updates", bytes: "bytes sent and received" };
const KINDS = { time: "number", updates: "count", bytes: "bytes" };
const kindOf = (metric) => (data.shares.includes(metric) ? "share" : "number");
const place = (id) => document.getElementById(id);
const titleOf = (metric) =>
  `${metric.replaceAll("_", " ")}${kindOf(metric) === "share" ? ", in %" : ""}`; // of an axis, with its unit
const shown = (list) => list.filter((each) => !hidden.has(each.series));

function panels(host, titles, draw) {
  return titles.map((title, index) => {
    const plot = make("div");
    const box = make("div", {}, ...(title ? [make("h3", {}, ...[title].flat())] : []), plot);
    host.append(box);
    return chart(plot, () => draw(index));
  });
}

// Metric against time, updates or bytes

// Many lines: each in a panel of its own, and without bands, unless somebody wants them together.
const view = {
  axis: "time",
  metric: data.metrics[0],
  seeds: many ? "none" : "range",
  scale: "linear",
  layout: many && data.tasks.length === 1 ? "apart" : "together",
};

function setting(title, key, options) {
  return choice(title, options, view[key], (value) => {
    view[key] = value;
    targets();
    redrawAll();
  });
}

function progress() {
  const host = place("progress-plots");
  if (!host) return;
  const bands = [["range", "min–max"], "quartiles", ...(data.lines.length ? ["each"] : []), "none"];
  const metrics = data.metrics.map((name) => [name, name.replace("_", " ")]);
  const bar = place("progress-bar");
  if (metrics.length > 1) bar.append(setting("Metric", "metric", metrics));
  bar.append(setting("Against", "axis", data.axes));
  if (Math.max(...data.totals) > 1) bar.append(setting("Seeds", "seeds", bands));
  bar.append(setting("Scale", "scale", ["linear", "log"]));
  const several = data.tasks.length > 1;
  if (many && !several) bar.append(setting("Layout", "layout", [["apart", "a panel each"], "together"]));
  if (many && !several) smallMultiples(host);
  if (several) host.classList.add("panels");
  const together = make("div");
  host.append(together);
  redraws.push(() => (together.hidden = view.layout === "apart"));
  together.hidden = view.layout === "apart";
  panels(several ? host : together, several ? data.tasks : [""], (task) => ({
    label: `${view.metric} against ${NAMES[view.axis]}${several ? `, task ${data.tasks[task]}` : ""}`,
    x: { name: NAMES[view.axis], kind: KINDS[view.axis] },
    y: {
      name: titleOf(view.metric),
      kind: kindOf(view.metric),
      log: view.scale === "log",
      ceiling: kindOf(view.metric) === "share" ? 1 : undefined,
    },
    ends: !several,
    height: several ? 240 : undefined,
    traces: [
      ...(view.seeds === "each" ? singles(task) : []),
      ...shown(data.progress)
        .filter((p) => p.task === task && p.metric === view.metric && p.axis === view.axis)
        .map(banded),
    ],
    empty: "Nothing to show: no visible algorithm has this metric on this axis.",
  }));
}

// A panel for each series, in which it stands out from all others; scales are the same in all.
function smallMultiples(host) {
  const grid = make("div", { class: "panels multiples" });
  host.append(grid);
  const lines = () => data.progress.filter((p) => p.task === 0 && p.metric === view.metric && p.axis === view.axis);
  redraws.push(() => (grid.hidden = view.layout !== "apart"));
  data.series.forEach((name, index) => {
    const plot = make("div");
    const box = make("div", {}, make("h3", {}, sample(index), `${tag(index)} ${name}`), plot);
    grid.append(box);
    redraws.push(() => (box.hidden = hidden.has(index)));
    chart(plot, () => ({
      label: `${view.metric} of ${name} against ${NAMES[view.axis]}`,
      x: { name: NAMES[view.axis], kind: KINDS[view.axis] },
      y: { name: titleOf(view.metric), kind: kindOf(view.metric), log: view.scale === "log" },
      height: 190,
      empty: "It has no such evaluations.",
      traces: [
        ...lines()
          .filter((p) => p.series !== index)
          .map((p) => ({ name: data.series[p.series], quiet: true, thin: true, pale: true, colour: "var(--away)", x: p.x, y: p.mean })),
        ...lines()
          .filter((p) => p.series === index)
          .map(banded),
      ],
    }));
  });
}

function banded(p) {
  const sides = { range: [p.low, p.high], quartiles: [p.q1, p.q3] }[view.seeds];
  return {
    name: data.series[p.series],
    tag: tag(p.series),
    colour: colour(p.series),
    dash: dash(p.series),
    x: p.x,
    y: p.mean,
    count: p.count,
    total: data.totals[p.series],
    areas: sides && data.totals[p.series] > 1 ? [[...sides, 0.16]] : [],
    range: data.totals[p.series] > 1 ? (sides ?? [p.low, p.high]) : undefined,
  };
}

function singles(task) {
  return shown(data.lines)
    .filter((l) => l.task === task && l.metrics[view.metric])
    .map((l) => {
      const kept = l[view.axis]
        .map((_, i) => i)
        .filter((i) => l[view.axis][i] !== null && l.metrics[view.metric][i] !== null);
      return {
        name: data.series[l.series],
        quiet: true,
        thin: true,
        colour: colour(l.series),
        x: kept.map((i) => l[view.axis][i]),
        y: kept.map((i) => l.metrics[view.metric][i]),
      };
    });
}

function targets() {
  document.querySelectorAll("[data-axis]").forEach((table) => {
    table.hidden = table.dataset.axis !== view.axis || table.dataset.metric !== view.metric;
  });
}

// Distributions, one panel an algorithm

function fans(id, key, spec) {
  const host = place(id);
  if (!host) return;
  host.classList.add("panels");
  const list = data[key];
  const top = Math.max(...list.flatMap((fan) => fan.p90));
  const bottom = Math.min(0, ...list.flatMap((fan) => fan.p10));
  for (const fan of list) {
    const plot = make("div");
    const box = make("div", {}, make("h3", {}, sample(fan.series), data.series[fan.series]), plot);
    host.append(box);
    redraws.push(() => (box.hidden = hidden.has(fan.series)));
    chart(plot, () => {
      const log = spec.log?.();
      return {
        label: `${spec.title} of ${data.series[fan.series]}`,
        x: { name: data.clock, kind: "number" },
        height: 220,
        y: {
          name: spec.unit,
          kind: spec.kind,
          log,
          floor: log ? undefined : bottom,
          range: log ? undefined : [bottom, spec.kind === "share" ? 1 : top || 1],
          ceiling: spec.kind === "share" ? 1 : undefined,
        },
        traces: [
          {
            name: "median",
            colour: colour(fan.series),
            x: fan.x,
            y: fan.p50,
            areas: [
              [fan.p10, fan.p90, 0.16],
              [fan.p25, fan.p75, 0.24],
            ],
            range: [fan.p10, fan.p90],
          },
        ],
      };
    });
  }
}

function staleness() {
  const bar = place("staleness-bar");
  if (!bar) return;
  let log = false;
  bar.append(
    choice("Scale", ["linear", "log"], "linear", (value) => {
      log = value === "log";
      redrawAll();
    }),
  );
  fans("staleness-plots", "staleness", {
    title: "Staleness over time",
    unit: "staleness, in versions",
    kind: "count",
    log: () => log,
  });
}

// One line an algorithm

function lines(id, key, spec) {
  const host = place(id);
  if (host)
    chart(host, () => ({
      ...spec,
      ends: true,
      height: 280,
      traces: shown(data[key]).map((p) => ({
        name: data.series[p.series],
        tag: tag(p.series),
        colour: colour(p.series),
        dash: dash(p.series),
        x: p.x,
        y: p.mean,
        step: spec.step,
        areas: [[p.low, p.high, 0.16]],
        range: data.totals[p.series] > 1 ? [p.low, p.high] : undefined,
      })),
    }));
}

// How requests were divided among tasks

function allocation() {
  const host = place("allocation-plots");
  if (!host) return;
  host.classList.add("panels", "two");
  panels(
    host,
    data.allocation.map((a) => [sample(a.series), data.series[a.series]]),
    (i) => {
      const a = data.allocation[i];
      const names = Object.keys(a.tasks);
      return {
        label: `Requests per task, ${data.series[a.series]}`,
        x: { name: data.clock, kind: "number", range: [0, a.end] },
        y: { name: "requests", kind: "count", floor: 0 },
        height: 260,
        refs: names
          .filter((name) => name in a.ends && a.ends[name] < a.end * 0.999)
          .map((name) => ({ x: a.ends[name] })),
        traces: hidden.has(a.series)
          ? []
          : names.map((name) => ({
              name,
              colour: colour(data.tasks.indexOf(name)),
              dash: dash(data.tasks.indexOf(name)),
              step: true,
              x: a.tasks[name].map((c) => c[0]).concat(a.end),
              y: a.tasks[name].map((c) => c[1]).concat(a.tasks[name].at(-1)[1]),
            })),
      };
    },
  );
  place("allocation-keys").append(
    ...data.tasks.map((name, i) => {
      const key = make("i");
      key.style.background = colour(i);
      return make("li", {}, key, name);
    }),
  );
}

function copying() {
  document.querySelectorAll("button[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => {
      const text = place(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        getSelection().selectAllChildren(place(button.dataset.copy));
        document.execCommand("copy");
      }
      const before = button.textContent;
      button.textContent = live.textContent = "Copied";
      setTimeout(() => {
        button.textContent = before;
      }, 1500);
    }),
  );
}

legend();
progress();
targets();
if (place("timeline-plot")) timeline(place("timeline-plot"), place("timeline-bar"), place("timeline-keys"));
staleness();
lines("concurrency-plot", "concurrency", {
  label: "Share of busy clients over time",
  x: { name: data.clock, kind: "number" },
  y: { name: "busy clients, in %", kind: "share", floor: 0, ceiling: 1.001 },
});
lines("participation-plot", "participation", {
  label: "Updates of each client relative to the mean, the busiest client first",
  x: { name: "share of clients, busiest first", kind: "share" },
  y: { name: "updates, relative to the mean", kind: "number", floor: 0 },
  refs: [{ y: 1, text: "equal shares" }],
});
allocation();
lines("personal-last", "last", {
  label: `Final ${data.own} of each client's personalised model, worst first`,
  x: { name: "share of clients, worst first", kind: "share" },
  y: { name: titleOf(data.own), kind: kindOf(data.own), ceiling: kindOf(data.own) === "share" ? 1.001 : undefined },
});
fans("personal-plots", "personal", {
  title: `${data.own} of personalised models over time`,
  unit: titleOf(data.own),
  kind: kindOf(data.own),
});
copying();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
document.documentElement.dataset.ready = "true";
