// Small parts that all plots share: elements, the tip that follows the pointer, switches, the legend.

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const live = document.getElementById("live");

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Eight colours times three dashes are 24 looks. Dots are kept for runs that have ended.
const dashes = ["", "8 4", "11 3 3 3"];
const colour = (index) => `var(--c${index % 8})`;
const dash = (index) => dashes[Math.floor(index / 8) % dashes.length];
// With more than eight lines each has a number: in the legend, at its end and in the tables.
const many = data.series.length > 8;
const tag = (index) => (many ? String(index + 1) : "");

function sample(index) {
  const width = many ? 30 : 18; // long enough for its dashes
  const line = { x1: 1, x2: width - 1, y1: 5, y2: 5, stroke: colour(index), "stroke-width": many ? 2.5 : 3 };
  return svg(
    "svg",
    { width, height: 10, "aria-hidden": "true" },
    svg("line", { ...line, "stroke-linecap": many ? "butt" : "round", "stroke-dasharray": dash(index) }),
  );
}

// rows: [{colour, name, value, less}]; what is shown is also said to those who cannot see it.
function showTip(x, y, title, rows) {
  const table = make("table");
  for (const row of rows) {
    const name = make("td");
    if (row.colour) {
      const key = make("i");
      key.style.background = row.colour;
      name.append(key);
    }
    name.append(row.name);
    table.append(
      make("tr", {}, name, make("td", {}, row.value), ...(row.less ? [make("td", { class: "less" }, row.less)] : [])),
    );
  }
  tip.replaceChildren(make("b", {}, title), table);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
  tip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8))}px)`;
}

const hideTip = () => {
  tip.hidden = true;
};
const speak = () => {
  live.textContent = [tip.querySelector("b"), ...tip.querySelectorAll("tr")].map((n) => n.textContent).join("; ");
};
addEventListener("scroll", hideTip, { passive: true });

// A row of choices of which one holds. options: values, or [value, text] where they are not the same.
let choices = 0;
function choice(title, options, value, changed) {
  const name = `choice${choices++}`;
  const group = make("div");
  for (const [key, text = key] of options.map((option) => [option].flat())) {
    const input = make("input", { type: "radio", name, value: key });
    input.checked = key === value;
    input.addEventListener("change", () => changed(key));
    group.append(make("label", {}, input, make("span", {}, text)));
  }
  return make(
    "div",
    { class: "choice", role: "radiogroup", "aria-label": title },
    make("span", { "aria-hidden": "true" }, title),
    group,
  );
}

// One legend for the whole page: what is hidden here is hidden in every plot and pale in the tables.
const hidden = new Set();
const redraws = [];
const redrawAll = () => redraws.forEach((draw) => draw());

function legend() {
  const bar = document.getElementById("legend");
  if (many) {
    bar.classList.add("many");
    const filter = make("input", {
      type: "search",
      placeholder: "Filter settings: area lr = 0.1",
      "aria-label": "Show only settings that contain these words",
    });
    filter.addEventListener("input", () => showMatching(filter.value));
    bar.append(filter);
  }
  data.series.forEach((name, index) => {
    const button = make(
      "button",
      {
        type: "button",
        "aria-pressed": "true",
        "aria-label": many ? `${tag(index)}: ${name}` : undefined,
        title: `${many ? `${name}. ` : ""}Click to hide or show; double-click to show only this one, or all`,
      },
      sample(index),
      many ? tag(index) : name,
    );
    button.addEventListener("click", () => setHidden(hidden.has(index) ? without(index) : new Set([...hidden, index])));
    button.addEventListener("dblclick", () => setHidden(aloneOrAll(index)));
    bar.append(button);
  });
}

// Only what contains all these words: others are hidden in the plots, and their rows in the tables.
function showMatching(text) {
  const words = text.toLowerCase().replaceAll(",", " ").split(/\s+/).filter(Boolean);
  const fits = (name) => words.every((word) => ` ${name.toLowerCase().replaceAll(",", " ")} `.includes(word));
  const out = data.series.map((name, index) => [name, index]).filter(([name]) => !fits(name));
  setHidden(new Set(out.map(([, index]) => index)));
  document.querySelectorAll(".numbers tbody tr").forEach((row) => {
    const name = row.querySelector("th")?.dataset.name;
    row.classList.toggle("out", name !== undefined && !fits(name));
  });
}

// All others, to hide them; nobody, if it is alone already.
function aloneOrAll(index) {
  const others = [...data.series.keys()].filter((other) => other !== index);
  const alone = !hidden.has(index) && others.every((other) => hidden.has(other));
  return new Set(alone ? [] : others);
}

const without = (index) => new Set([...hidden].filter((other) => other !== index));

function setHidden(wanted) {
  hidden.clear();
  wanted.forEach((index) => hidden.add(index));
  document
    .querySelectorAll("#legend button")
    .forEach((button, index) => button.setAttribute("aria-pressed", String(!hidden.has(index))));
  document
    .querySelectorAll("tr[data-series]")
    .forEach((row) => row.classList.toggle("hidden", hidden.has(Number(row.dataset.series))));
  redrawAll();
}

// Draw now, when the width changes and when the legend says so.
function onPage(host, draw) {
  let width = 0;
  const again = () => {
    if (host.clientWidth) draw(host.clientWidth);
  };
  new ResizeObserver(() => {
    if (host.clientWidth !== width) {
      width = host.clientWidth;
      again();
    }
  }).observe(host);
  redraws.push(again);
  return again;
}
