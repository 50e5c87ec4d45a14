// Scales of axes: even steps, or powers of ten where the values span decades; the axis says which.
import { roundNumbers } from "./axes.js";

// Gives the scale that holds `values`, with at most about `most` round numbers on it where it is
// even: {ticks, part, value, words}; `part` tells which share of the axis lies below a value, and
// `value` is the other way round.
export function scaleOf(values, isLog, most = 6) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ticks = isLog ? powersOfTen(low, high) : evenNumbers(low, high, most);
  const on = isLog ? Math.log10 : (value) => value, back = isLog ? (t) => 10 ** t : (t) => t;
  const [from, to] = [on(ticks[0]), on(ticks.at(-1))];
  return {
    ticks,
    part: (value) => (on(value) - from) / (to - from),
    value: (part) => back(from + part * (to - from)),
    words: isLog ? " (logarithmic)" : "",
  };
}

// The powers of ten that hold two numbers between them.
function powersOfTen(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
  return Array.from({ length: Math.max(last, first + 1) - first + 1 }, (_, i) => 10 ** (first + i));
}

// Round numbers in even steps around two numbers; from 0 where that is not far.
function evenNumbers(low, high, most) {
  if (low > 0 && low < 0.5 * high) low = 0;
  const span = high - low || Math.abs(high) || 1, inside = roundNumbers(low, low + span, most);
  const step = inside.length > 1 ? inside[1] - inside[0] : span;
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  const number = (i) => Number(((first + i) * step).toPrecision(12));
  return Array.from({ length: Math.max(last, first + 1) - first + 1 }, (_, i) => number(i));
}
