// Bytes alive by kind, stacked: the living twin of lib/draw/stacks.py.
import { columnOf } from "./events.js";
import { amount, commas } from "./axes.js";

export const BAND = 20; // px above a stack, for the words of its peak

// [{rank, n, time, sums, peak}]: sums[k][i] are the bytes of kind k and those below it from time[i].
export function stacksOf({ kinds, stacks }) {
  return stacks.map(({ rank, n, time, alive, peak }) => {
    const at = summed(columnOf(time, n)), below = new Array(n).fill(0);
    const sums = kinds.map((_, k) => {
      summed(columnOf(alive[k], n)).forEach((bytes, i) => (below[i] += bytes));
      return [...below];
    });
    return { rank, n, time: at, sums, peak };
  });
}

function summed(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

export const shadeOfKind = (kind) => style.memory[kind] || style.memory.other;

// The marks of one rank's stack, `tall` px high below `y`. view: {from, to, left, right, x}.
export function stackMarks(stack, kinds, { from, to, left, right, x, end }, y, tall, top, tick) {
  const base = y + tall, marks = [], { time, sums, peak, n } = stack;
  for (let k = kinds.length - 1; k >= 0; k--) {
    // each down to the ground, the lower ones over it
    const points = [[x(time[0]), base]];
    let before = base;
    for (let i = 0; i < n; i++) {
      const height = base - (sums[k][i] / top) * tall;
      if (height === before) continue;
      points.push([x(time[i]), before], [x(time[i]), height]);
      before = height;
    }
    points.push([end, before], [end, base]);
    const about = (at) => tellStack(stack, kinds, at ? Math.round(from + ((at.x - left) / (right - left)) * (to - from)) : peak.time, tick);
    marks.push({ kind: "area", fill: shadeOfKind(kinds[k]), points, alpha: 1, inside: true, about });
  }
  const at = x(peak.time), text = amount(peak.bytes, "B"), seen = peak.time >= from && peak.time <= to;
  marks.push({ kind: "line", edge: style.faint, points: [[Math.max(left, x(0)), base], [right, base]], thick: 1 });
  if (!seen) return marks;
  const height = base - (peak.bytes / top) * tall;
  marks.push({ kind: "box", x: at - 3, y: height - 3, w: 6, h: 6, fill: style.ink, about: () => tellPeak(stack, tick) });
  const half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(at, left + half), right - half);
  marks.push({ kind: "text", x: middle, y: height - 12, fill: style.ink, text, align: "middle" });
  return marks;
}

// How many bytes of each kind at a moment: [[kind, bytes], ...], the largest first.
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

export const total = (parts) => parts.reduce((sum, [, size]) => sum + size, 0);

export function tellStack(stack, kinds, moment, tick) {
  const parts = aliveAt(stack, kinds, moment), all = total(parts);
  const lines = [`rank ${stack.rank} at ${amount(moment * tick, "s")}: ${amount(all, "B")}`];
  return [...lines, ...parts.map(([kind, size]) => `${kind} ${amount(size, "B")}`)].join("\n");
}

export function tellPeak({ rank, peak }, tick) {
  const parts = Object.entries(peak.kinds).map(([kind, size]) => `${kind} ${commas(size)}`);
  const made = peak.made ? [`made by ${peak.made}`] : [];
  const first = `rank ${rank}, peak: ${commas(peak.bytes)} bytes at ${amount(peak.time * tick, "s")}`;
  return [first, ...parts, ...made].join("\n");
}

// The largest peak of all, in a sentence.
export function sayPeak(stacks, tick) {
  const most = stacks.reduce((a, b) => (b.peak.bytes > a.peak.bytes ? b : a));
  const { bytes, kinds, time, made } = most.peak;
  const parts = Object.entries(kinds).slice(0, 3).map(([kind, size]) => `${kind} ${amount(size, "B")}`);
  const by = made ? `, made by ${made}` : "";
  return `Peak: ${amount(bytes, "B")} on rank ${most.rank} at ${amount(time * tick, "s")} (${parts.join(", ")})${by}.`;
}
