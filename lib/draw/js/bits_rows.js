// A number of a format as a row of its bits: sign, exponent and mantissa, each in its colour.
import { legendMarks } from "./axes.js";
import { lettersOn } from "./colours.js";
import { boxMark, textMark } from "./marks.js";
import { bitsOf, exponentsOf, fieldsOf, largestCode, valueOf } from "./number_format.js";
import { isWholeText, numberText, powerText, roughText } from "./number_text.js";
import { commas, plural } from "./numbers.js";

const BIT_WIDE = 30, BIT_LEAST = 17, BIT_GAP = 6, BITS_IN_ROW = 16; // px, px, px, bits

const fieldColour = {
  sign: () => style.comm.message,
  exponent: () => style.comm.all_gather,
  mantissa: () => style.compute["backward for weights"],
};

// Tells which field a bit belongs to, and what it is worth there; bits count from the left.
function bitPlace({ exponent, signed }, bit) {
  const first = signed ? 1 : 0;
  if (bit < first) return { field: "sign" };
  if (bit < first + exponent) {
    const worth = 2 ** (first + exponent - 1 - bit);
    return { field: "exponent", worth: commas(worth) };
  }
  return { field: "mantissa", worth: `1/${commas(2 ** (bit - first - exponent + 1))}` };
}

// Gives how wide a bit of a format is drawn: as wide as the widest of `formats` needs it.
export function bitWidth(formats, room) {
  const sizes = formats.map((format) => {
    const bits = bitsOf(format), size = (many) => Math.floor((room - 2 * BIT_GAP) / many);
    return size(bits) < BIT_LEAST ? size(Math.min(bits, BITS_IN_ROW)) : size(bits);
  });
  return Math.min(BIT_WIDE, ...sizes);
}

// Gives the boxes of a code, `tall` px high, in rows of 16 where they do not fit in one: {marks,
// y}. With `isPressed` each says that it can be pressed.
export function layBitRow(format, code, { y, left, right, wide, tall, isPressed }) {
  const text = code.toString(2).padStart(bitsOf(format), "0"), marks = [];
  const needed = bitsOf(format) * wide + 2 * BIT_GAP;
  const inRow = needed > right - left + 1 ? BITS_IN_ROW : text.length;
  let x = left, before = "";
  [...text].forEach((digit, bit) => {
    const place = bitPlace(format, bit), isNewRow = bit && bit % inRow === 0;
    if (isNewRow) [x, y] = [left, y + tall + 4];
    else if (before && before !== place.field) x += BIT_GAP;
    before = place.field;
    marks.push(...bitMarks(format, { ...place, digit, bit, isPressed }, x, y, wide, tall));
    x += wide;
  });
  return { marks, y: y + tall };
}

function bitMarks({ name }, { field, worth, digit, bit, isPressed }, x, y, wide, tall) {
  const shade = fieldColour[field](), fill = digit === "1" ? shade : style.paper;
  const what = field === "sign" ? `1 is a minus` : `1 is worth ${worth}`;
  const press = isPressed ? "\nPress it, or Enter, to flip it." : "";
  const about = () => `${name}, a bit of the ${field}: ${digit}\n${what}${press}`;
  const id = `${isPressed ? "bit" : "other"} ${bit}`;
  const letters = { fill: digit === "1" ? lettersOn(fill) : style.ink, align: "middle" };
  return [
    boxMark(x, y, wide - 1, tall, { fill, edge: shade, about, id }),
    textMark(x + (wide - 1) / 2, y + tall / 2, digit, letters),
  ];
}

// Gives a legend that says what each field of a code holds: {marks, y}.
export function layFields(format, code, left, y, right) {
  const keys = fieldsInWords(format, code).map(([field, text]) => [text, fieldColour[field]()]);
  return legendMarks(keys, left, y, right);
}

function fieldsInWords(format, code) {
  const { sign, exponent, fraction, magnitude } = fieldsOf(format, code);
  const { mantissa, bias, signed } = format, isSpecial = magnitude > largestCode(format);
  const words = signed ? [["sign", sign ? "sign −" : "sign +"]] : [];
  const power = Math.max(exponent, mantissa ? 1 : 0) - bias;
  const isSubnormal = !exponent && mantissa, isZero = isSubnormal && !fraction;
  const shown = isSpecial
    ? "all ones"
    : isZero
    ? "0: zero"
    : isSubnormal
    ? `0, read as 1: subnormal, ${powerText(power)}`
    : `${exponent} − ${bias}: ${powerText(power)}`;
  words.push(["exponent", `exponent ${shown}`]);
  if (!mantissa) return words;
  const part = `${commas(fraction)}/${commas(2 ** mantissa)}`;
  const value = isSpecial ? specialMantissa(format, fraction) : isSubnormal ? part : `1 + ${part}`;
  return [...words, ["mantissa", `mantissa ${value}`]];
}

function specialMantissa({ specials }, fraction) {
  if (specials === "nan") return "all ones: NaN";
  return fraction ? "not 0: NaN" : "0: infinity";
}

// Writes the number of a code as its fields give it: "FP16: 2⁻⁴ × (1 + 614/1,024) = 0.09997…".
export function equation(format, code) {
  const { sign, exponent, fraction } = fieldsOf(format, code), number = valueOf(format, code);
  const { mantissa, bias } = format, minus = sign ? "−" : "";
  const written = numberText(number).replace(/^-/, "−");
  if (!Number.isFinite(number)) return `${format.name}: ${written}`;
  const power = powerText(Math.max(exponent, mantissa ? 1 : 0) - bias);
  const part = `${commas(fraction)}/${commas(2 ** mantissa)}`;
  const factor = exponent || !mantissa ? (mantissa ? ` × (1 + ${part})` : "") : ` × ${part}`;
  const sure = isWholeText(number) ? "=" : "≈";
  return `${format.name}: ${minus}${power}${factor} ${sure} ${written}`;
}

// Gives a format's range in words: how precise it is, from where to where.
export function rangeInWords(format) {
  const { normal, least } = exponentsOf(format), { name, mantissa } = format;
  const largest = roughText(valueOf(format, largestCode(format)));
  const below = least < normal ? `, fewer down to ${powerText(least)}` : "";
  return `${name}: ${plural(mantissa + 1, "bit")} from ${powerText(normal)} to ${largest}${below}`;
}
