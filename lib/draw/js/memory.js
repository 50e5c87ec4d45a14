// What is alive on each rank over time, by kind of memory.
import { axisMarks, legendMarks } from "./axes.js";
import { ranksInWords } from "./events.js";
import { textMark } from "./marks.js";
import {
  aliveAt,
  PEAK_BAND,
  peakStatus,
  shadeOfKind,
  stackMarks,
  stacksOf,
  totalBytes,
} from "./memory_stacks.js";
import { amount } from "./numbers.js";
import { playHeadMarks, zoomable } from "./zoom.js";

const MEMORY_EDGE = 14, MEMORY_TOP = 4, MEMORY_GAP = 10; // px

// Makes the picture of memory from what lib/draw/memory.py gathers.
export function picture(data) {
  const { tick, span } = data, stacks = namedStacks(data), zoom = zoomable(span, "at");
  const time = (ticks) => amount(ticks * tick, "s");
  const range = { min: 0, max: span, seconds: 8 };
  return {
    title: `Memory, ${data.source}`,
    summary: data.summary,
    state: { ...zoom.state, at: 0 },
    moving: ["at"],
    controls: [
      { kind: "player", name: "at", label: "Time", ...range, show: time, zoomed: zoom.zoomed },
      ...zoom.controls,
    ],
    layout: (state, width) => layMemory(data, stacks, state, width),
    overlay: (state, width, { clip }) => playHeadMarks(state, clip),
    status: (state, laid) =>
      [laid.status, state.at && aliveStatus(data, stacks, state.at)].filter(Boolean).join("\n"),
    wheel: zoom.wheel,
    pan: zoom.pan,
    key: zoom.key,
    drag: zoom.drag,
  };
}

// The stacks, each with the name of its run and rank, and with the end of its run.
function namedStacks(data) {
  const owners = data.runs.flatMap(([run, count, end]) => Array(count).fill({ run, end }));
  return stacksOf(data).map((stack, i) => {
    const { run, end } = owners[i], name = run ? `${run}, ${stack.name}` : stack.name;
    return { ...stack, run, end, name, isFirst: run && owners[i - 1]?.run !== run };
  });
}

function layMemory(data, stacks, { from, to }, width) {
  const { kinds, tick, span, top } = data;
  const tall = stacks.length <= 2 ? 88 : stacks.length <= 4 ? 60 : stacks.length <= 8 ? 40 : 28;
  const digits = Math.max(...stacks.map(({ rank }) => String(rank).length));
  const left = 62 + 8 * Math.max(0, digits - 2), right = width - MEMORY_EDGE;
  const scale = (right - left) / (to - from), x = (t) => left + (t - from) * scale;
  const view = { from, to, left, right, x, end: x(span) }, marks = [];
  let y = MEMORY_TOP;
  for (const stack of stacks) {
    if (stack.isFirst) {
      marks.push(textMark(0, y + style.line / 2, stack.run));
      y += style.line;
    }
    y += PEAK_BAND;
    marks.push(textMark(left - 8, y + tall / 2, `rank ${stack.rank}`, { align: "right" }));
    marks.push(...stackMarks(stack, kinds, view, y, tall, top, tick));
    y += tall + MEMORY_GAP;
  }
  marks.push(...axisMarks(left, right, y, from * tick, to * tick));
  const keys = kinds.map((kind) => [kind, shadeOfKind(kind), false]);
  const below = legendMarks(keys, left, y + 2 * style.line + 10, width);
  const thin = data.thin && "Thinned: of short moments the fullest is kept, so every peak is true.";
  const status = [peakStatus(stacks, tick), thin].filter(Boolean).join("\n");
  const clip = { x: left, y: 0, w: right - left, h: y };
  return { marks: [...marks, ...below.marks], height: Math.round(below.y), clip, status };
}

// What every rank holds at a moment; ranks that hold the same are named together.
function aliveStatus({ kinds }, stacks, moment) {
  const ranksByText = new Map();
  for (const stack of stacks) {
    const parts = aliveAt(stack, kinds, moment), all = amount(totalBytes(parts), "B");
    const most = parts.slice(0, 2).map(([kind, size]) => `${kind} ${amount(size, "B")}`);
    if (parts.length > 2) most.push("…");
    const text = all + (parts.length ? ` (${most.join(", ")})` : "");
    ranksByText.set(text, [...(ranksByText.get(text) || []), stack]);
  }
  return [...ranksByText].map(([text, same]) => `${stacksInWords(same)}: ${text}`).join("; ");
}

function stacksInWords(stacks) {
  const isPlain = stacks.every(({ run }) => !run);
  return isPlain
    ? ranksInWords(stacks.map(({ rank }) => rank))
    : stacks.map(({ name }) => name).join(" and ");
}
