// Numbers of any size as a reader sees them, powers of two, and shares.
import { commas, roundHalfEven } from "./numbers.js";

const MOST_DIGITS = 15; // of a number that is written out

// Writes a number with up to 15 digits, as lib/draw/parts/words.py does: 65,504 or
// 5.96046447753906e-8.
export function numberText(number) {
  if (Number.isNaN(number)) return "NaN";
  const sign = number < 0 || Object.is(number, -0) ? "-" : "", magnitude = Math.abs(number);
  if (magnitude === Infinity) return `${sign}infinity`;
  const [written, exponent] = magnitude.toExponential(MOST_DIGITS - 1).split("e");
  const digits = written.replace(".", "").replace(/0+$/, "") || "0", power = Number(exponent);
  if (power < -4 || power >= MOST_DIGITS) {
    const rest = digits.slice(1);
    return `${sign}${digits[0]}${rest && "."}${rest}e${power}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = commas(digits.slice(0, power + 1).padEnd(power + 1, "0"));
  const rest = digits.slice(power + 1);
  return `${sign}${whole}${rest && "."}${rest}`;
}

// Tells whether numberText leaves nothing of a number out.
export function isWholeText(number) {
  return Number(number.toExponential(MOST_DIGITS - 1)) === number;
}

// Writes a number with four digits, where a reader needs no more of it: about 6.104e-5.
export function roughText(number) {
  const rough = Number(number.toPrecision(4));
  return Number.isInteger(number) && number < 1e6 ? numberText(number) : numberText(rough);
}

const raisedDigits = { "-": "⁻", ...Object.fromEntries([..."⁰¹²³⁴⁵⁶⁷⁸⁹"].map((d, i) => [i, d])) };

// Writes a power of two: 2⁻²⁴.
export function powerText(power) {
  return `2${[...String(power)].map((digit) => raisedDigits[digit]).join("")}`;
}

// Writes a share in per cent, with one digit after the point; what is neither nothing nor all is
// never written as if it were.
export function shareText(part, all) {
  const thousandths = roundHalfEven((1000 * part) / (all || 1));
  if (part && !thousandths) return "under 0.1 %";
  if (part < all && thousandths === 1000) return "over 99.9 %";
  return `${commas(thousandths / 10)} %`;
}

// The same in whole per cent.
export function wholeShareText(part, all) {
  const hundredths = roundHalfEven((100 * part) / (all || 1));
  if (part && !hundredths) return "under 1 %";
  if (part < all && hundredths === 100) return "over 99 %";
  return `${hundredths} %`;
}

// Writes a relative error in per cent with two digits, for how far off a rounded number is.
export function errorText(error) {
  return `${numberText(Number((100 * Math.abs(error)).toPrecision(2)))} %`;
}
