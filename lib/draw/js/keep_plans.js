// Plans of recomputation: the rules that make them, their text, and what a reader's hand changes.
import { planLeaves } from "./keep_play.js";

// Gives the plan of a rule for so many blocks, as lib/predict/recompute/plan.py has it: "none",
// "all", "sqrt" or "every", which takes k.
export function planOf(rule, blocks, k) {
  const order = Array.from({ length: blocks }, (_, block) => block);
  if (rule === "none") return order;
  const each = { all: 1, sqrt: rootOf(blocks), every: k }[rule], plan = [];
  for (let first = 0; first < blocks; first += each) plan.push(order.slice(first, first + each));
  return plan;
}

// Gives √n, rounded down.
export function rootOf(blocks) {
  return Math.floor(Math.sqrt(blocks));
}

// Writes a plan as Python does: [[0, 1], [2]] is "((0, 1), (2,))".
export function textOfPlan(plan) {
  const items = plan.map((item) => (Array.isArray(item) ? textOfPlan(item) : String(item)));
  return `(${items.join(", ")}${items.length === 1 ? "," : ""})`;
}

// Gives the checkpoints of a plan: [{first, last, depth}], of which the inner ones are deeper.
export function checkpointsOf(plan, depth = 0) {
  return plan.filter(Array.isArray).flatMap((item) => {
    const blocks = planLeaves(item);
    return [{ first: blocks[0], last: blocks.at(-1), depth }, ...checkpointsOf(item, depth + 1)];
  });
}

// Puts the blocks from one to another into one checkpoint. What is left of others stays in
// checkpoints; of checkpoints inside others only the outermost count from then on.
export function withCheckpoint(plan, from, to) {
  const range = Array.from({ length: to - from + 1 }, (_, n) => from + n);
  return plan.flatMap((item) => {
    const blocks = planLeaves([item]), isKept = !Array.isArray(item);
    const before = blocks.filter((block) => block < from);
    const after = blocks.filter((block) => block > to);
    const parts = isKept ? [...before, ...after] : [before, after].filter((part) => part.length);
    const place = before.length && !isKept ? 1 : 0;
    if (blocks.includes(from)) parts.splice(place, 0, range);
    return parts;
  });
}

// Forgets a block that is kept, in a checkpoint of its own; keeps one that is forgotten.
export function withToggled(plan, block) {
  if (plan.includes(block)) return withCheckpoint(plan, block, block);
  return withCheckpoint(plan, block, block)
    .map((item) => (Array.isArray(item) && item[0] === block ? block : item));
}

// Joins a block and the next one in one checkpoint; parts them where they are in one.
export function withBoundary(plan, block) {
  const items = plan.map((item) => planLeaves([item]));
  const [one, other] = [block, block + 1].map((b) => items.find((all) => all.includes(b)));
  if (one === other) return withCheckpoint(plan, one[0], block);
  return withCheckpoint(plan, one[0], other.at(-1));
}

// Tells in a sentence what a block is now, with its checkpoint.
export function blockInWords({ names }, plan, block) {
  const item = plan.map((one) => planLeaves([one])).find((all) => all.includes(block));
  const name = `Block ${names[block]} is`;
  if (plan.includes(block)) return `${name} kept.`;
  if (item.length === 1) return `${name} forgotten, in a checkpoint of its own.`;
  const others = `${names[item[0]]} to ${names[item.at(-1)]}`;
  return `${name} forgotten, in the checkpoint of blocks ${others}.`;
}
