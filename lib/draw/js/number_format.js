// Floating-point formats, as lib/predict/number_formats.py has them: {name, exponent, mantissa,
// bias, specials, signed}. Codes have up to 32 bits, so they are taken apart by division.
import { roundHalfEven } from "./numbers.js";

// Gives how many bits a number of the format has.
export function bitsOf({ exponent, mantissa, signed }) {
  return exponent + mantissa + (signed ? 1 : 0);
}

// Gives the code of the largest number.
export function largestCode({ exponent, mantissa, specials }) {
  if (specials === "ieee") return (2 ** exponent - 1) * 2 ** mantissa - 1;
  return 2 ** (exponent + mantissa) - 1 - (specials === "nan" ? 1 : 0);
}

// Gives the exponents of the smallest normal number, of the smallest number of all, and of the
// largest: each is 2 to this power, or for `top` at least that and less than twice as much.
export function exponentsOf(format) {
  const { exponent, mantissa, bias } = format, normal = (mantissa ? 1 : 0) - bias;
  const field = Math.floor(largestCode(format) / 2 ** mantissa) % 2 ** exponent;
  return { normal, least: normal - mantissa, top: field - bias };
}

// Takes a code apart: {sign, exponent, fraction, magnitude}, each as a whole number.
export function fieldsOf(format, code) {
  const { exponent, mantissa } = format, rest = 2 ** (exponent + mantissa);
  const magnitude = code % rest;
  return {
    sign: Math.floor(code / rest),
    exponent: Math.floor(magnitude / 2 ** mantissa),
    fraction: magnitude % 2 ** mantissa,
    magnitude,
  };
}

// Gives the number of a code, exactly.
export function valueOf(format, code) {
  const { mantissa, bias, specials } = format, fields = fieldsOf(format, code);
  const way = fields.sign ? -1 : 1;
  if (fields.magnitude > largestCode(format)) {
    return specials === "ieee" && !fields.fraction ? way * Infinity : NaN;
  }
  if (!fields.exponent && mantissa) return way * fields.fraction * 2 ** (1 - bias - mantissa);
  return way * (2 ** mantissa + fields.fraction) * 2 ** (fields.exponent - bias - mantissa);
}

// Gives the power of two just below a magnitude, or the magnitude's own.
export function powerBelow(magnitude) {
  let power = Math.floor(Math.log2(magnitude)); // which rounds, near a power of two
  if (2 ** power > magnitude) power--;
  if (2 ** (power + 1) <= magnitude) power++;
  return power;
}

// Gives the code of the nearest number, of the even one where two are equally near. What is too
// large becomes infinity, NaN where there is no infinity, and the largest number where there is
// neither.
export function codeOf(format, number) {
  const { exponent, mantissa, specials, signed } = format, largest = largestCode(format);
  const isNegative = number < 0 || Object.is(number, -0);
  const sign = signed && isNegative ? 2 ** (exponent + mantissa) : 0;
  const limit = specials === "none" ? largest : largest + 1;
  if (Number.isNaN(number)) return specials === "ieee" ? limit + 2 ** (mantissa - 1) : limit;
  const magnitude = Math.abs(number), { normal } = exponentsOf(format);
  if (magnitude === Infinity) return sign + limit;
  const power = magnitude ? Math.max(powerBelow(magnitude), normal) : normal;
  // In units of the last bit the number is a whole one after rounding. Where it has grown to the
  // next power of two, the sum below carries into the exponent.
  let units = roundHalfEven(magnitude / 2 ** (power - mantissa));
  if (!mantissa) units = Math.max(units, 1) - 1; // no code is zero
  return sign + Math.min(units + (power - normal) * 2 ** mantissa, limit);
}

// Gives the place of a code among all numbers, 0 for zero; the next larger number is at 1 more.
export function orderOf(format, code) {
  const { sign, magnitude } = fieldsOf(format, code);
  return sign ? -magnitude : magnitude;
}

// Gives the code at a place, undefined where the format has no finite number there.
export function codeAt(format, order) {
  const { exponent, mantissa, signed } = format, magnitude = Math.abs(order);
  if (magnitude > largestCode(format) || (order < 0 && !signed)) return undefined;
  return magnitude + (order < 0 ? 2 ** (exponent + mantissa) : 0);
}

// Gives the power of two that is the distance from a finite code to the next one away from zero.
export function gapPower(format, code) {
  const { exponent } = fieldsOf(format, code), { mantissa, bias } = format;
  return Math.max(exponent, mantissa ? 1 : 0) - bias - mantissa;
}

// Gives how many significant bits the numbers from 2 ** power up have: fewer among the subnormals,
// and 0 where there is none.
export function precisionAt(format, power) {
  const { normal, least, top } = exponentsOf(format);
  if (power < least || power > top) return 0;
  return Math.min(power, normal) - least + 1;
}

// Writes a code as its bits, the fields apart: "0 01011 1001100110".
export function bitText(format, code) {
  const { exponent, mantissa, signed } = format, all = bitsOf(format);
  const text = code.toString(2).padStart(all, "0"), first = signed ? 1 : 0;
  const parts = [text.slice(0, first), text.slice(first, first + exponent)];
  return [...parts, mantissa ? text.slice(-mantissa) : ""].filter(Boolean).join(" ");
}

// Gives the finite number of the format that is nearest to a number: its largest for what is
// larger.
export function nearestFinite(format, number) {
  const most = valueOf(format, largestCode(format));
  const least = format.signed ? -most : valueOf(format, 0);
  return valueOf(format, codeOf(format, Math.min(most, Math.max(least, number))));
}
