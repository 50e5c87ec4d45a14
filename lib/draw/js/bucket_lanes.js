// The lanes of a backward pass: its gradients, the buckets they fill, and the buckets' way to the
// other ranks.
import { describeBucket, inBytes } from "./bucket_words.js";
import { lettersOn, pieceColour, tint } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { amount, plural } from "./numbers.js";

// Where the lanes lie, in px.
export const LANES = { left: 84, right: 14, top: 8, bar: 24, fill: 60, gap: 12, fall: 20 };
LANES.fillTop = LANES.top + LANES.bar + LANES.gap;
LANES.fillBase = LANES.fillTop + LANES.fill;
LANES.sendTop = LANES.fillBase + LANES.fall;
LANES.end = LANES.sendTop + LANES.bar + 8;

// Lays the lanes of a run out, at so many pixels a second.
export function layLanes(data, run, pixels) {
  const { left, top, bar, fill, fillTop, sendTop } = LANES;
  const most = run.flights.reduce((size, { bytes }) => Math.max(size, bytes), 0);
  const name = (text, y) => textMark(left - 8, y, text, { align: "right" });
  return [
    name("backward", top + bar / 2),
    name("buckets", fillTop + fill / 2),
    name("all-reduce", sendTop + bar / 2),
    ...run.flights.flatMap((flight, n) => flightMarks(data, run, flight, n, most, pixels)),
    ...endMarks(run, pixels),
  ];
}

// A bucket: its gradients one by one, its filling, and its all-reduce.
function flightMarks(data, run, flight, n, most, pixels) {
  const { left, fill, fillBase, sendTop } = LANES, { inside, full, start, end, bytes } = flight;
  const shade = pieceColour(n), about = () => describeBucket(flight, n), marks = [];
  const begins = (i) => left + (i ? run.ready[i - 1] : 0) * pixels;
  const points = [[begins(inside[0]), fillBase]];
  let held = 0;
  for (const i of inside) {
    const x = begins(i), w = data.seconds[i] * pixels;
    marks.push(...gradientMarks(data, run, i, n, x, w));
    held += data.nbytes[i];
    points.push([x + w, fillBase - (held / most) * fill]);
  }
  const whole = left + full * pixels, begin = left + start * pixels;
  points.push([whole, fillBase]);
  marks.push(areaMark(points, tint(shade, 0.3), { alpha: 1, about, id: `f${n}` }));
  marks.push(lineMark(points, shade));
  if (end <= start) return marks;
  const texts = [`${n}: ${inBytes(bytes)}`, String(n)], w = (end - start) * pixels;
  marks.push(lineMark([[whole, fillBase], [begin, sendTop]], shade));
  marks.push(...barMarks(begin, sendTop, w, shade, texts, { about, id: `b${n}` }));
  return marks;
}

function gradientMarks(data, run, i, bucket, x, w) {
  const about = () =>
    `${data.names[i]}: ${plural(data.nbytes[i], "byte")}\n` +
    `ready at ${amount(run.ready[i], "s")}, into bucket ${bucket}`;
  const more = { about, id: `g${i}` };
  return barMarks(x, LANES.top, w, pieceColour(bucket), [data.names[i]], more);
}

// Where backward ends, and what is exposed after it.
function endMarks(run, pixels) {
  const { left, top, bar, sendTop } = LANES;
  const x = left + run.backward * pixels, w = run.exposed * pixels;
  const marks = [lineMark([[x, top], [x, sendTop + bar + 4]], style.faint)];
  if (w <= 1) return marks;
  const about = () =>
    `backward is over, ${amount(run.exposed, "s")} of communication is not: exposed`;
  const more = { edge: style.faint, hatch: true, about, id: "exposed" };
  return [boxMark(x, top, w, bar, more), ...marks];
}

// A bar with the first of the texts that fits into it.
function barMarks(x, y, w, fill, texts, more) {
  const edge = w > 3 ? style.paper : undefined;
  const bar = boxMark(x, y, w, LANES.bar, { fill, edge, ...more });
  const text = texts.find((one) => w > one.length * style.letter + 4);
  if (!text) return [bar];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [bar, textMark(x + w / 2, y + LANES.bar / 2, text, letters)];
}

// Outlines what real ranks recorded over what was predicted; no outline is dashed: predictions are.
export function layMeasured({ bars, backward, source }, pixels) {
  const box = (y, [from, to], name) => {
    const about = `${source}: ${name}, ${amount(from, "s")} to ${amount(to, "s")}`;
    const more = { edge: style.ink, thick: 2, about };
    return boxMark(LANES.left + from * pixels, y, (to - from) * pixels, LANES.bar, more);
  };
  const sent = bars.map((bar, n) => box(LANES.sendTop, bar, `bucket ${n}`));
  return [box(LANES.top, [0, backward], "backward"), ...sent];
}

// Gives the play head; what is to come is faint.
export function laneHeadMarks(at, wide) {
  if (at >= 1) return [];
  const { left, top, end } = LANES, x = left + at * wide, right = left + wide + 1;
  const veil = [[x, top - 4], [right, top - 4], [right, end - 2], [x, end - 2]];
  return [
    areaMark(veil, style.paper, { alpha: 0.8 }),
    lineMark([[x, top - 4], [x, end]], style.ink, { thick: 2 }),
  ];
}
