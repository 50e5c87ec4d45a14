// Numbers as a reader sees them, to the letter as Python writes them (lib/draw/parts/style.py).

// Rounds to a whole number as Python's round does: half goes to the even neighbour.
export function roundHalfEven(value) {
  const low = Math.floor(value), rest = value - low;
  return rest === 0.5 ? low + (low % 2) : Math.round(value);
}

// A number with three digits, as Python's "{:.3g}" writes it where no exponent is needed: what lies
// in the middle (12.25) goes to the even neighbour.
function threeDigits(value) {
  const [digits, power] = value.toExponential(60).split("e");
  const middle = /^(-?\d\.\d[02468])50*$/.exec(digits);
  return String(Number(middle ? `${middle[1]}e${power}` : value.toPrecision(3)));
}

const amountSteps = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
  [1e-3, "m"],
  [1e-6, "µ"],
  [1e-9, "n"],
];

// Writes a number in three digits with its prefix: amount(2.5e6, "B") is "2.5 MB"; 1,000 without a
// unit.
export function amount(number, unit) {
  if (!unit) return commas(number);
  if (!number) return `0 ${unit}`;
  const reaches = ([step]) => Math.abs(number) >= 0.9995 * step;
  const [scale, prefix] = amountSteps.find(reaches) || amountSteps.at(-1);
  return `${threeDigits(number / scale)} ${prefix}${unit}`;
}

// Writes a number with its thousands apart: 1234567 is "1,234,567".
export function commas(number) {
  return grouped.format(Number(number));
}

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 }); // slow to make

// Writes a number of things: plural(1, "byte") is "1 byte", plural(3, "byte") is "3 bytes".
export function plural(number, noun) {
  return `${commas(number)} ${noun}${number === 1 ? "" : "s"}`;
}
