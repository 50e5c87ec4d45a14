// Bytes alive on a rank, stacked by kind of memory; lib/draw/timelines/stacks.py packs them.
import { columnOf } from "./events.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { amount, commas } from "./numbers.js";

// The height above a stack, in px, for the text of its peak.
export const PEAK_BAND = 20;

// Gives [{rank, name, n, time, sums, peak}]: sums[k][i] are the bytes of kind k and those below it
// from time[i].
export function stacksOf({ kinds, stacks }) {
  return stacks.map(({ rank, n, time, alive, peak }) => {
    const name = `rank ${rank}`;
    const at = summed(columnOf(time, n)), below = new Array(n).fill(0);
    const sums = kinds.map((_, k) => {
      summed(columnOf(alive[k], n)).forEach((bytes, i) => (below[i] += bytes));
      return [...below];
    });
    return { rank, name, n, time: at, sums, peak };
  });
}

function summed(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

// Gives the colour of a kind of memory.
export const shadeOfKind = (kind) => style.memory[kind] || style.memory.other;

// Gives the marks of one rank's stack, `tall` px high below `y`: its kinds, and its peak where it
// is seen.
export function stackMarks(stack, kinds, view, y, tall, top, tick) {
  const { from, to, left, right, x } = view, { peak } = stack;
  const base = y + tall, height = (bytes) => base - (bytes / top) * tall;
  const ground = [[Math.max(left, x(0)), base], [right, base]];
  const marks = layerMarks(stack, kinds, view, base, height, tick);
  marks.push(lineMark(ground, style.faint, { thick: 1 }));
  if (peak.time < from || peak.time > to) return marks;
  const at = x(peak.time), high = height(peak.bytes), text = amount(peak.bytes, "B");
  const half = (text.length * style.letter) / 2, about = () => describePeak(stack, tick);
  const middle = Math.min(Math.max(at, left + half), right - half);
  marks.push(boxMark(at - 3, high - 3, 6, 6, { fill: style.ink, about }));
  marks.push(textMark(middle, high - 12, text, { align: "middle" }));
  return marks;
}

// An area for each kind, each down to the ground, the lower ones over it.
function layerMarks(stack, kinds, { from, to, left, right, x, ...view }, base, height, tick) {
  const { time, sums, peak, n } = stack, marks = [];
  const end = stack.end === undefined ? view.end : x(stack.end);
  const timeAt = (px) => Math.round(from + ((px - left) / (right - left)) * (to - from));
  const about = (at) => describeStack(stack, kinds, at ? timeAt(at.x) : peak.time, tick);
  for (let k = kinds.length - 1; k >= 0; k--) {
    const points = [[x(time[0]), base]];
    let before = base;
    for (let i = 0; i < n; i++) {
      const now = height(sums[k][i]);
      if (now === before) continue;
      points.push([x(time[i]), before], [x(time[i]), now]);
      before = now;
    }
    points.push([end, before], [end, base]);
    marks.push(areaMark(points, shadeOfKind(kinds[k]), { alpha: 1, inside: true, about }));
  }
  return marks;
}

// Tells how many bytes of each kind are alive at a moment: [[kind, bytes], ...], the largest first.
export function aliveAt(stack, kinds, moment) {
  let low = 0, high = stack.n; // the first state after the moment
  while (low < high) {
    const middle = (low + high) >> 1;
    if (stack.time[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  if (!low) return [];
  const bytes = (k) => (k < 0 ? 0 : stack.sums[k][low - 1]);
  const parts = kinds.map((kind, k) => [kind, bytes(k) - bytes(k - 1)]).filter(([, size]) => size);
  return parts.sort((a, b) => b[1] - a[1]);
}

// Gives the bytes of all kinds together.
export const totalBytes = (parts) => parts.reduce((sum, [, size]) => sum + size, 0);

// What a rank holds at a moment, in lines.
function describeStack(stack, kinds, moment, tick) {
  const parts = aliveAt(stack, kinds, moment), all = totalBytes(parts);
  const lines = [`${stack.name} at ${amount(moment * tick, "s")}: ${amount(all, "B")}`];
  return [...lines, ...parts.map(([kind, size]) => `${kind} ${amount(size, "B")}`)].join("\n");
}

// What a rank holds at its peak, to the byte, in lines.
function describePeak({ name, peak }, tick) {
  const time = amount(peak.time * tick, "s");
  const parts = Object.entries(peak.kinds).map(([kind, size]) => `${kind} ${commas(size)}`);
  const maker = peak.made ? [`made by ${peak.made}`] : [];
  return [`${name}, peak: ${commas(peak.bytes)} bytes at ${time}`, ...parts, ...maker]
    .join("\n");
}

// Tells the largest peak of all in a sentence.
export function peakStatus(stacks, tick) {
  const most = stacks.reduce((a, b) => (b.peak.bytes > a.peak.bytes ? b : a));
  const { bytes, kinds, time, made } = most.peak, largest = Object.entries(kinds).slice(0, 3);
  const parts = largest.map(([kind, size]) => `${kind} ${amount(size, "B")}`).join(", ");
  const by = made ? `, made by ${made}` : "", when = amount(time * tick, "s");
  return `Peak: ${amount(bytes, "B")} on ${most.name} at ${when} (${parts})${by}.`;
}
