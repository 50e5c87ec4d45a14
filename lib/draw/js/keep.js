// A chain of blocks that keeps some of what backward needs and computes the rest again: what each
// plan holds and takes, with policies, and by hand.
import { legendMarks, wrapText } from "./axes.js";
import { colourOf } from "./colours.js";
import { copyText } from "./controls.js";
import { layFrontier, pointsOf } from "./keep_frontier.js";
import { blockDrag, keepByKey, keepRedo, keepUndo, pressPoint } from "./keep_hand.js";
import { againShade, KEEP, layChain } from "./keep_layout.js";
import { playPlan } from "./keep_play.js";
import { planOf, textOfPlan } from "./keep_plans.js";
import { keepSentences, keepSummary } from "./keep_words.js";
import { textMark } from "./marks.js";
import { amount } from "./numbers.js";

const KEEP_HINT = "Click a block to forget it or to keep it, and drag across blocks to put them " +
  "into one checkpoint. Or go to a block with the arrow keys: Enter forgets or keeps it, and ] " +
  "joins it with the next one or parts them. Control+Z takes a change back, and Control+Shift+Z " +
  "makes it again.";
const KEEP_POLICIES = [
  ["none", "keep all"],
  ["all", "forget each block"],
  ["sqrt", "√n"],
  ["every", "every k"],
  ["budget", "within a budget"],
  ["hand", "by hand"],
];

// Makes the picture from what lib/draw/keep.py gathers.
export function picture(data) {
  const points = pointsOf(data), planNow = (state) => chosenPlan(data, state);
  return {
    title: "Keep or compute again",
    summary: data.summary,
    state: { ...data.start, past: [], undone: [], message: "" },
    controls: keepControls(data, planNow),
    layout: (state, width) => layKeep(data, points, state, width),
    status: (state) => keepStatus(data, state),
    drag: blockDrag(data, planNow),
    press: (mark) => pressPoint(mark),
    key: keepByKey(data, planNow),
    undo: (state) => state.past.length && keepUndo(state),
    redo: (state) => state.undone.length && keepRedo(state),
  };
}

// The plan of the policy that is chosen, or the one that was made by hand.
function chosenPlan({ names, budgets }, { policy, k, budget, hand }) {
  if (policy === "hand") return hand;
  return policy === "budget" ? budgets[budget].plan : planOf(policy, names.length, k);
}

function keepControls(data, planNow) {
  const { names, budgets, byHand, begin } = data, isPlain = ({ past }) => !past.length;
  const copy = (state) => ({ message: copyPlan(planNow(state)) });
  const options = KEEP_POLICIES.filter(([name]) => name !== "budget" || budgets.length);
  const undo = { kind: "button", label: "Undo", press: keepUndo, off: isPlain };
  const anew = () => ({ ...begin, past: [], undone: [], message: "" });
  const redo = { kind: "button", label: "Redo", press: keepRedo, off: (s) => !s.undone.length };
  const reset = { kind: "reset", label: "Reset", press: anew };
  const show = (n) => amount(budgets[n]?.bytes ?? 0, "B"); // by hand there are none
  const isHidden = (name) => (state) => byHand || state.policy !== name;
  const slider = (name, label, more, of) => (state) => {
    return { kind: "slider", name, label, ...more, hidden: isHidden(of)(state) };
  };
  return [
    { kind: "choice", name: "policy", label: "Policy", options, hidden: byHand },
    slider("k", "Blocks in a checkpoint, k", { min: 1, max: names.length }, "every"),
    slider(
      "budget",
      "Budget in bytes",
      { min: 0, max: Math.max(0, budgets.length - 1), show },
      "budget",
    ),
    undo,
    redo,
    reset,
    { kind: "button", label: "Copy the plan", press: copy },
  ];
}

function copyPlan(plan) {
  return copyText(textOfPlan(plan))
    ? `Copied: ${textOfPlan(plan)}`
    : 'Not copied: the plan stands under "In words".';
}

function keepStatus({ unread }, { policy, past, message }) {
  const isTouched = policy === "hand" && past.length;
  return [unread, message, isTouched ? "" : KEEP_HINT].filter(Boolean).join(" ");
}

function layKeep(data, points, state, width) {
  const { left, right: edge } = KEEP, right = width - edge, plan = chosenPlan(data, state);
  const run = playPlan(data, plan), none = playPlan(data, planOf("none", data.names.length));
  const budget = state.policy === "budget" ? data.budgets[state.budget].bytes : data.limit;
  const longest = Math.max(run.end, playPlan(data, planOf("all", data.names.length)).end);
  const most = Math.max(none.peak, run.peak, Math.min(budget || 0, 1.2 * none.peak));
  const spans = { longest, most, allKept: none.peak, budget };
  const { marks, y: below, place } = layChain(data, plan, run, spans, width);
  let y = below;
  const words = keepSentences(data, state, run, budget);
  const wordsLeft = width < 480 ? 6 : left; // a narrow page needs the whole line
  for (const line of wrapText(words, right - wordsLeft)) {
    marks.push(textMark(wordsLeft, y, line));
    y += style.line;
  }
  const chart = layFrontier({ data, points, run, budget }, wordsLeft, left, right, y + 12);
  const legend = legendMarks(keysOfKeep(data, budget), wordsLeft, chart.y + 6, width);
  const summary = keepSummary(data, state, plan, run);
  const all = [...marks, ...chart.marks, ...legend.marks];
  return { marks: all, height: legend.y, summary, plan, run, place };
}

function keysOfKeep({ byHand, par }, budget) {
  const keys = [
    ["forward", colourOf("forward")],
    ["forward once more", againShade()],
    ["backward", colourOf("backward")],
    ["held", style.memory.activations],
    ["this plan", style.ink],
  ];
  if (byHand) return keys;
  return [...keys, ["best within a budget", style.faint]];
}
