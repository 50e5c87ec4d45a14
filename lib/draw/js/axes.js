// Numbers to pixels and words: the same as lib/draw/scales.py and style.py, to the letter.

// The name under which an operation has its colour: "send" is a message, "F" is forward.
export function family(op) {
  const name = style.same[op] || op;
  return name in style.compute || name in style.comm ? name : "compute";
}

export function colourOf(op) {
  const name = family(op);
  return style.compute[name] || style.comm[name];
}

export function piece(rank) {
  return style.pieces[rank % style.pieces.length];
}

// The colour of letters on top of a shade: whichever of black and white stands out more.
export function lettersOn(shade) {
  return shade.map((colour) => (light(colour) > 0.18 ? "#000000" : "#ffffff"));
}

function light(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// A shade mixed with paper: share 0 is paper, 1 the full colour.
export function tint(full, share) {
  return full.map((colour, dark) => {
    const parts = [1, 3, 5].map((i) => {
      const [c, p] = [colour, style.paper[dark]].map((v) => parseInt(v.slice(i, i + 2), 16));
      return even(p + (c - p) * share).toString(16).padStart(2, "0");
    });
    return `#${parts.join("")}`;
  });
}

// Python's round: half goes to the even neighbour.
export function even(value) {
  const low = Math.floor(value), rest = value - low;
  return rest === 0.5 ? low + (low % 2) : Math.round(value);
}

// A number with three digits, as Python's "{:.3g}" writes it where no exponent is needed: what lies
// in the middle (12.25) goes to the even neighbour.
export function three(value) {
  const [digits, power] = value.toExponential(60).split("e");
  const middle = /^(-?\d\.\d[02468])50*$/.exec(digits);
  return String(Number(middle ? `${middle[1]}e${power}` : value.toPrecision(3)));
}

// amount(2.5e6, "B") is "2.5 MB".
export function amount(number, unit) {
  if (!unit) return commas(number);
  if (!number) return `0 ${unit}`;
  const steps = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const [scale, prefix] = steps.find(([s]) => Math.abs(number) >= 0.9995 * s) || steps[6];
  return `${three(number / scale)} ${prefix}${unit}`;
}

// 1234567 is "1,234,567".
export function commas(number) {
  return spelled.format(Number(number));
}

const spelled = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 }); // slow to make

// Round numbers from `from` to `to`, few enough for `most`; 0 is among them where it is inside.
export function ticks(from, to, most = 6) {
  const span = to - from || 1;
  let step = 10 ** Math.floor(Math.log10(span / most) + 1e-12);
  step *= [1, 2, 5, 10, 20].find((m) => m * step * most >= span * (1 - 1e-12));
  const made = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + span * 1e-9; i++)
    made.push(Number((i * step).toPrecision(12)));
  return made;
}

// A time axis from `from` to `to` (a unit of "" for plain numbers) between two pixels.
export function axis(left, right, y, from, to, unit = "s") {
  const marks = [{ kind: "line", edge: style.faint, points: [[left, y], [right, y]], thick: 1 }];
  const most = Math.max(2, Math.min(6, Math.floor((right - left) / 90)));
  for (const tick of ticks(from, to, most)) {
    let x = left + ((tick - from) / (to - from)) * (right - left);
    marks.push({ kind: "line", edge: style.faint, points: [[x, y], [x, y + 4]], thick: 1 });
    const align = x > right - 24 ? "right" : "middle";
    if (align === "right") x = right;
    const text = tick ? amount(tick, unit) : "0";
    marks.push({ kind: "text", x, y: y + 14, fill: style.ink, text, align });
  }
  return marks;
}

// Swatches with names, as many to a line as fit: [[name, colour or null, hatched], ...].
// Without a colour and unhatched it is a dashed outline. Gives {marks, y} with y below them.
export function legend(keys, left, y, right) {
  const marks = [];
  let x = left;
  for (const [name, shade, hatched] of keys) {
    const wide = 22 + name.length * style.letter + 12;
    if (x > left && x + wide > right) (x = left), (y += style.line + 4);
    const edge = shade ? undefined : hatched ? style.faint : style.ink;
    const box = { kind: "box", x, y, w: 16, h: 12, fill: shade || undefined, edge, about: "" };
    marks.push({ ...box, hatch: Boolean(hatched), dash: !(shade || hatched) });
    marks.push({ kind: "text", x: x + 22, y: y + 6, fill: style.ink, text: name, align: "left" });
    x += wide;
  }
  return { marks, y: y + (keys.length ? style.line + 8 : 0) };
}

// A whole number of things: plural(1, "byte") is "1 byte", plural(3, "byte") "3 bytes".
export function plural(number, noun) {
  return `${commas(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// A text in lines that fit into `room` pixels; a word that is longer has a line of its own.
export function linesOf(text, room) {
  const made = [""];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = `${made.at(-1)} ${word}`.trim();
    if (made.at(-1) && longer.length * style.letter > room) made.push(word);
    else made[made.length - 1] = longer;
  }
  return made;
}
