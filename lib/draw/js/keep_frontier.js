// Bytes at the peak against the time of the step: the plans of the policies, those that are best
// within a budget, and the one that is chosen.
import { axisMarks, wrapText } from "./axes.js";
import { tint } from "./colours.js";
import { playPlan } from "./keep_play.js";
import { planOf, rootOf } from "./keep_plans.js";
import { parWords } from "./keep_words.js";
import { boxMark, lineMark, textMark } from "./marks.js";
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
    name: `a checkpoint around every ${k === 1 ? "block" : `${k} blocks`}`,
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

// Lays out the chart, its title from `edge` on; gives {marks, y} with y below it.
export function layFrontier({ data, points, run, budget }, edge, left, right, y) {
  const about = points.length ? "; above, how many blocks are in each checkpoint" : "";
  const title = wrapText(`time of the step, by bytes at the peak${about}`, right - edge);
  const top = y + title.length * style.line + (points.length ? FRONTIER_ABOVE : 8);
  const base = top + FRONTIER_HEIGHT;
  const [peaks, times] = spansOf(data, run, budget), wide = right - left;
  const across = scaleOf(peaks, false, Math.max(2, Math.floor(wide / 90)));
  const up = scaleOf(times, false, 4);
  const x = (bytes) => left + across.part(bytes) * wide;
  const high = (time) => base - up.part(time) * FRONTIER_HEIGHT;
  const place = { x, high, left, right, top, base };
  const goals = goalsOf(data, run, budget, place), shown = spacedOut(points, place);
  const marks = [
    ...title.map((line, n) => textMark(edge, y + n * style.line, line)),
    ...(goals.length ? [goalArea(goals, place)] : []),
    ...up.ticks.flatMap((tick) => timeTick(tick, data.unit, place)),
    ...axisMarks(left, right, base, across.ticks[0], across.ticks.at(-1), "B"),
    ...goals.map(({ points, about }) =>
      lineMark(points, style.ink, { thick: 1.2, about })
    ),
    ...pointMarks(shown, place),
    ...countLabels(shown, run, place),
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

// The goals that the axes hold: [{x or y, points, about}].
function goalsOf({ par, unit }, run, budget, { x, high, left, right, top, base }) {
  const goals = [], at = budget ? x(budget) : Infinity;
  const y = par ? high(run.end - run.again + par) : -Infinity;
  if (at <= right) {
    const about = `the budget: ${commas(budget)} bytes`;
    goals.push({ x: at, points: [[at, top], [at, base]], about });
  }
  if (y >= top) {
    const about = `par: ${amount(par, unit)} computed again`;
    goals.push({ y, points: [[left, y], [right, y]], about });
  }
  return goals;
}

// What lies within all goals.
function goalArea(goals, { left, right, top, base }) {
  const to = goals.find((goal) => goal.x)?.x ?? right, y = goals.find((goal) => goal.y)?.y ?? top;
  const fill = tint(style.memory.activations, 0.25);
  return boxMark(left, y, to - left, base - y, { fill, about: "" });
}

// The plans of budgets, and of the others those with room between them: √n first.
function spacedOut(points, { x }) {
  const isRoot = ({ label }) => Number(label.startsWith("√")), shown = [];
  const labelled = points.filter(({ label }) => label);
  for (const point of [...labelled].sort((a, b) => isRoot(b) - isRoot(a))) {
    const isFree = shown.every(({ run }) => Math.abs(x(run.peak) - x(point.run.peak)) >= 9);
    if (isFree) shown.push(point);
  }
  return [...points.filter(({ label }) => !label), ...shown];
}

// The plans of policies are hollow, the best ones full and joined in steps: within a budget between
// two of them the one with fewer bytes is still the best.
function pointMarks(points, { x, high }) {
  const bests = points.filter(({ label }) => !label), steps = [], half = 3;
  for (const { run } of bests) {
    if (steps.length) steps.push([x(run.peak), steps.at(-1)[1]]);
    steps.push([x(run.peak), high(run.end)]);
  }
  const marks = steps.length > 1 ? [lineMark(steps, style.faint, { thick: 1.2 })] : [];
  for (const { id, name, label, run } of points) {
    const hollow = { fill: style.paper, edge: style.ink, thick: 1.4 };
    const look = label ? hollow : { fill: style.faint };
    const about = () => `${name}: ${amount(run.peak, "B")}`;
    const [px, py] = [x(run.peak) - half, high(run.end) - half];
    marks.push(boxMark(px, py, 2 * half, 2 * half, { ...look, about, id }));
  }
  return marks;
}

// How many blocks are in each checkpoint, above the points where there is room.
function countLabels(points, chosen, { x, high, right }) {
  const taken = [{ middle: x(chosen.peak), half: 7, y: high(chosen.end) }], marks = [];
  for (const { label, run } of points.filter((point) => point.label)) {
    const half = (label.length * style.letter) / 2, middle = Math.min(x(run.peak), right - half);
    const y = high(run.end) - 14;
    const isFree = taken.every((one) =>
      Math.abs(one.y - y) > 13 || Math.abs(one.middle - middle) > one.half + half + 4
    );
    if (!isFree) continue;
    taken.push({ middle, half, y });
    marks.push(textMark(middle, y, label, { align: "middle" }));
  }
  return marks;
}

function chosenMark({ unit, par }, run, { x, high }) {
  const [px, py] = [x(run.peak), high(run.end)], goal = par ? `, par ${parWords(run, par)}` : "";
  const about = () => `this plan: ${commas(run.peak)} bytes, ${amount(run.end, unit)}${goal}`;
  const look = { fill: style.ink, edge: style.paper, thick: 1.5, about, id: "this plan" };
  return boxMark(px - 6, py - 6, 12, 12, look);
}
