// Measured points and predicted lines, and a reading line that tells every value at one size. Axes
// are logarithmic where lib/draw/curves.py says so, and tell it.
import { legendMarks, wrapText } from "./axes.js";
import { pieceColour } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { amount, commas, roundHalfEven } from "./numbers.js";
import { scaleOf } from "./scales.js";

const CHART_LEFT = 74, CHART_RIGHT = 16, CHART_TOP = 30, CHART_HEIGHT = 260; // px
const LINE_THICK = 1.6; // px
const NARROW_CHART = 560; // px, below which each name has a line of its own

// Makes the picture of curves from what lib/draw/curves.py gathers.
export function picture(data) {
  const names = [...new Set([...Object.keys(data.points), ...Object.keys(data.lines)])];
  const sizes = sizesOf(data), [dial, notes] = data.dial || ["", {}], choices = Object.keys(notes);
  const nearest = ({ x }, state, { place }) => {
    const far = sizes.map((size) => Math.abs(place([size, 1])[0] - x));
    return { at: far.indexOf(Math.min(...far)) + 1 };
  };
  const isInside = (at) => at.y < CHART_TOP + CHART_HEIGHT + 8;
  return {
    title: `${data.y[0]} against ${data.x[0]}`,
    summary: data.summary,
    state: { at: 0, turn: 0 },
    moving: ["at"],
    controls: curveControls(data, sizes, dial, choices),
    layout: (state, width) => layCurves(data, names, width, choices[state.turn - 1]),
    overlay: ({ at }, width, laid) => (at ? readingMarks(data, names, sizes[at - 1], laid) : []),
    status({ at, turn }) {
      if (at) return readingStatus(data, names, sizes[at - 1]);
      const chosen = choices[turn - 1];
      return chosen ? `${chosen}: ${notes[chosen]}` : "";
    },
    numbers: () => curveRows(data, names, sizes),
    drag: { start: (mark, at) => isInside(at), move: nearest },
    press: (mark, at, state, laid) => (isInside(at) ? nearest(at, state, laid) : null),
  };
}

function curveControls(data, sizes, dial, choices) {
  const size = (at) => (at ? amount(sizes[at - 1], data.x[1]) : "none");
  const reading = { kind: "slider", name: "at", label: `Read at ${data.x[0]}` };
  const controls = [{ ...reading, min: 0, max: sizes.length, show: size }];
  if (!dial) return controls;
  const choice = (n) => choices[n - 1] || "all", max = choices.length;
  return [{ kind: "slider", name: "turn", label: dial, min: 0, max, show: choice }, ...controls];
}

// A line at one size, and a dot on every value there.
function readingMarks(data, names, size, { place, low, high }) {
  const [px] = place([size, 1]);
  const marks = [lineMark([[px, low], [px, high]], style.ink, { thick: 1 })];
  names.forEach((name, i) => {
    for (const value of [measuredAt(data, name, size), predictedAt(data, name, size)]) {
      if (value === null) continue;
      const [, py] = place([size, value]);
      marks.push(boxMark(px - 5, py - 5, 10, 10, { fill: style.ink }));
      marks.push(boxMark(px - 3.5, py - 3.5, 7, 7, { fill: pieceColour(i) }));
    }
  });
  return marks;
}

// Every value at one size, a line a name.
function readingStatus(data, names, size) {
  const [name, unit] = data.x, where = `at ${amount(size, unit)}${unit ? "" : ` ${name}`}`;
  return [where, ...names.map((one) => valuesAt(data, one, size)).filter(Boolean)].join("\n");
}

// Where there is something to read: every measured size, every corner of a given line.
function sizesOf(data) {
  const lineNames = Object.keys(data.lines).filter((name) => !data.fits[name]);
  const pairs = [...Object.values(data.points), ...lineNames.map((name) => data.lines[name])]
    .flat();
  return [...new Set(pairs.map(([x]) => x))].sort((a, b) => a - b);
}

