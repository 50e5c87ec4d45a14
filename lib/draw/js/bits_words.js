// What the picture of bits says in words: its heading, its sentences and its summary, which is that
// of lib/draw/bits.py.
import { countFates, FATES, safeScale } from "./bits_counts.js";
import { bitText, codeAt, gapPower, largestCode, orderOf, valueOf } from "./number_format.js";
import {
  errorText,
  numberText,
  powerText,
  roughText,
  shareText,
  wholeShareText,
} from "./number_text.js";
import { commas } from "./numbers.js";

// Names the number and its formats.
export function bitsHeading({ number, formats: [own, other] }) {
  const beside = other ? ` and, beside it, in ${other.name}` : "";
  return `${numberText(number)} in ${own.name}${beside}.`;
}

// Tells in a sentence what the number becomes in each format.
export function bitsResult({ number, points }) {
  const parts = points.map(({ format, code }) => {
    const value = valueOf(format, code), isExact = Object.is(value, number);
    return `${isExact ? "is exact" : `becomes ${numberText(value)}`} in ${format.name}`;
  });
  const all = parts.join(" and ").replace(/^(becomes|is exact)(.*) and \1/, "$1$2 and");
  return `${numberText(number)} ${all}.`;
}

// Tells how far off the number is in a format, where it is.
export function errorWords(number, { format, code }) {
  const value = valueOf(format, code), off = (value - number) / number;
  if (!Number.isFinite(value) || !Number.isFinite(off) || !value || !off) return "";
  return `, off by ${errorText(off)}`;
}

// Tells what lies beside the number in a format, in a sentence.
export function neighbourWords({ format, code }) {
  const value = valueOf(format, code), { name } = format;
  if (!Number.isFinite(value)) {
    const largest = `The largest number of ${name} is ${roughText(largestOf(format))}`;
    return format.specials === "nan"
      ? `${largest}, and it has no infinity: a cast that does not saturate gives NaN.`
      : `${largest}.`;
  }
  const [below, above] = neighbours(format, code).map((one) => one ?? "none");
  const gap = gapPower(format, code);
  return `Neighbours: ${below} and ${above}, step ${powerText(gap)}.`;
}

function largestOf(format) {
  return valueOf(format, largestCode(format));
}

// The next number below and above, written out; undefined where there is none.
function neighbours(format, code) {
  return [-1, 1].map((by) => {
    const next = codeAt(format, orderOf(format, code) + by);
    return next === undefined ? undefined : numberText(valueOf(format, next));
  });
}

// Tells in sentences what becomes of the counted numbers at a scale.
export function fateSentences({ counts, what }, format, scale) {
  const fates = countFates(format, counts, scale);
  const shares = FATES.filter((fate) => fates[fate] || fate === "zero" || fate === "overflow")
    .map((fate) => `${shareText(fates[fate], fates.total)} ${verbOf(format, fate)}`);
  const safe = safeScale(format, counts);
  const at = `At a loss scale of ${scale ? powerText(scale) : 1}`;
  const most = safe < 0
    ? "Some are too large even without a scale."
    : `Nothing is too large up to a loss scale of ${safe ? powerText(safe) : 1}.`;
  return `${at}, of ${commas(fates.total)} ${what}, ${listed(shares)} in ${format.name}. ${most}`;
}

function verbOf(format, fate) {
  return {
    zero: format.mantissa ? "become 0" : "become the smallest number",
    subnormal: "are subnormal",
    normal: "are normal",
    overflow: format.specials === "none" ? "saturate" : "overflow",
  }[fate];
}

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

// Describes the number, its neighbours and what becomes of the counted numbers, in words.
export function bitsSummary(data, { number, points, scale }) {
  const [{ format, code }, ...others] = points, value = valueOf(format, code);
  const lines = [
    `bits: ${numberText(number)} in ${format.name} is ${bitText(format, code)}`,
    `  value: ${numberText(value)}`,
  ];
  if (Number.isFinite(value)) {
    const [below, above] = neighbours(format, code).map((one) => one ?? "none");
    lines.push(
      `  neighbours: ${below} and ${above}, the step away from 0 is 2^${gapPower(format, code)}`,
    );
  }
  for (const other of others) {
    const text = numberText(valueOf(other.format, other.code));
    lines.push(
      `  beside it in ${other.format.name}: ${bitText(other.format, other.code)}, ${text}`,
    );
  }
  if (!data.counts.length) return lines.join("\n");
  const fates = countFates(format, data.counts, scale);
  const shares = FATES.map((fate) =>
    `${wholeShareText(fates[fate], fates.total)} ${verbOf(format, fate)}`
  );
  const times = scale ? ` times 2^${scale}` : "";
  return [...lines, `  of ${commas(fates.total)} ${data.what}${times}: ${shares.join(", ")}`]
    .join("\n");
}
