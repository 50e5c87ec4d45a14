// Axes, legends, and texts that are wrapped.
import { boxMark, lineMark, textMark } from "./marks.js";
import { meaningOf } from "./meanings.js";
import { amount } from "./numbers.js";

// Gives round numbers from `from` to `to`, few enough for `most`; 0 is one of them where it is
// inside.
export function roundNumbers(from, to, most = 6) {
  const span = to - from || 1;
  let step = 10 ** Math.floor(Math.log10(span / most) + 1e-12);
  step *= [1, 2, 5, 10, 20].find((m) => m * step * most >= span * (1 - 1e-12));
  const numbers = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + span * 1e-9; i++) {
    numbers.push(Number((i * step).toPrecision(12)));
  }
  return numbers;
}

// Gives a time axis from `from` to `to` (a unit of "" for plain numbers) between two pixels.
export function axisMarks(left, right, y, from, to, unit = "s") {
  const marks = [lineMark([[left, y], [right, y]], style.faint, { thick: 1 })];
  for (const tick of axisTicks(from, to, Math.floor((right - left) / 90))) {
    let x = left + ((tick - from) / (to - from)) * (right - left);
    marks.push(lineMark([[x, y], [x, y + 4]], style.faint, { thick: 1 }));
    const align = x > right - 24 ? "right" : "middle";
    if (align === "right") x = right;
    const text = tick ? amount(tick, unit) : "0";
    marks.push(textMark(x, y + 14, text, { align }));
  }
  return marks;
}

// Gives about `most` round numbers from `from` to `to`, but never fewer than two: one alone (0 on a
// narrow page) would tell nothing of the scale.
function axisTicks(from, to, most) {
  let many = Math.max(2, Math.min(6, most)), ticks = roundNumbers(from, to, many);
  while (ticks.length < 2 && many < 12) ticks = roundNumbers(from, to, ++many);
  return ticks;
}

// Gives a legend: swatches with names, as many to a line as fit: [[name, colour or null, hatched],
// ...]. In place of hatched it is "dots", or without a colour an outline, "dashed" where the name
// is of a prediction. Who points at a name that is known reads what it means. Gives {marks, y}
// with y below.
export function legendMarks(keys, left, y, right) {
  const marks = [];
  let x = left;
  for (const [name, shade, look] of keys) {
    const wide = 22 + name.length * style.letter + 12;
    if (x > left && x + wide > right) [x, y] = [left, y + style.line + 4];
    const fill = shade || undefined, hatch = look === true, dots = look === "dots";
    const dash = look === "dashed";
    const edge = shade ? undefined : hatch || dots ? style.faint : style.ink;
    if (x + wide - 12 > right) x = Math.max(0, right - wide + 12); // as far left as it has to be
    marks.push(boxMark(x, y, 16, 12, { fill, edge, hatch, dots, dash, about: "" }));
    const about = meaningOf(name), across = Math.min(wide - 8, right - x);
    if (about) marks.push(boxMark(x, y - 4, across, 20, { about, isKey: true }));
    const lines = wrapText(name, Math.max(right - x - 22, 60));
    lines.forEach((line, n) => marks.push(textMark(x + 22, y + 6 + n * style.line, line)));
    if (lines.length > 1) [x, y] = [left, y + lines.length * style.line + 4];
    else x += wide;
  }
  return { marks, y: y + (keys.length ? style.line + 8 : 0) };
}

// Wraps a text into lines of `room` pixels; a word that is longer is cut.
export function wrapText(text, room) {
  const lines = [""], most = Math.max(4, Math.floor(room / style.letter));
  const words = text.split(/\s+/).filter(Boolean);
  for (const word of words.flatMap((one) => one.match(new RegExp(`.{1,${most}}`, "gu")))) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (lines.at(-1) && longer.length * style.letter > room) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}