// Gives a row for each name at each size, as a table.
function curveRows(data, names, sizes) {
  const [x, y] = [data.x, data.y].map(([name, unit]) => (unit ? `${name} (${unit})` : name));
  const header = ["name", x, `${y}, measured`, `${y}, ${data.lines_are}`];
  const rows = names.flatMap((name) =>
    sizes.map((size) => [name, size, measuredAt(data, name, size), predictedAt(data, name, size)])
  );
  return [header, ...rows.filter(([, , ...values]) => values.some((value) => value !== null))];
}

// What was measured at a size, or null.
function measuredAt(data, name, x) {
  const point = (data.points[name] || []).find(([size]) => size === x);
  return point ? point[1] : null;
}

// A fit is exact; a given line is followed between its corners, straight as it is drawn.
function predictedAt(data, name, x) {
  const line = data.lines[name], slack = 1e-9 * Math.abs(x);
  if (!line || x < line[0][0] - slack || x > line.at(-1)[0] + slack) return null;
  if (data.fits[name]) return data.fits[name][0] + data.fits[name][1] * x;
  const after = line.findIndex(([size]) => size >= x - slack);
  const [bx, by] = line[after];
  if (after === 0 || Math.abs(bx - x) <= slack) return by;
  const [ax, ay] = line[after - 1], [isLogX, isLogY] = data.log;
  const share = isLogX ? Math.log(x / ax) / Math.log(bx / ax) : (x - ax) / (bx - ax);
  return isLogY ? ay * (by / ay) ** share : ay + (by - ay) * share;
}

// What was measured and predicted at a size, in words.
function valuesAt(data, name, x) {
  const measured = measuredAt(data, name, x), predicted = predictedAt(data, name, x);
  if (measured === null && predicted === null) return "";
  const parts = [
    measured !== null && `measured ${amount(measured, data.y[1])}`,
    predicted !== null && `${data.lines_are} ${amount(predicted, data.y[1])}`,
  ].filter(Boolean);
  if (parts.length === 2) {
    const off = (predicted / measured - 1) * 100, size = `${commas(roundHalfEven(Math.abs(off)))}%`;
    parts[1] += size === "0%" ? " (the same)" : ` (${size} ${off < 0 ? "less" : "more"})`;
  }
  return `${name}: ${parts.join(", ")}`;
}

function layCurves(data, names, width, chosen) {
  const everything = [...Object.values(data.points), ...Object.values(data.lines)].flat();
  const most = Math.max(2, Math.min(6, Math.floor(width / 90)));
  const [across, up] = [0, 1].map((i) =>
    scaleOf(everything.map((pair) => pair[i]), data.log[i], i ? 6 : most)
  );
  const right = width - CHART_RIGHT, bottom = CHART_TOP + CHART_HEIGHT;
  const place = ([x, y]) => [
    CHART_LEFT + across.part(x) * (right - CHART_LEFT),
    bottom - Math.min(Math.max(up.part(y), 0), 1) * CHART_HEIGHT,
  ];
  const marks = [textMark(8, 12, data.y[0] + up.words)];
  marks.push(...gridLines(data, across.ticks, up.ticks, place, width));
  const shade = (name, i) => (chosen && name !== chosen ? style.grid : pieceColour(i));
  const last = (name) => Number(name === chosen); // lies above the pale ones
  const order = [...names.entries()].sort(([, a], [, b]) => last(a) - last(b));
  const thick = thicknesses(data, order.map(([, name]) => name), place);
  order.forEach(([i, name]) =>
    marks.push(...seriesMarks(data, name, shade(name, i), thick.get(name), place))
  );
  const end = bottom + 2 * style.line;
  marks.push(textMark(right, end, data.x[0] + across.words, { align: "right" }));
  const keys = names.map((name, i) => [data.told[name] || name, pieceColour(i), false]);
  const low = end + style.line - 4, isNarrow = width < NARROW_CHART;
  const below = isNarrow ? keysBelow(keys, low, width) : legendMarks(keys, CHART_LEFT, low, width);
  const places = { place, low: bottom, high: CHART_TOP };
  return { marks: [...marks, ...below.marks], height: below.y, ...places };
}

