// What becomes of numbers that are counted by power of two, when they are kept in a format.
import { exponentsOf } from "./number_format.js";

// What can become of a number, in the order of size.
export const FATES = ["zero", "subnormal", "normal", "overflow"];

// Tells what becomes of the numbers from 2 ** power up to twice as much.
export function fateOf(format, power) {
  const { normal, least, top } = exponentsOf(format);
  if (power < least - 1) return "zero"; // less than half of the smallest
  if (power < normal) return "subnormal";
  return power > top ? "overflow" : "normal";
}

// Counts what becomes of `counts`, [[power, count], ...], times 2 ** scale: {zero, subnormal,
// normal, overflow, total}.
export function countFates(format, counts, scale) {
  const fates = { zero: 0, subnormal: 0, normal: 0, overflow: 0, total: 0 };
  for (const [power, count] of counts) {
    fates[fateOf(format, power + scale)] += count;
    fates.total += count;
  }
  return fates;
}

// Gives the largest scale, as a power of two, at which nothing overflows.
export function safeScale(format, counts) {
  return exponentsOf(format).top - Math.max(...counts.map(([power]) => power));
}

// Names what becomes of a number.
export function fateName({ mantissa, specials }, fate) {
  if (fate === "zero") return mantissa ? "becomes 0" : "becomes the smallest number";
  if (fate === "overflow") return specials === "none" ? "too large: saturates" : "overflows";
  return fate === "normal" ? "normal" : "subnormal: fewer bits";
}

// Gives the colour of what becomes of numbers; none where they are lost, which is hatched.
export function fateColour(fate) {
  return {
    subnormal: style.compute.backward,
    normal: style.compute.forward,
    overflow: style.comm.all_to_all,
  }[fate];
}
