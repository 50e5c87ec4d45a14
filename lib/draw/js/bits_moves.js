// How a reader changes the number of the picture of bits: by typing it, by flipping its bits, by
// going to the next one, and by taking one from the logarithmic chart.
import { bitsOf, codeAt, codeOf, orderOf, valueOf } from "./number_format.js";
import { readProduct } from "./read_factors.js";

const LEAST_DRAG = 6; // px along the chart from which a pointer drags and does not scroll

// Tells what is shown: the number, and its code in each format. A code that was made by flipping
// bits stays as it is in its format; it need not be the one that the number would be rounded to.
export function bitsOfState(data, { number, format, other, code, scale }) {
  const names = [format, ...(other && other !== format ? [other] : [])];
  const points = names.map((name) => {
    const one = data.formats[name], isKept = code && code.format === name;
    return { format: one, code: isKept ? code.code : codeOf(one, number) };
  });
  return { number, points, scale, formats: points.map((one) => one.format) };
}

// Reads what was typed: 0.1, 2^-24, 1/3, 65,504, inf or nan; gives what changes.
export function readBits(text) {
  const plain = text.trim().replaceAll(/[−–]/g, "-"), isNegative = plain.startsWith("-");
  const magnitude = magnitudeOf(plain.replace(/^[+-]\s*/, ""));
  if (magnitude === undefined) {
    const message = `“${text.trim()}” is not a number: write 0.1, 2^-24, 1/3, 65,504 or inf.`;
    return { message };
  }
  return { number: isNegative ? -magnitude : magnitude, code: null, message: "" };
}

function magnitudeOf(text) {
  const word = { inf: Infinity, infinity: Infinity, nan: NaN }[text.toLowerCase()];
  if (word !== undefined || /^[+-]/.test(text)) return word;
  const { isRead, value, rest } = readProduct(text);
  return isRead && !rest ? value : undefined;
}

// The number of a code takes the place of the one before.
function withCode({ formats }, { format }, code) {
  return { code: { format, code }, number: valueOf(formats[format], code), message: "" };
}

// Gives what leads to the next number of the format above or below, from infinity to the largest;
// nothing where there is none.
export function besideOf(data, state, by) {
  const [{ format, code }] = bitsOfState(data, state).points, value = valueOf(format, code);
  if (Number.isNaN(value)) return null;
  const next = codeAt(format, orderOf(format, code) + by);
  return next === undefined ? null : withCode(data, state, next);
}

// Gives what flipping the bit of a mark changes; nothing where it is no bit of the first format.
export function flippedBit(data, state, mark) {
  const [, bit] = /^bit (\d+)$/.exec(mark?.id) || [];
  if (bit === undefined) return null;
  const [{ format, code }] = bitsOfState(data, state).points;
  const worth = 2 ** (bitsOf(format) - 1 - Number(bit));
  const isOne = Math.floor(code / worth) % 2 === 1;
  return withCode(data, state, code + (isOne ? -worth : worth));
}

// Gives what a key changes: Enter or the space bar flips the bit that the keyboard is at, + and -
// go to the next number.
export function bitsByKey(data, key, state, mark) {
  if (key === "Enter" || key === " ") return flippedBit(data, state, mark);
  if (key === "+" || key === "-") return besideOf(data, state, key === "+" ? 1 : -1) || {};
  return null;
}

// A click on the logarithmic chart takes the number that lies there, and dragging along it goes on.
export function chartDrag(data) {
  let held = null; // where the pointer began, and whether it drags
  return {
    start(mark, at, state, { axis: { top, bottom, start, right } }) {
      const isOn = at.y >= top && at.y <= bottom && at.x >= start && at.x <= right;
      held = isOn ? { at, hasMoved: false } : null;
      return isOn;
    },
    move(at, state, { axis }) {
      const [dx, dy] = [Math.abs(at.x - held.at.x), Math.abs(at.y - held.at.y)];
      if (dx > LEAST_DRAG && dx > dy) held.hasMoved = true;
      return held.hasMoved ? numberAt(data, axis, at, state) : {};
    },
    end(at, state, { axis }) {
      const isClick = Math.hypot(at.x - held.at.x, at.y - held.at.y) < LEAST_DRAG;
      return isClick ? numberAt(data, axis, at, state) : {};
    },
  };
}

// The number of the format that lies where the pointer is; its sign stays.
function numberAt(data, axis, { x }, state) {
  const power = axis.powerAt(Math.min(axis.right, Math.max(axis.start, x)));
  const format = data.formats[state.format], way = state.number < 0 ? -1 : 1;
  const code = codeOf(format, way * 2 ** power);
  return Number.isFinite(valueOf(format, code)) ? withCode(data, state, code) : {};
}
