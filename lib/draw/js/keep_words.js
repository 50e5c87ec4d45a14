// What a plan of recomputation takes, in sentences, and what its picture is about in words.
import { planLeaves } from "./keep_play.js";
import { rootOf, textOfPlan } from "./keep_plans.js";
import { amount, commas, plural, roundHalfEven } from "./numbers.js";

const CLOSE = 1e-9; // seconds that differ by less than this share are the same

// Tells in words which plan is chosen.
export function planInWords({ names, budgets }, { policy, k, budget }) {
  const count = names.length, around = (n) => `a checkpoint around every ${plural(n, "block")}`;
  if (policy === "none") return "everything kept";
  if (policy === "all") return "each block forgotten, in a checkpoint of its own";
  if (policy === "sqrt") return `${around(rootOf(count))} (√${count})`;
  if (policy === "every") return around(k);
  if (policy === "budget") return `the best plan within ${commas(budgets[budget].bytes)} bytes`;
  return "a plan made by hand";
}

// Gives the share of forward that is computed again, in per cent.
function percentAgain({ forward }, run) {
  const once = forward.reduce((sum, seconds) => sum + seconds, 0);
  return once ? roundHalfEven((100 * run.again) / once) : 0;
}

// Tells in sentences what the plan takes, and whether it meets its goals.
export function keepSentences(data, state, run, budget) {
  const { unit, par, byHand } = data, isByHand = state.policy === "hand";
  const plan = isByHand ? "this plan" : planInWords(data, state);
  const seconds = (time) => (unit ? amount(time, unit) : commas(Number(time.toPrecision(6))));
  const again = run.again
    ? `${percentAgain(data, run)} % of forward is computed again, which takes ${seconds(run.again)}`
    : "Nothing is computed again";
  const isGoal = budget && (byHand || state.policy !== "budget");
  return [
    `With ${plan}, ${amount(run.peak, "B")} are held at the peak.`,
    isGoal ? budgetSentence(run.peak, budget) : "",
    `${again}, and the step takes ${seconds(run.end)}.`,
    par ? `The goal is at most ${seconds(par)} computed again: it is ${parWords(run, par)}.` : "",
  ].filter(Boolean).join(" ");
}

function budgetSentence(peak, budget) {
  const over = peak - budget, all = amount(budget, "B");
  return over > 0
    ? `That is ${amount(over, "B")} more than the budget of ${all}.`
    : `That is within the budget of ${all}.`;
}

// Tells whether a step meets par.
export function parWords(run, par) {
  return isWithinPar(run, par) ? "met" : "not met";
}

// Whether a step computes no more again than par.
function isWithinPar({ again }, par) {
  return again <= par * (1 + CLOSE);
}

// Describes the plan in words, without times.
export function keepSummary(data, state, plan, run) {
  const after = heldAfter(data, plan);
  return [
    `keep: ${plural(data.names.length, "block")}, ${planInWords(data, state)}`,
    `  plan: ${textOfPlan(plan)}`,
    `  held: ${commas(after)} bytes after forward, at most ${commas(run.peak)} bytes`,
    `  computed again: ${percentAgain(data, run)} % of forward`,
  ].join("\n");
}

// What a plan holds when forward is over: of a checkpoint the input of its first block alone.
function heldAfter({ input, inside }, plan) {
  const bytes = (item) =>
    Array.isArray(item) ? input[planLeaves(item)[0]] : input[item] + inside[item];
  return plan.reduce((sum, item) => sum + bytes(item), 0);
}
