// Measured points and predicted lines, both axes in powers of ten: the same marks as
// lib/draw/curves.py, and a reading line that tells every value at one size.
import { piece, amount, commas, even, legend, linesOf } from "./axes.js";

const LEFT = 74, RIGHT = 16, TOP = 30, TALL = 260; // px
const NARROW = 560; // px, below which each name has a line of its own

export function picture(data) {
  const names = [...new Set([...Object.keys(data.points), ...Object.keys(data.lines)])];
  const stops = stopsOf(data);
  const show = (at) => (at ? amount(stops[at - 1], data.x[1]) : "none");
  const nearest = ({ x }, state, { place }) => {
    const far = stops.map((stop) => Math.abs(place([stop, 1])[0] - x));
    return { at: far.indexOf(Math.min(...far)) + 1 };
  };
  const [dial, said] = data.dial || ["", {}], places = Object.keys(said);
  const turn = { kind: "slider", name: "turn", label: dial, min: 0, max: places.length, show: (n) => places[n - 1] || "all" };
  return {
    title: `${data.y[0]} against ${data.x[0]}`,
    summary: data.summary,
    state: { at: 0, turn: 0 },
    moving: ["at"],
    controls: [...(dial ? [turn] : []),
      { kind: "slider", name: "at", label: `Read at ${data.x[0]}`, min: 0, max: stops.length, show }], // prettier-ignore
    layout: (state, width) => layoutOf(data, names, width, places[state.turn - 1]),
    overlay({ at }, width, { place, low, high }) {
      if (!at) return [];
      const x = stops[at - 1], [px] = place([x, 1]);
      const marks = [{ kind: "line", edge: style.ink, points: [[px, low], [px, high]], thick: 1 }];
      names.forEach((name, i) => {
        for (const value of [measuredAt(data, name, x), predictedAt(data, name, x)]) {
          if (value === null) continue;
          const [, py] = place([x, value]), box = { kind: "box", fill: style.ink };
          marks.push({ ...box, x: px - 5, y: py - 5, w: 10, h: 10 });
          marks.push({ ...box, x: px - 3.5, y: py - 3.5, w: 7, h: 7, fill: piece(i) });
        }
      });
      return marks;
    },
    says({ at, turn }) {
      const chosen = places[turn - 1];
      if (!at) return chosen ? `${chosen}: ${said[chosen]}` : "";
      const x = stops[at - 1];
      const values = names.map((name) => valuesAt(data, name, x)).filter(Boolean);
      return [`at ${amount(x, data.x[1])}${data.x[1] ? "" : ` ${data.x[0]}`}`, ...values].join("\n");
    },
    drag: { start: (mark, at) => at.y < TOP + TALL + 8, move: nearest },
    press: (mark, at, state, laid) => (at.y < TOP + TALL + 8 ? nearest(at, state, laid) : null),
  };
}

// Where there is something to read: every measured size, every corner of a given line.
function stopsOf(data) {
  const given = Object.keys(data.lines).filter((name) => !data.fits[name]);
  const pairs = [...Object.values(data.points), ...given.map((name) => data.lines[name])].flat();
  return [...new Set(pairs.map(([x]) => x))].sort((a, b) => a - b);
}

function measuredAt(data, name, x) {
  const found = (data.points[name] || []).find(([size]) => size === x);
  return found ? found[1] : null;
}

// A fit is exact; a given line is followed between its corners, straight in powers of ten.
function predictedAt(data, name, x) {
  const line = data.lines[name];
  if (!line || x < line[0][0] * (1 - 1e-9) || x > line.at(-1)[0] * (1 + 1e-9)) return null;
  if (data.fits[name]) return data.fits[name][0] + data.fits[name][1] * x;
  const after = line.findIndex(([size]) => size >= x * (1 - 1e-9));
  const [bx, by] = line[after];
  if (after === 0 || Math.abs(bx / x - 1) < 1e-9) return by;
  const [ax, ay] = line[after - 1];
  return ay * (by / ay) ** (Math.log(x / ax) / Math.log(bx / ax));
}

function valuesAt(data, name, x) {
  const measured = measuredAt(data, name, x), predicted = predictedAt(data, name, x);
  if (measured === null && predicted === null) return "";
  const told = [measured !== null && `measured ${amount(measured, data.y[1])}`,
    predicted !== null && `predicted ${amount(predicted, data.y[1])}`].filter(Boolean); // prettier-ignore
  if (told.length === 2) {
    const off = (predicted / measured - 1) * 100, size = `${commas(even(Math.abs(off)))}%`;
    told[1] += size === "0%" ? " (the same)" : ` (${size} ${off < 0 ? "less" : "more"})`;
  }
  return `${name}: ${told.join(", ")}`;
}

