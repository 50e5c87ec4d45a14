// Bytes at the peak against the time of the step: the plans of the policies, those that are best
// within a budget, and the one that is chosen.
import { axisMarks } from "./axes.js";
import { tint } from "./colours.js";
import { playPlan } from "./keep_play.js";
import { planOf, rootOf } from "./keep_plans.js";
import { isWithinPar } from "./keep_words.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas } from "./numbers.js";
import { scaleOf } from "./scales.js";

const FRONTIER_HEIGHT = 110, FRONTIER_ABOVE = 22; // px

// Gives what the plans of the policies and of the budgets take: [{id, name, label, run}], none
// where the plan is to be found by hand.
export function pointsOf(data) {
  if (data.byHand) return [];
  const count = data.names.length, root = rootOf(count);
  const every = Array.from({ length: count }, (_, n) => n + 1).map((k) => ({
    id: `every ${k}`,
    name: `a checkpoint around each ${k === 1 ? "block" : `${k} blocks`}`,
    label: k === root ? `√${count}` : String(k),
    run: playPlan(data, planOf("every", count, k)),
  }));
  const budgets = data.budgets.map(({ bytes, plan }, n) => ({
    id: `budget ${n}`,
    name: `the best plan within ${commas(bytes)} bytes`,
    run: playPlan(data, plan),
  }));
  return [...every, ...budgets];
}

// Lays out the chart; gives {marks, y} with y below it.
export function layFrontier({ data, points, run, budget }, left, right, y) {
  const top = y + style.line + FRONTIER_ABOVE, base = top + FRONTIER_HEIGHT;
  const [peaks, times] = spansOf(data, run, budget), wide = right - left;
  const across = scaleOf(peaks, false, Math.max(2, Math.floor(wide / 90)));
  const up = scaleOf(times, false, 3);
  const x = (bytes) => left + across.part(bytes) * wide;
  const high = (time) => base - up.part(time) * FRONTIER_HEIGHT;
  const place = { x, high, left, right, top, base };
  const marks = [
    textMark(left, y, "time of the step, by bytes at the peak"),
    ...goalMarks(data, run, budget, place),
    ...up.ticks.flatMap((tick) => timeTick(tick, data.unit, place)),
    ...axisMarks(left, right, base, across.ticks[0], across.ticks.at(-1), "B"),
    ...pointMarks(points, place),
    ...labelMarks(points, place),
    chosenMark(data, run, place),
  ];
  return { marks, y: base + 14 + style.line };
}

// The bytes and times that the axes must hold; they stay as plans change, so that points move.
function spansOf(data, run, budget) {
  const count = data.names.length, none = playPlan(data, planOf("none", count));
  const all = playPlan(data, planOf("all", count));
  const peaks = [data.least, none.peak, run.peak, Math.min(budget || none.peak, 1.2 * none.peak)];
  return [peaks, [none.end, all.end, run.end]];
}

function timeTick(tick, unit, { high, left, right }) {
  const y = high(tick), text = tick ? amount(tick, unit) : "0";
  return [
    lineMark([[left, y], [right, y]], style.grid, { thick: 1 }),
    textMark(left - 8, y, text, { align: "right" }),
  ];
}

// What lies within the goals is shaded; the goals are lines.
function goalMarks({ par, unit, forward }, run, budget, { x, high, left, right, top, base }) {
  const goal = Math.min(right, budget ? x(budget) : right), marks = [];
  const y = par ? Math.max(top, high(run.end - run.again + par)) : top;
  if (budget || par) {
    const fill = tint(shadeOfKind("activations"), 0.25);
    marks.push(boxMark(left, y, goal - left, base - y, { fill, about: "" }));
  }
  const line = (points, about) => lineMark(points, style.ink, { thick: 1.2, dash: true, about });
  if (budget) marks.push(line([[goal, top], [goal, base]], `the budget: ${commas(budget)} bytes`));
  if (par) marks.push(line([[left, y], [right, y]], `par: ${amount(par, unit)} computed again`));
  return marks;
}

// The plans of policies are hollow, the best ones full and joined in steps: within a budget between
// two of them the one with fewer bytes is still the best.
function pointMarks(points, { x, high }) {
  const best = points.filter(({ id }) => id.startsWith("budget")), steps = [];
  for (const { run } of best) {
    if (steps.length) steps.push([x(run.peak), steps.at(-1)[1]]);
    steps.push([x(run.peak), high(run.end)]);
  }
  const marks = steps.length > 1 ? [lineMark(steps, style.compute.step, { thick: 1.2 })] : [];
  for (const { id, name, run } of points) {
    const half = 3, isBest = id.startsWith("budget"), shade = style.compute.step;
    const look = isBest ? { fill: shade } : { fill: style.paper, edge: style.ink, thick: 1.4 };
    const about = () => `${name}: ${amount(run.peak, "B")}`;
    const [px, py] = [x(run.peak) - half, high(run.end) - half];
    marks.push(boxMark(px, py, 2 * half, 2 * half, { ...look, about, id }));
  }
  return marks;
}

// How many blocks are in each checkpoint, above the points where there is room: √n first.
function labelMarks(points, { x, high, right }) {
  const labelled = points.filter(({ label }) => label), taken = [];
  const isRoot = ({ label }) => Number(label.startsWith("√"));
  for (const { label, run } of [...labelled].sort((a, b) => isRoot(b) - isRoot(a))) {
    const half = (label.length * style.letter) / 2, middle = Math.min(x(run.peak), right - half);
    const isFree = taken.every((one) => Math.abs(one.middle - middle) > one.half + half + 5);
    if (isFree) taken.push({ label, middle, half, y: high(run.end) - 14 });
  }
  return taken.map(({ label, middle, y }) => textMark(middle, y, label, { align: "middle" }));
}

function chosenMark({ unit, par }, run, { x, high }) {
  const [px, py] = [x(run.peak), high(run.end)];
  const told = par ? `, ${isWithinPar(run, par) ? "within" : "over"} par` : "";
  const about = () => `this plan: ${commas(run.peak)} bytes, ${amount(run.end, unit)}${told}`;
  const look = { fill: style.ink, edge: style.paper, thick: 1.5, about, id: "this plan" };
  return boxMark(px - 6, py - 6, 12, 12, look);
}
