// Two formats and counted numbers over one logarithmic axis: how many significant bits there are at
// each power of two, and what of the counted numbers fits.
import { layCounts } from "./bits_bars.js";
import { formatColour } from "./bits_zoom.js";
import { tint } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { exponentsOf, largestCode, precisionAt, valueOf } from "./number_format.js";
import { numberText, powerText } from "./number_text.js";
import { plural } from "./numbers.js";

const RANGE = { margin: 54, title: 6, label: 24, top: 36, tall: 64, strip: 9 }; // px
const POINT_APART = 2.5; // px between two points of a format that are drawn one by one
const LABEL_APART = 48; // px between two labels of the axis
const OWN_SHARE = 0.22; // of the colour, in the area of the first format

// Gives the powers of two between which the axis goes: those of the counted numbers, at each scale,
// and of the first format; without counted numbers those of both formats.
export function rangeOfPowers({ counts, most }, formats) {
  const shown = counts.length ? formats.slice(0, 1) : formats;
  const ends = shown.map(exponentsOf), powers = counts.map(([power]) => power);
  const low = Math.min(...ends.map(({ least }) => least), ...powers);
  const high = Math.max(...ends.map(({ top }) => top + 1), ...powers.map((p) => p + 1 + most));
  return [low - 1, high + 1];
}

// Lays out the chart of both formats and of the counted numbers: {marks, y, axis}; `axis` tells
// where the numbers of the formats lie, and which power of two lies at a pixel.
export function layRange(data, { formats, number, scale }, left, y, right) {
  const [low, high] = rangeOfPowers(data, formats), start = left + RANGE.margin;
  // A page that is being laid out anew can be narrower than the margin for a moment.
  const wide = Math.max(1, right - start) / (high - low);
  const top = y + RANGE.top, base = top + RANGE.tall;
  const x = (power) => start + (Math.min(high, Math.max(low, power)) - low) * wide;
  const place = { x, low, high, wide, start, right }, most = Math.max(...formats.map(precision));
  const height = (bits) => base - (bits / most) * RANGE.tall;
  const side = { align: "right" };
  const marks = [
    textMark(left, y + RANGE.title, "significant bits (logarithmic axis)"),
    textMark(start - 6, top + 7, plural(most, "bit"), side),
    textMark(start - 6, base - 6, "0", side),
    ...formats.flatMap((format, n) => precisionMarks(format, place, height, n)),
  ];
  const numberTop = y + RANGE.label;
  let below = base + 5;
  formats.forEach((format, n) => {
    marks.push(...stripMarks(format, place, below, n));
    below += style.line;
  });
  marks.push(...axisNumberMarks(number, place, numberTop, below));
  const powerAt = (px) => low + (px - start) / wide;
  const axis = { top, bottom: below, start, right, powerAt };
  if (data.counts.length) {
    const bars = layCounts(data, formats[0], scale, place, {
      left,
      y: below + 4,
      chart: [top, below],
    });
    marks.push(...bars.marks);
    below = bars.y;
  }
  marks.push(...powerAxis(place, below));
  return { marks, y: below + style.line + 10, axis };
}

function precision({ mantissa }) {
  return mantissa + 1;
}

// How many significant bits a format has at each power of two, in steps: an area, or a line.
function precisionMarks(format, { x, low, high }, height, n) {
  const { least, normal } = exponentsOf(format), shade = formatColour(n);
  const largest = Math.log2(valueOf(format, largestCode(format)));
  const points = [[x(least), height(0)]];
  for (let power = Math.max(least, low); power < Math.min(largest, high); power++) {
    const y = height(precisionAt(format, power));
    points.push([x(power), y], [x(Math.min(power + 1, largest)), y]);
  }
  if (largest <= high) points.push([x(largest), height(0)]);
  if (least < low) points.shift(); // it goes on beyond the edge
  const bits = plural(precision(format), "significant bit");
  const about = `${format.name}: ${bits}, fewer below ${powerText(normal)}`;
  if (n) return [lineMark(points, shade, { thick: 2, about })];
  const fill = tint(shade, OWN_SHARE);
  return [areaMark(points, fill, { alpha: 1, about }), lineMark(points, shade, { thick: 2 })];
}

// The numbers of a format on the logarithmic axis: one by one where there is room, else a bar.
function stripMarks(format, { x, low, high, wide, start }, y, n) {
  const { least, top } = exponentsOf(format), fill = formatColour(n), middle = y + RANGE.strip / 2;
  const largest = valueOf(format, largestCode(format));
  const marks = [textMark(start - 6, middle, format.name, { align: "right" })];
  for (let power = Math.max(least, low); power <= Math.min(top, high - 1); power++) {
    const many = 2 ** (precisionAt(format, power) - 1);
    if (wide / many < POINT_APART) { // and so do all above
      const w = x(Math.log2(largest)) - x(power), about = `${format.name}: its numbers`;
      return [...marks, boxMark(x(power), y, w, RANGE.strip, { fill, about, id: `strip ${n}` })];
    }
    for (let step = 0; step < many; step++) {
      const value = 2 ** power * (1 + step / many), at = x(Math.log2(value));
      if (value <= largest) marks.push(lineMark([[at, y], [at, y + RANGE.strip]], fill));
    }
  }
  return marks;
}

// The axis, with as many powers of two as have room.
function powerAxis({ x, low, high, wide, start, right }, y) {
  const marks = [lineMark([[start, y], [right, y]], style.faint, { thick: 1 })];
  let step = 1;
  while (step * wide < LABEL_APART) step *= 2;
  for (let power = Math.ceil(low / step) * step; power <= high; power += step) {
    const text = powerText(power), half = (text.length * style.letter) / 2;
    marks.push(lineMark([[x(power), y], [x(power), y + 4]], style.faint, { thick: 1 }));
    const middle = Math.min(x(power), right - half);
    marks.push(textMark(middle, y + 13, text, { align: "middle" }));
  }
  return marks;
}

// Where the number lies, if it is on the axis.
function axisNumberMarks(number, { x, low, high, start, right }, y, bottom) {
  const power = Math.log2(Math.abs(number)), at = x(power);
  if (!(power >= low && power <= high)) return [];
  const text = numberText(number), half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(at, start + half), right - half);
  return [
    lineMark([[at, y + 8], [at, bottom]], style.ink, { thick: 1.4 }),
    textMark(middle, y, text, { align: "middle" }),
  ];
}
