// A chain of blocks on its clock: what is kept, when blocks run, and what is held meanwhile.
import { axisMarks } from "./axes.js";
import { colourOf, lettersOn, tint } from "./colours.js";
import { planLeaves } from "./keep_play.js";
import { checkpointsOf } from "./keep_plans.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { amount, commas } from "./numbers.js";

// Where the rows of the picture lie, in px.
export const KEEP = { left: 84, right: 14, top: 6, bar: 24, gap: 6, tall: 72, level: 7 };

// The colour of a forward that is computed again, inside its outline.
export const againShade = () => tint(colourOf("forward"), 0.28);

// Lays out boxes, bars and memory; gives {marks, y, place} with y below them, and where the boxes
// are.
export function layChain(data, plan, run, { longest, most, allKept, budget }, width) {
  const { left, bar, gap, tall, level, top } = KEEP, right = width - KEEP.right;
  const checkpoints = checkpointsOf(plan);
  const levels = 1 + Math.max(0, ...checkpoints.map(({ depth }) => depth));
  const forward = top + bar + levels * level + 14, backward = forward + bar + gap;
  const memory = backward + bar + 28, base = memory + tall;
  const place = { left, top, bar, step: (right - left) / data.names.length };
  const x = (time) => left + (time / longest) * (right - left);
  const name = (text, y) => textMark(left - 8, y, text, { align: "right" });
  const marks = [
    name("blocks", top + bar / 2),
    name("forward", forward + bar / 2),
    name("backward", backward + bar / 2),
    name("held", base - 8),
    ...data.names.flatMap((_, block) => chainBoxes(data, plan, block, place)),
    ...checkpoints.map((one) => bracketMark(one, levels, place)),
    ...run.bars.flatMap((one) =>
      keepBar(data, one, x, one.kind === "backward" ? backward : forward)
    ),
    lineMark([[x(run.end), forward - 4], [x(run.end), base]], style.faint, {
      thick: 1,
      about: () => `The step ends after ${amount(run.end, data.unit)}.`,
    }),
    ...heldLevels({ most, allKept, budget }, base, right),
    ...heldBytes(run, x, base, most, right),
    ...axisMarks(left, right, base, 0, longest, data.unit),
  ];
  if (place.step <= 5) { // one outline around all, where each has none
    const w = right - left;
    marks.push(boxMark(left, top, w, bar, { edge: style.memory.activations, about: "" }));
  }
  return { marks, y: base + 2 * style.line + 8, place };
}

// A block of the chain: full where it is kept; else as full as what its checkpoint holds of it.
function chainBoxes(data, plan, block, { left, top, bar, step }) {
  const { names, input, inside } = data, isKept = plan.includes(block), more = step > 5 ? 2 : 0.5;
  const x = left + block * step + more / 2, w = Math.max(1, step - more);
  const all = input[block] + inside[block];
  const opens = plan.some((item) => Array.isArray(item) && planLeaves(item)[0] === block);
  const holds = isKept ? all : opens ? input[block] : 0, shade = style.memory.activations;
  const about = () =>
    `block ${names[block]}: ${isKept ? "kept" : "forgotten, runs again"}\n` +
    `holds ${amount(holds, "B")} of ${amount(all, "B")} after forward`;
  const full = all ? (holds / all) * w : isKept ? w : 0;
  const marks = [
    boxMark(x, top, full, bar, { fill: shade, about: "" }),
    boxMark(x, top, w, bar, { edge: step > 5 ? shade : undefined, about, id: `block ${block}` }),
  ];
  if (w <= names[block].length * style.letter + 4) return marks;
  const fill = isKept ? lettersOn(shade) : style.ink;
  return [...marks, textMark(x + w / 2, top + bar / 2, names[block], { fill, align: "middle" })];
}

// A bracket below the blocks of a checkpoint; the outer ones are lower.
function bracketMark({ first, last, depth }, levels, { left, top, bar, step }) {
  const inset = Math.min(3, step / 4), y = top + bar + (levels - depth) * KEEP.level;
  const from = left + first * step + inset, to = left + (last + 1) * step - inset;
  return lineMark([[from, y - 4], [from, y], [to, y], [to, y - 4]], style.ink, { thick: 1.4 });
}

// A run of a block, with its name where there is room.
function keepBar({ names, unit }, { kind, block, start, end }, x, y) {
  const isAgain = kind === "recompute", shade = colourOf(isAgain ? "forward" : kind);
  const w = x(end) - x(start), fill = isAgain ? againShade() : shade, text = names[block];
  const edge = w > 3 ? (isAgain ? shade : style.paper) : undefined;
  const what = isAgain ? "forward once more" : kind;
  const about = () => `${what} of block ${text}\n${amount(start, unit)} to ${amount(end, unit)}`;
  const id = `${kind} ${block} ${start}`;
  const mark = boxMark(x(start), y, w, KEEP.bar, { fill, edge, about, id });
  if (w <= text.length * style.letter + 4) return [mark];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [mark, textMark(x(start) + w / 2, y + KEEP.bar / 2, text, letters)];
}

// What everything kept would hold at the peak, and the budget: lines with names beside them.
function heldLevels({ most, allKept, budget }, base, right) {
  const { left, tall } = KEEP, height = (bytes) => base - (bytes / most) * tall;
  const line = (bytes, name, shade) => {
    const about = `${name}: ${commas(bytes)} bytes`, y = height(bytes);
    return lineMark([[left, y], [right, y]], shade, { thick: 1.2, about });
  };
  const name = (y, text) => textMark(left - 8, y, text, { align: "right" });
  const top = height(allKept), marks = [line(allKept, "all kept", style.faint)];
  if (!budget || budget > most) return [...marks, name(top, "all kept")];
  const label = Math.min(height(budget), base - 8 - style.line); // above "held"
  marks.push(line(budget, "the budget", style.ink), name(label, "budget"));
  return Math.abs(label - top) < style.line ? marks : [...marks, name(top, "all kept")];
}

// What is held, in steps, and its peak in figures.
function heldBytes({ held, end, peak }, x, base, most, right) {
  const height = (bytes) => base - (bytes / most) * KEEP.tall, points = [[x(0), base]];
  for (const [time, bytes] of held) {
    points.push([x(time), points.at(-1)[1]], [x(time), height(bytes)]);
  }
  points.push([x(end), points.at(-1)[1]], [x(end), base]);
  const at = x(held.find(([, bytes]) => bytes === peak)[0]), y = height(peak) - 13;
  const text = amount(peak, "B"), half = (text.length * style.letter) / 2 + 3;
  const middle = Math.min(Math.max(at, x(0) + half), right - half);
  const fill = style.memory.activations, about = `peak: ${commas(peak)} bytes`;
  return [
    areaMark(points, fill, { alpha: 1, about: "held for backward", id: "held" }),
    boxMark(middle - half, y - 8, 2 * half, 16, { fill: style.paper, about: "" }),
    boxMark(at - 3, height(peak) - 3, 6, 6, { fill: style.ink, about, id: "peak" }),
    textMark(middle, y, text, { align: "middle" }),
  ];
}
