// Keeping and forgetting blocks by hand: by click, by dragging, and by keys.
import { blockInWords, withBoundary, withCheckpoint, withToggled } from "./keep_plans.js";

// Tells which block a mark is, -1 for none.
function blockOf(mark) {
  const found = /^block (\d+)$/.exec(mark?.id);
  return found ? Number(found[1]) : -1;
}

// What a change by hand changes of the state: the plan, what was before, and what is said.
function byHand(data, state, hand, block) {
  const { policy, k, budget, hand: before, past } = state;
  const message = blockInWords(data, hand, block);
  const last = { policy, k, budget, hand: before };
  return { policy: "hand", hand, past: [...past, last], undone: [], message };
}

// Takes the last change back.
export function keepUndo({ past, undone, policy, k, budget, hand }) {
  const now = { policy, k, budget, hand };
  const left = { past: past.slice(0, -1), undone: [...undone, now] };
  return { ...past.at(-1), ...left, message: "Taken back." };
}

// Makes the change again that was taken back last.
export function keepRedo({ past, undone, policy, k, budget, hand }) {
  const now = { policy, k, budget, hand };
  const left = { past: [...past, now], undone: undone.slice(0, -1) };
  return { ...undone.at(-1), ...left, message: "Made again." };
}

// Tells what choosing a point of the frontier changes.
export function pressPoint(mark) {
  const [, policy, number] = /^(every|budget) (\d+)$/.exec(mark?.id) || [];
  if (!policy) return null;
  return { policy, [policy === "every" ? "k" : "budget"]: Number(number), message: "" };
}

// Gives what a key changes: Enter or the space bar toggles the block that the keyboard is at, or
// chooses a point of the frontier; [ and ] join and part it and its neighbour; u takes back.
export function keepByKey(data, planNow) {
  return (key, state, laid, mark) => {
    if (key === "u" && state.past.length) return keepUndo(state);
    const block = blockOf(mark), plan = planNow(state), last = data.names.length - 1;
    if (key === "Enter" || key === " ") {
      return block < 0 ? pressPoint(mark) : byHand(data, state, withToggled(plan, block), block);
    }
    const left = { "[": block - 1, "]": block }[key];
    if (block < 0 || left === undefined) return null;
    if (left < 0 || left >= last) return {};
    return byHand(data, state, withBoundary(plan, left), block);
  };
}

// A click toggles a block; dragging puts the blocks from one to another into one checkpoint.
export function blockDrag(data, planNow) {
  let held = null; // where the pointer began: {from, at, before, hasMoved}
  const blockAt = ({ x }, { place }) => {
    const at = Math.floor((x - place.left) / place.step);
    return Math.min(data.names.length - 1, Math.max(0, at));
  };
  return {
    start(mark, at, state) {
      const from = blockOf(mark), before = { ...state };
      held = from < 0 ? null : { from, at, before, hasMoved: false };
      return Boolean(held);
    },
    move(at, state, laid) {
      const { from, before } = held, to = blockAt(at, laid);
      if (to === from && !held.hasMoved) return {};
      held.hasMoved = true;
      if (to === from) return before;
      const plan = withCheckpoint(planNow(before), Math.min(from, to), Math.max(from, to));
      return byHand(data, before, plan, from);
    },
    end(at, state, laid, isCancelled) {
      const { from, before, hasMoved } = held;
      if (isCancelled) return hasMoved ? before : {}; // the browser takes a finger over, to scroll
      const isClick = !hasMoved && Math.hypot(at.x - held.at.x, at.y - held.at.y) < 6;
      if (!isClick) return {};
      return byHand(data, before, withToggled(planNow(before), from), from);
    },
  };
}