// How wide each line is, in the order in which they are drawn: one that others lie on is wider by
// so much that it is seen on both sides of them.
function thicknesses(data, names, place) {
  const drawn = names.filter((name) => data.lines[name]?.length);
  const covers = (one, name, i) => i > drawn.indexOf(one) && coincide(data, one, name, place);
  return new Map(drawn.map((one) => {
    const above = drawn.filter((name, i) => covers(one, name, i)).length;
    return [one, LINE_THICK + 3.4 * above];
  }));
}

// Whether a line lies on another for more than a crossing.
function coincide(data, one, other, place) {
  const near = ([x, y]) => {
    const there = predictedAt(data, one, x);
    return there !== null && Math.abs(place([x, there])[1] - place([x, y])[1]) < 2.5;
  };
  const points = data.lines[other], known = points.map(near).filter(Boolean).length;
  return known >= Math.max(2, 0.15 * points.length);
}

function gridLines(data, across, up, place, width) {
  const marks = [], texts = across.map((value) => tickText(value, data.x[1]));
  const wide = Math.max(...texts.map((text) => text.length)) * style.letter + 10;
  const [first] = place([across[0], up[0]]), [final] = place([across.at(-1), up[0]]);
  const every = Math.ceil(wide / ((final - first) / (across.length - 1)));
  across.forEach((value, i) => {
    const [px, low] = place([value, up[0]]), [, high] = place([value, up.at(-1)]);
    marks.push(lineMark([[px, low], [px, high]], style.grid));
    if (i % every) return;
    const align = px < width - 30 ? "middle" : "right";
    marks.push(textMark(px, low + 16, texts[i], { align }));
  });
  for (const value of up) {
    const [left, py] = place([across[0], value]), [right] = place([across.at(-1), value]);
    marks.push(lineMark([[left, py], [right, py]], style.grid));
    const text = tickText(value, data.y[1]);
    marks.push(textMark(left - 6, py, text, { align: "right" }));
  }
  return marks;
}

function tickText(value, unit) {
  return value ? amount(value, unit) : "0";
}

// The band, the line and the points of one name.
function seriesMarks(data, name, shade, thick, place) {
  const marks = [], line = data.lines[name] || [], worst = data.fits[name]?.[2] || 0;
  if (worst) {
    const high = line.map(([x, y]) => place([x, y / Math.max(1 - worst, 0.01)]));
    const low = [...line].reverse().map(([x, y]) => place([x, y / (1 + worst)]));
    const about = `${name}: within ${roundHalfEven(worst * 100)}%`;
    marks.push(areaMark([...high, ...low], shade, { about }));
  }
  const formula = data.told[name] ? `\n${data.told[name]}` : "";
  const about = `${name}: ${data.lines_are}${formula}`;
  if (line.length) marks.push(lineMark(line.map(place), shade, { about, thick }));
  for (const pair of data.points[name] || []) {
    const [px, py] = place(pair), at = `${data.x[0]} ${amount(pair[0], data.x[1])}`;
    const about = () => `${at}\n${valuesAt(data, name, pair[0])}`;
    marks.push(boxMark(px - 3, py - 3, 6, 6, { fill: shade, about, id: `${name} ${pair[0]}` }));
  }
  return marks;
}

// What the colours mean on a narrow page: a name a line, and further lines where it is long.
function keysBelow(keys, y, width) {
  const marks = [];
  for (const [name, shade] of keys) {
    marks.push(boxMark(8, y, 16, 12, { fill: shade }));
    for (const text of wrapText(name, width - 38)) {
      marks.push(textMark(30, y + 6, text));
      y += style.line;
    }
    y += 4;
  }
  return { marks, y: y + 4 };
}
