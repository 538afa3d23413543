// Numbers as people read them, and places for the marks of an axis.

const thin = "\u2009";

function digits(value, significant) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4)
    return value
      .toExponential(Math.max(0, significant - 1))
      .replace(/\.?0+e/, "e")
      .replace("e+", "e")
      .replace("-", "−");
  const places = Math.max(0, Math.min(8, significant - 1 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en", { maximumFractionDigits: places }).replace("-", "−");
}

function bytes(value, significant) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const power = value > 0 ? Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(value) / 3 + 1e-9))) : 0;
  return digits(value / 1000 ** power, significant) + thin + units[power];
}

// kind: "share" is written in per cent, "count" in whole numbers, "bytes" with a unit.
function show(value, kind, significant = 5) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (kind === "share") return digits(100 * value, significant) + thin + "%";
  if (kind === "bytes") return bytes(value, significant);
  if (kind === "count")
    return Math.abs(value) >= 100 || Number.isInteger(value)
      ? Math.round(value).toLocaleString("en")
      : digits(value, 3);
  return digits(value, significant);
}

function linearMarks(low, high, about) {
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const steps = [0.5, 1, 2, 2.5, 5, 10].map((m) => m * power);
  const at = steps.findIndex((s, i) => i > 0 && s >= raw * 0.999);
  const marks = multiples(low, high, steps[at]);
  return marks.length > 1 ? marks : multiples(low, high, steps[at - 1]); // a single mark shows no scale
}

function multiples(low, high, step) {
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) marks.push(k * step || 0);
  return marks;
}

function logMarks(low, high, about) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const sets = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]];
  for (const set of sets) {
    const marks = [];
    for (let power = from; power <= to; power++) for (const m of set) marks.push(m * 10 ** power);
    const inside = marks.filter((mark) => mark >= low * 0.999 && mark <= high * 1.001);
    if (inside.length <= about + 2 || set === sets[3]) return inside;
  }
}

// A scale: data to pixels and back.
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const width = b - a || 1;
  const at = (v) => from + ((f(v) - a) / width) * (to - from);
  at.back = (p) => {
    const v = a + ((p - from) / (to - from)) * width;
    return log ? 10 ** v : v;
  };
  at.marks = (about) => (log ? logMarks(low, high, about) : linearMarks(low, high, about));
  return at;
}

// The place of the number nearest to x in sorted numbers.
function nearest(sorted, x) {
  let [a, b] = [0, sorted.length - 1];
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (sorted[m] <= x) a = m;
    else b = m;
  }
  return b < 0 ? -1 : Math.abs(sorted[a] - x) <= Math.abs(sorted[b] - x) ? a : b;
}
