// Losses of a few seeds for each of several names, as points on one axis: beside rows of bars, or
// below them with their names.
import { axisMarks, wrapText } from "./axes.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { STATES_BAR, STATES_ROW, STATES_TOP } from "./state_bars.js";

const DOT = 7, STRIP = 12, LOSS_PAD = 0.06; // px, px, and the share of an axis beyond its points

// Lays the losses out between two pixels below y: {marks, y} with y below them. Beside bars each
// row stands where its bar is; else only names with losses have one.
export function layLosses(data, { left, right, y, isBeside }) {
  const all = data.losses.flat().filter((loss) => loss !== null);
  const scale = lossScale(all, left + DOT, right - DOT - STRIP);
  const rows = data.names.map((name, n) => ({ name, n, losses: data.losses[n] }));
  const shown = isBeside ? rows : rows.filter(({ losses }) => losses.length);
  const title = isBeside ? "loss of each seed" : "loss of each seed, in nats";
  const marks = [textMark(left, y + 9, title)], top = y + STATES_TOP;
  const bottom = top + shown.length * STATES_ROW, plain = meanOf(data.losses[data.plain] || []);
  if (plain !== null) marks.push(...plainMarks(scale.x(plain), shown.length, top));
  shown.forEach(({ name, n, losses }, row) => {
    const place = { left, right, y: top + row * STATES_ROW };
    const label = isBeside ? "" : name;
    if (losses.length) marks.push(...rowOfLosses(data, n, label, plain, scale, place));
  });
  if (all.length) {
    marks.push(...axisMarks(left + DOT, right - DOT - STRIP, bottom, scale.from, scale.to, ""));
  }
  let end = bottom + 2 * style.line;
  if (plain !== null) {
    const words = `line: the mean of ${data.names[data.plain]}`;
    for (const line of wrapText(words, right - left)) {
      marks.push(textMark(left, end, line, { fill: style.faint }));
      end += style.line;
    }
  }
  return { marks, y: end };
}

// The scale that holds all losses: {x, from, to}; losses that differ little are drawn far apart.
function lossScale(all, left, right) {
  const low = Math.min(...all), high = Math.max(...all), span = high - low || Math.abs(high) || 1;
  const [from, to] = all.length ? [low - LOSS_PAD * span, high + LOSS_PAD * span] : [0, 1];
  return { from, to, x: (loss) => left + ((loss - from) / (to - from)) * (right - left) };
}

// The mean of losses; null where there are none, or where one of them is not finite.
function meanOf(losses) {
  if (!losses.length || losses.includes(null)) return null;
  return losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
}

// The mean of the plain optimizer: a line through all rows, which leaves the texts free.
function plainMarks(x, rows, top) {
  return Array.from({ length: rows }, (_, row) => {
    const y = top + row * STATES_ROW + 18;
    const line = [[x, y - 3], [x, y + STATES_BAR + 3]];
    return lineMark(line, style.faint, { thick: 1.5 });
  });
}

// A row: the mean in a line, and below it a point for each seed, each at a height of its own.
function rowOfLosses(data, n, label, plain, scale, { left, right, y }) {
  const losses = data.losses[n], mean = meanOf(losses), name = data.names[n];
  const marks = label ? [textMark(left, y + 8, label)] : [];
  const said = mean === null ? "diverged" : `mean ${mean.toFixed(3)}`;
  marks.push(textMark(right, y + 8, said, { align: "right", fill: style.faint }));
  const room = STATES_BAR - DOT, step = room / Math.max(1, losses.length - 1);
  losses.forEach((loss, seed) => {
    const at = y + 18 + (losses.length > 1 ? seed * step : room / 2);
    const id = `${name} loss ${seed}`, about = seedInWords(data, n, seed, plain);
    const x = loss === null ? right - DOT : scale.x(loss) - DOT / 2;
    const look = loss === null ? { edge: style.compute.forward } : { fill: style.compute.forward };
    marks.push(boxMark(x, at, DOT, DOT, { ...look, about, id }));
  });
  return marks;
}

// Tells the loss of a seed, and how far the mean of its row is from the plain optimizer's.
function seedInWords(data, n, seed, plain) {
  const loss = data.losses[n][seed], mean = meanOf(data.losses[n]);
  const own = `${data.names[n]}, seed ${seed}: ${loss === null ? "diverged" : loss.toFixed(3)}`;
  if (mean === null || plain === null || n === data.plain) return own;
  const off = mean - plain, words = `${Math.abs(off).toFixed(3)} ${off < 0 ? "below" : "above"}`;
  return `${own}\nmean ${mean.toFixed(3)}, ${words} ${data.names[data.plain]}`;
}

// Describes the losses in words, a line for each name that has some.
export function lossesInWords(data) {
  const told = (loss) => (loss === null ? "diverged" : loss.toFixed(3));
  return data.names.flatMap((name, n) => {
    const own = data.losses[n].map(told).join(", ");
    return own ? [`  ${name}: losses ${own}`] : [];
  });
}
