// Numbers as people write them: 1e6, 1,000,000, 12 MB, 3/4, 75 %, 2 * 4 * 1024, 2^20, 7B.
import { readProduct } from "./read_factors.js";

const smallPrefixes = { n: 1e-9, u: 1e-6, µ: 1e-6, μ: 1e-6, m: 1e-3, k: 1e3, K: 1e3 };
const largePrefixes = { M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
const binaryPrefixes = { ki: 2 ** 10, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };
const prefixes = { ...smallPrefixes, ...largePrefixes, ...binaryPrefixes };
const bigWords = { thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 };
// Units with prefixes, each under the names that people give it; the first one takes the prefixes.
const unitsKnown = [
  ["B", "byte", "bytes"],
  ["s", "sec", "second", "seconds"],
  ["B/s", "byte/s", "bytes/s", "Bps"],
  ["FLOP", "FLOPs"],
  ["FLOP/s", "FLOPS"],
];
const minutes = { min: 60, minute: 60, minutes: 60 };
const longTimes = { ...minutes, h: 3600, hour: 3600, hours: 3600, day: 86400, days: 86400 };

// Gives the value of `text` in `unit`, which is not below zero: {value}, or {wrong: a sentence that
// tells what to write instead}.
export function readNumber(text, unit = "") {
  const plain = text.trim().replaceAll(/[−–]/g, "-"), quoted = `“${text.trim()}”`;
  const examples = `12, 1e6, 1,000,000, 3/4 or ${isShare(unit) ? "75%" : `12 ${shortOf(unit)}`}`;
  if (!plain) return { wrong: `Write a number first: ${examples}.` };
  const { comma, isRead, value: number, rest } = readProduct(plain);
  if (comma) {
    const remedy = "write 3.5 with a point; a comma stands before three digits, as in 1,000";
    return { wrong: `${quoted}: ${remedy}.` };
  }
  if (!isRead) return { wrong: `${quoted} is not a number: write ${examples}.` };
  const scale = unitScale(rest, unit);
  if (scale === null) {
    const wanted = unit ? `a unit of ${unit}` : "a unit here";
    return { wrong: `“${rest}” is not ${wanted}: write ${examples}.` };
  }
  const isFraction = unit === "%" && plain.includes("/") && !/%|percent/.test(plain); // 3/4 is 75 %
  const value = number * scale * (isFraction ? 100 : 1);
  if (!Number.isFinite(value)) {
    return { wrong: `${quoted} is no finite number: write ${examples}.` };
  }
  if (value < 0) {
    return { wrong: `${quoted} is below zero, which no answer is: write ${examples}.` };
  }
  return { value: Number(value.toPrecision(15)) };
}

// How many of the question's units one of `suffix` is; null where it is none.
function unitScale(suffix, unit) {
  if (!suffix) return 1;
  if (suffix === "%" || suffix === "percent") return isShare(unit) ? (unit ? 1 : 0.01) : null;
  const [first, ...more] = suffix.split(/\s+/), after = more.join(" ");
  if (first in bigWords) {
    const scale = unitScale(after, unit);
    return scale && bigWords[first] * scale;
  }
  const own = unitsKnown.find((names) => sizeIn(unit, names)), asked = own && sizeIn(unit, own);
  const inKnown = own &&
    (sizeIn(suffix.replaceAll(/\s+(?=\S)/g, ""), own) ?? (own[0] === "s" && longTimes[suffix]));
  if (inKnown) return inKnown / asked;
  const spellings = unit ? [unit, unit.replace(/s$/, ""), `${unit}s`] : [];
  const names = spellings.map((name) => name.toLowerCase());
  if (names.includes(suffix.toLowerCase())) return 1;
  const isBillion = first === "B" && own?.[0] !== "B"; // 7B parameters
  const large = isBillion ? 1e9 : prefixes[first] >= 1000 ? prefixes[first] : null;
  if (large && (!after || names.includes(after.toLowerCase())) && (asked ?? 1) === 1) return large;
  return null;
}

// What one `text` is in the first of `names`: "MB" is 1e6 of "B". Bytes are read in any case.
function sizeIn(text, names) {
  const bytes = names[0][0] === "B", fold = (word) => (bytes ? word.toLowerCase() : word);
  if (names.some((name) => fold(name) === fold(text))) return 1;
  for (const name of names) {
    for (const [prefix, size] of Object.entries(prefixes)) {
      if ((!bytes || size >= 1000) && fold(prefix + name) === fold(text)) return size;
    }
  }
  return undefined;
}

// Whether a number in this unit may be a share.
function isShare(unit) {
  return !unit || unit === "%";
}

// The unit as an example writes it: MB for bytes.
function shortOf(unit) {
  if (unitsKnown[0].slice(0, 3).includes(unit)) return "MB";
  return ["s", "second", "seconds"].includes(unit) ? "ms" : unit;
}