// --- what is drawn

function powers(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
  return Array.from({ length: Math.max(last, first + 1) - first + 1 }, (_, i) => 10 ** (first + i));
}

function layoutOf(data, names, width, chosen) {
  const everything = [...Object.values(data.points), ...Object.values(data.lines)].flat();
  const [across, up] = [0, 1].map((i) => {
    const values = everything.map((pair) => pair[i]);
    return powers(Math.min(...values), Math.max(...values));
  });
  const right = width - RIGHT, bottom = TOP + TALL;
  const part = (value, ends) => Math.log10(value / ends[0]) / Math.log10(ends.at(-1) / ends[0]);
  const place = ([x, y]) => [
    LEFT + part(x, across) * (right - LEFT),
    bottom - Math.min(Math.max(part(y, up), 0), 1) * TALL,
  ];
  const marks = [{ kind: "text", x: 8, y: 12, fill: style.ink, text: data.y[0] }];
  marks.push(...gridOf(data, across, up, place, width));
  const shade = (name, i) => (chosen && name !== chosen ? style.grid : piece(i));
  const last = (name) => Number(name === chosen); // lies above the pale ones
  [...names.entries()].sort(([, a], [, b]) => last(a) - last(b))
    .forEach(([i, name]) => marks.push(...series(data, name, shade(name, i), place))); // prettier-ignore
  const end = bottom + 2 * style.line;
  marks.push({ kind: "text", x: right, y: end, fill: style.ink, text: data.x[0], align: "right" });
  const keys = names.map((name, i) => [data.told[name] || name, piece(i), false]);
  const below = width < NARROW ? keysBelow(keys, end + style.line - 4, width)
    : legend(keys, LEFT, end + style.line - 4, width); // prettier-ignore
  return { marks: [...marks, ...below.marks], height: below.y, place, low: bottom, high: TOP };
}

function gridOf(data, across, up, place, width) {
  const marks = [], every = Math.ceil(across.length / Math.max(2, Math.floor(width / 90)));
  across.forEach((value, i) => {
    const [px, low] = place([value, up[0]]), [, high] = place([value, up.at(-1)]);
    marks.push({ kind: "line", edge: style.grid, points: [[px, low], [px, high]] });
    if (i % every) return;
    const align = px < width - 30 ? "middle" : "right", text = amount(value, data.x[1]);
    marks.push({ kind: "text", x: px, y: low + 16, fill: style.ink, text, align });
  });
  for (const value of up) {
    const [left, py] = place([across[0], value]), [right] = place([across.at(-1), value]);
    marks.push({ kind: "line", edge: style.grid, points: [[left, py], [right, py]] });
    const text = amount(value, data.y[1]);
    marks.push({ kind: "text", x: left - 6, y: py, fill: style.ink, text, align: "right" });
  }
  return marks;
}

// The band, the line and the points of one name.
function series(data, name, shade, place) {
  const marks = [], line = data.lines[name] || [], worst = data.fits[name]?.[2] || 0;
  if (worst) {
    const high = line.map(([x, y]) => place([x, y / Math.max(1 - worst, 0.01)]));
    const low = [...line].reverse().map(([x, y]) => place([x, y / (1 + worst)]));
    const about = `${name}: within ${even(worst * 100)}%`;
    marks.push({ kind: "area", fill: shade, points: [...high, ...low], about });
  }
  const told = data.told[name] ? `\n${data.told[name]}` : "";
  const about = `${name}: predicted${told}`;
  if (line.length) marks.push({ kind: "line", edge: shade, points: line.map(place), about });
  for (const pair of data.points[name] || []) {
    const [px, py] = place(pair), at = `${data.x[0]} ${amount(pair[0], data.x[1])}`;
    const about = () => `${at}\n${valuesAt(data, name, pair[0])}`;
    marks.push({ kind: "box", x: px - 3, y: py - 3, w: 6, h: 6, fill: shade, about, id: `${name} ${pair[0]}` });
  }
  return marks;
}

// What the colours mean on a narrow page: a name a line, and further lines where it is long.
function keysBelow(keys, y, width) {
  const marks = [];
  for (const [name, shade] of keys) {
    marks.push({ kind: "box", x: 8, y, w: 16, h: 12, fill: shade });
    for (const text of linesOf(name, width - 38)) {
      marks.push({ kind: "text", x: 30, y: y + 6, fill: style.ink, text });
      y += style.line;
    }
    y += 4;
  }
  return { marks, y: y + 4 };
}
