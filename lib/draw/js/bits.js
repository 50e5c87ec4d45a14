// A number as its bits in one format, to flip, and in another beside it; where both have numbers,
// and what of counted numbers they can hold at a loss scale.
import { legendMarks, wrapText } from "./axes.js";
import { fateColour, fateName, FATES } from "./bits_counts.js";
import { besideOf, bitsByKey, bitsOfState, chartDrag, flippedBit, readBits } from "./bits_moves.js";
import { layRange } from "./bits_range.js";
import { bitWidth, equation, layBitRow, layFields, rangeInWords } from "./bits_rows.js";
import {
  bitsHeading,
  bitsResult,
  bitsSummary,
  errorWords,
  fateSentences,
  neighbourWords,
} from "./bits_words.js";
import { layZoom } from "./bits_zoom.js";
import { textMark } from "./marks.js";
import { numberText, powerText } from "./number_text.js";
import { commas } from "./numbers.js";

const BITS_EDGE = 8, BIT_TALL = 30, OTHER_TALL = 22; // px
const BITS_HINT =
  "Press a bit to flip it, or go to it with the arrow keys and press Enter; + and " +
  "- go to the next number. Press the chart of significant bits to take a number from there.";

// Makes the picture of bits from what lib/draw/bits.py gathers.
export function picture(data) {
  const options = data.names.map((name) => [name, name]);
  const step = (by) => ({
    press: (state) => besideOf(data, state, by),
    off: (state) => !besideOf(data, state, by),
  });
  return {
    title: "A number as its bits",
    summary: data.summary,
    state: { ...data.start, number: startOf(data), code: null, message: "" },
    controls: [
      {
        kind: "entry",
        name: "number",
        label: "Number",
        action: "Show",
        hint: "0.1, 2^-24, 1/3",
        enter: readBits,
        given: ({ number }) => numberText(number),
        wrong: ({ message }) => message,
      },
      { kind: "button", label: "Next below", ...step(-1) },
      { kind: "button", label: "Next above", ...step(1) },
      { kind: "choice", name: "format", label: "Format", options },
      { kind: "choice", name: "other", label: "Beside it", options: [["", "none"], ...options] },
      scaleSlider(data),
    ],
    layout: (state, width) => layBits(data, state, width),
    status: (state) => bitsStatus(data, state),
    press: (mark, at, state) => flippedBit(data, state, mark),
    drag: chartDrag(data),
    key: (key, state, laid, mark) => bitsByKey(data, key, state, mark),
  };
}

function scaleSlider({ counts, most }) {
  const show = (power) => `${powerText(power)} = ${commas(2 ** power)}`;
  const range = { min: 0, max: most, show, hidden: !counts.length };
  return { kind: "slider", name: "scale", label: "Loss scale", ...range };
}

// The first number; what JSON cannot hold has travelled as a text.
function startOf({ start: { number } }) {
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[number] ?? number;
}

function bitsStatus(data, state) {
  const isTouched = state.code || !Object.is(state.number, startOf(data));
  return isTouched ? bitsResult(bitsOfState(data, state)) : BITS_HINT;
}

function layBits(data, state, width) {
  const now = bitsOfState(data, state), { points, formats, number, scale } = now;
  const left = BITS_EDGE, right = width - BITS_EDGE, wide = bitWidth(formats, right - left);
  const marks = [];
  let y = 2;
  const write = (...sentences) => {
    for (const line of sentences.flatMap((text) => wrapText(text, right - left))) {
      marks.push(textMark(left, y + 8, line));
      y += style.line;
    }
  };
  points.forEach(({ format, code }, n) => {
    write(`${equation(format, code)}${errorWords(number, points[n])}`);
    const row = { y: y + 4, left, right, wide, tall: n ? OTHER_TALL : BIT_TALL, isPressed: !n };
    const bits = layBitRow(format, code, row);
    marks.push(...bits.marks);
    y = bits.y + 8;
    if (n) return;
    const fields = layFields(format, code, left, y, right);
    marks.push(...fields.marks);
    y = fields.y - 2;
    write(neighbourWords(points[0]));
    y += 12;
  });
  const zoom = layZoom(number, points, left, y + 10, right);
  const range = layRange(data, { formats, number, scale }, left, zoom.y + 10, right);
  const legend = legendMarks(keysOfBits(data, formats[0]), left, range.y + 2, width);
  marks.push(...zoom.marks, ...range.marks, ...legend.marks);
  y = legend.y;
  write(
    ...(data.counts.length ? [fateSentences(data, formats[0], scale)] : formats.map(rangeInWords)),
  );
  const { axis } = range, height = Math.round(y + 6);
  return { marks, height, axis, heading: bitsHeading(now), summary: bitsSummary(data, now) };
}

function keysOfBits({ counts }, format) {
  if (!counts.length) return [];
  return FATES.map((fate) => [fateName(format, fate), fateColour(fate), !fateColour(fate)]);
}
