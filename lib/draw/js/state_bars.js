// Bars of the bytes that a device keeps, by kind, and the device's memory as a line over them.
import { boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas } from "./numbers.js";

// The space at both sides, in px.
export const STATES_EDGE = 14;
// The space above the first row, in px.
export const STATES_TOP = 26;
// The height of a row, in px: a line of text, and a bar below it.
export const STATES_ROW = 46;
// The height of a bar, in px.
export const STATES_BAR = 20;
const STATES_FAR = 4; // an axis that is cut off ends at so many times the device's memory

// Writes a number of parameters with three digits: 8.03 billion.
export function countInWords(numel) {
  const steps = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1, ""]];
  const [step, word] = steps.find(([least]) => numel >= 0.9995 * least) || steps.at(-1);
  return `${commas(Number((numel / step).toPrecision(3)))} ${word}`.trim();
}

// Writes a device with its memory: H100, 80 GB.
export const deviceInWords = ({ name, memory }) => `${name}, ${amount(memory, "B")}`;

// Gives the scale of bytes between two pixels that shows these totals beside a device's memory:
// {x, end}; what is above `end` is cut off, unless the scale is to show all of it.
export function byteScale(totals, memory, left, right, isWhole = false) {
  const most = Math.max(...totals), cut = Math.min(most, STATES_FAR * memory);
  const end = Math.max(1.1 * memory, isWhole ? most : cut);
  return { end, x: (bytes) => left + (Math.min(bytes, end) / end) * (right - left) };
}

// Gives a bar of kinds, one after the other: [[kind, bytes, about, id], ...], and a tear at its
// right edge where it goes on beyond the scale.
export function kindBar(parts, top, { x, end }) {
  const marks = [];
  let below = 0;
  for (const [kind, bytes, about, id] of parts) {
    const from = x(below), w = x(below + bytes) - from;
    below += bytes;
    const more = { fill: shadeOfKind(kind), about, id };
    if (w > 0) marks.push(boxMark(from, top, w, STATES_BAR, more));
  }
  if (below > end) {
    const right = x(end), tear = [[right - 8, top + STATES_BAR], [right - 2, top]];
    marks.push(lineMark(tear, style.paper, { thick: 3 }));
  }
  return marks;
}

// Gives the device's memory: its name above, and a line over each bar, which leaves the texts free.
export function limitMarks(gpu, x, rows, width) {
  const text = deviceInWords(gpu), half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(x, half), width - half);
  const marks = [textMark(middle, 9, text, { align: "middle" })];
  for (let n = 0; n < rows; n++) {
    const top = STATES_TOP + n * STATES_ROW + 18, line = [[x, top - 3], [x, top + STATES_BAR + 3]];
    marks.push(lineMark(line, style.paper, { thick: 5 }), lineMark(line, style.ink, { thick: 2 }));
  }
  return marks;
}
