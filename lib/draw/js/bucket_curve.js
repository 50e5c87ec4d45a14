// What is exposed at each bucket size; the axis is logarithmic where the sizes span decades.
import { wrapText } from "./axes.js";
import { inBytes, inLimits, leastInWords } from "./bucket_words.js";
import { tint } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { amount } from "./numbers.js";

const CURVE_HEIGHT = 56; // px
const SIZE_DECADES = 30; // as in lib/draw/curves.py

// Tells where bucket sizes lie between two pixels: of a size, and of a stop of the slider.
export function sizeScale({ nbytes, stops }, left, wide) {
  const low = Math.min(...nbytes), high = nbytes.reduce((a, b) => a + b);
  const isLog = high >= SIZE_DECADES * low;
  const part = (size) =>
    isLog ? Math.log(size / low) / Math.log(high / low) : (size - low) / (high - low);
  const ofSize = (size) => left + part(size) * wide;
  const ofStop = (n) => ofSize(Math.min(Math.max(stops[n].at(-1), low), high));
  return { low, high, isLog, left, right: left + wide, ofSize, ofStop };
}

// Lays the curve out, and on it the size that is chosen and all that leave least exposed; gives
// {marks, y} with y below them.
export function layCurve({ stops }, stop, curve, scale, y) {
  const { heights } = curve, words = ` (logarithmic)`.repeat(Number(scale.isLog)), marks = [];
  const titles = [`exposed, by bucket size${words}`, leastInWords(stops, curve)];
  for (const text of titles.flatMap((title) => wrapText(title, scale.right - scale.left))) {
    marks.push(textMark(scale.left, y, text));
    y += style.line;
  }
  const top = y, base = top + CURVE_HEIGHT, most = Math.max(...heights);
  const tall = (n) => base - (heights[n] / (most || 1)) * CURVE_HEIGHT;
  const about = () => `${inLimits(stops[stop])}: ${amount(heights[stop], "s")} exposed`;
  const chosen = { fill: style.ink, edge: style.paper, about, id: "size" };
  marks.push(
    ...leastMarks(curve, scale, top, base),
    ...heightLabels(most, scale, top, base),
    lineMark([[scale.left, base], [scale.right, base]], style.faint),
    ...sizeTicks(scale, base),
    lineMark(exposedSteps(stops, scale, tall), style.comm.all_reduce),
    boxMark(scale.ofStop(stop) - 4, tall(stop) - 4, 8, 8, chosen),
  );
  return { marks, y: base + 14 + style.line };
}

// The curve has steps: what is exposed changes where a gradient goes into another bucket.
function exposedSteps(stops, { ofStop }, tall) {
  const points = [];
  stops.forEach((limits, n) => {
    if (limits.length > 1) return;
    const x = ofStop(n), y = tall(n);
    if (points.length) points.push([x, points.at(-1)[1]]);
    points.push([x, y]);
  });
  return points;
}

// Where least is exposed: every stretch of the axis.
function leastMarks({ least }, { ofStop, right }, top, base) {
  return least.map(([first, last]) => {
    const x = Math.min(ofStop(first) - 1, right - 3), w = Math.max(3, ofStop(last) + 1 - x);
    const about = "least exposed";
    return boxMark(x, top - 2, Math.min(w, right - x), base - top + 2, {
      fill: tint(style.comm.all_reduce, 0.22),
      about,
      id: `least ${first}`,
    });
  });
}

function heightLabels(most, { left }, top, base) {
  const labels = most ? [[amount(most, "s"), top], ["0", base]] : [["0", base]];
  return labels.map(([text, y]) => textMark(left - 8, y, text, { align: "right" }));
}

// Ticks from the right, each where its label leaves room for the next.
function sizeTicks({ low, high, right, ofSize }, base) {
  const marks = [];
  let free = right + 8;
  for (const size of tickSizes(low, high)) {
    const x = ofSize(size), label = inBytes(size), wide = label.length * style.letter;
    const isLast = x > right - 24, from = isLast ? right - wide : x - wide / 2;
    if (from + wide > free - 8) continue;
    free = from;
    const text = textMark(isLast ? right : x, base + 14, label, {
      align: isLast ? "right" : "middle",
    });
    marks.push(lineMark([[x, base], [x, base + 4]], style.faint), text);
  }
  return marks;
}

// Powers of two from `high` down to `low`, or both ends where fewer than two lie between them; only
// every fifth (1 KiB, 32 KiB, 1 MiB, ...) where these are many.
function tickSizes(low, high) {
  const step = high / low > 300 ? 5 : 1;
  const powers = [...Array(60).keys()].filter((n) => n % step === 0).map((n) => 2 ** n);
  const inside = powers.filter((size) => low <= size && size <= high).reverse();
  return inside.length > 1 ? inside : [high, low];
}
