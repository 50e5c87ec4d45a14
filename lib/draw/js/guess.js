// A question and a place to commit an answer; and its reveal, which tells how far off it was.
// Answers are kept, by question, until the page is closed. As lib/draw/guess.py draws them.
// needs: reading
import { commas, even, lettersOn, linesOf, tint, amount } from "./axes.js";
import { kept } from "./frame.js";
import { readNumber } from "./reading.js";

const GUESSED = "many-ranks-guessed"; // what a page hears when somebody has committed an answer
const asked = style.compute.forward, told = style.compute["backward for weights"], mine = style.comm.all_reduce;

export function picture(data) {
  const { question } = data, reveals = "answer" in data;
  const name = `guess: ${question}`;
  const triesOf = () => kept.get(name) || [];
  let hear = null;
  return {
    title: reveals ? "The answer" : "Your guess",
    summary: data.summary,
    below: true,
    wordless: !reveals,
    state: { tries: triesOf(), open: !triesOf().length, wrong: "" },
    controls: reveals ? [] : guessControls(data, (value) => {
      kept.set(name, [...triesOf(), value]);
      dispatchEvent(new CustomEvent(GUESSED, { detail: name }));
      return { wrong: "" };
    }), // prettier-ignore
    layout: (state, width) => (reveals ? layReveal : layQuestion)(data, state, width),
    begin(set) {
      hear = ({ detail }) => detail === name && set({ tries: triesOf(), open: false });
      addEventListener(GUESSED, hear);
      set({ tries: triesOf(), open: !triesOf().length });
    },
    end: () => removeEventListener(GUESSED, hear),
  }; // prettier-ignore
}

function guessControls({ choices, unit }, commit) {
  let empty = false; // the entry begins anew
  const done = (value) => (refocus(), commit(value));
  const entry = (state) => ({
    kind: "entry", name: "mine", label: `Your answer${unit ? ` in ${unit}` : ""}`, action: "Commit",
    hidden: !state.open, given: () => (empty ? ((empty = false), "") : undefined),
    enter(text) {
      const { value, wrong } = readNumber(text, unit);
      return wrong ? { wrong } : done(value);
    },
  }); // prettier-ignore
  const button = (label) => (state) =>
    ({ kind: "button", label, hidden: !state.open, press: () => done(label) });
  const again = (state) =>
    ({ kind: "button", label: "Guess again", hidden: state.open, press: () => {
      refocus();
      empty = true;
      return { open: true };
    } }); // prettier-ignore
  return [...(choices.length ? choices.map(button) : [entry]), again];
}

// Who had the keyboard keeps it: what was pressed is hidden, what comes in its place gets it.
function refocus() {
  const root = document.activeElement?.shadowRoot || document;
  const desk = root.activeElement?.closest(".mrom-controls");
  const give = () => desk?.querySelector(":is(input, button):not([hidden], [hidden] *)")?.focus();
  requestAnimationFrame(() => requestAnimationFrame(give));
}

const sheetOf = { left: 16, top: 14, box: 26 }; // px, as in guess.py

function layTexts(texts, width) {
  const marks = [];
  let y = sheetOf.top;
  for (const [text, fill] of texts) {
    for (const line of linesOf(text, width - sheetOf.left - 8)) {
      marks.push({ kind: "text", x: sheetOf.left, y, fill, text: line, align: "left" });
      y += style.line;
    }
    y += 4;
  }
  return { marks, y };
}

function accent(height, fill, about) {
  return { kind: "box", x: 0, y: 0, w: 4, h: height, fill, about, id: "all" };
}

function layQuestion({ question, hint, unit }, { tries, open, wrong }, width) {
  const texts = open ? [[question, style.ink], [hint, style.faint]] : [[question, style.ink]];
  const { marks, y } = layTexts(texts, width);
  const says = tries.length ? `You say ${sayGuess(tries.at(-1), unit)}. It counts: read on.` : "";
  const about = open ? `${question}\n${hint}` : question;
  return { marks: [accent(y, asked, about), ...marks], height: y, status: wrong || (open ? "" : says) };
}

function layReveal(data, { tries }, width) {
  const { question, told: tells, choices, answer, unit } = data, last = tries.at(-1);
  const said = tries.length ? sayReveal(tries, answer, unit) : "";
  const texts = [[question, style.faint], [tells, style.ink], ...(said ? [[said, style.ink]] : [])];
  const made = layTexts(texts, width);
  if (choices.length) add(layChoices(choices, answer, last, made.y + 4, width));
  else if (answer > 0 && tries.length && tries.every((value) => value > 0))
    add(layDistances(tries, answer, unit, made.y, width));
  function add({ marks, y }) {
    made.marks.push(...marks);
    made.y = y;
  }
  const summary = [question, tells, said].filter(Boolean).join("\n");
  return { marks: [accent(made.y, told, summary), ...made.marks], height: made.y, summary };
}

// The choices: the right one is filled, the reader's is marked.
function layChoices(choices, answer, last, y, width) {
  const marks = [], low = sheetOf.box + 24;
  let x = sheetOf.left, under = 0;
  for (const choice of choices) {
    const w = choice.length * style.letter + 20, right = choice === answer, yours = choice === last;
    if (x > sheetOf.left && x + w > width - 8) (x = sheetOf.left), (y += low), (under = 0);
    const fill = right ? told : undefined, edge = right ? told : style.faint;
    const about = [choice, right && "the answer", yours && "you"].filter(Boolean).join(": ");
    marks.push({ kind: "box", x, y, w, h: sheetOf.box, fill, edge, about, id: choice });
    marks.push({ kind: "text", x: x + w / 2, y: y + sheetOf.box / 2, text: choice, align: "middle",
      fill: right ? lettersOn(told) : style.ink }); // prettier-ignore
    if (yours) {
      under = 18;
      marks.push({ kind: "box", x: x - 3, y: y - 3, w: w + 6, h: sheetOf.box + 6, edge: mine, thick: 2 });
      marks.push({ kind: "text", x: x + w / 2, y: y + sheetOf.box + 14, text: "you", align: "middle", fill: style.ink });
    }
    x += w + 10;
  }
  return { marks, y: y + sheetOf.box + 10 + under };
}

// Guesses and the answer on a line where each step is ten times: how far off one was can be seen.
function layDistances(tries, answer, unit, y, width) {
  const off = tries.map((value) => Math.log10(value / answer)), far = Math.max(...off.map(Math.abs));
  const decades = Math.min(8, Math.max(2, Math.ceil(far + 0.2)));
  const left = sheetOf.left + 30, right = width - 38, middle = (left + right) / 2;
  const step = (right - left) / 2 / decades, base = y + 42;
  const place = (power) => middle + Math.max(-decades, Math.min(decades, power)) * step;
  const near = Math.log10(2) * step;
  // 1. the line: within a factor of 2, and ten times after ten times
  const marks = [
    { kind: "box", x: middle - near, y: base - 12, w: 2 * near, h: 24, fill: tint(told, 0.25), about: "within a factor of 2", id: "near" },
    { kind: "line", edge: style.faint, points: [[left, base], [right, base]], thick: 1 },
  ]; // prettier-ignore
  const every = Math.ceil(62 / step);
  for (let power = -decades; power <= decades; power++) {
    const x = place(power), plain = power % every === 0;
    marks.push({ kind: "line", edge: style.faint, points: [[x, base - 4], [x, base + 4]], thick: 1 });
    const text = power ? `${power > 0 ? "×" : "÷"} ${tenTo(Math.abs(power))}` : "the answer";
    if (plain || !power) marks.push({ kind: "text", x, y: base + 22, fill: power ? style.faint : style.ink, text, align: "middle" });
  } // prettier-ignore
  // 2. how far it is from what was said last, what was said before, and where the answer stands
  const x = place(off.at(-1)), count = tries.length - 1;
  marks.push({ kind: "line", edge: mine, points: [[x, base], [middle, base]], thick: 3 });
  off.slice(0, -1).forEach((power, n) => marks.push({
    kind: "box", x: place(power) - 5, y: base - 5, w: 10, h: 10, fill: style.paper, edge: mine, thick: 1.5,
    about: `your guess ${n + 1}: ${sayGuess(tries[n], unit)}`, id: n,
  })); // prettier-ignore
  marks.push({ kind: "box", x: middle - 2, y: base - 14, w: 4, h: 28, fill: told, about: `the answer: ${sayGuess(answer, unit)}`, id: "answer" });
  marks.push({ kind: "box", x: x - 6, y: base - 6, w: 12, h: 12, fill: mine, edge: style.paper, about: `you: ${sayGuess(tries.at(-1), unit)}`, id: count });
  marks.push({ kind: "text", x, y: base - 24, fill: style.ink, text: "you", align: "middle" });
  return { marks, y: base + 40 };
}

function tenTo(power) {
  return power < 4 ? commas(10 ** power) : `10${"⁴⁵⁶⁷⁸"[power - 4]}`;
}

function sayReveal(tries, answer, unit) {
  const far = (value) => howFar(value, answer, unit);
  const before = tries.slice(0, -1).map((value) => `${sayGuess(value, unit)} (${far(value)})`);
  const last = `You said ${sayGuess(tries.at(-1), unit)}: ${far(tries.at(-1))}.`;
  return last + (before.length ? ` Before that: ${before.join(", ")}.` : "");
}

// "right" within 1 %, "12 % too much", "3.2 times too little", "3 bytes too little" where one is 0.
export function howFar(value, answer, unit) {
  if (typeof answer === "string") return value === answer ? "right" : "not this time";
  if (Math.abs(value - answer) <= 0.01 * Math.abs(answer)) return "right";
  const way = value > answer ? "too much" : "too little";
  if (value <= 0 || answer <= 0) return `${sayGuess(Math.abs(value - answer), unit)} ${way}`;
  const ratio = Math.max(value / answer, answer / value);
  if (ratio < 1.5) return `${even(100 * Math.abs(value / answer - 1))} % ${way}`;
  if (ratio >= 1e9) return `more than a billion times ${way}`;
  return `${commas(Number(ratio.toPrecision(2)))} times ${way}`;
}

const plainUnits = ["B", "s", "B/s", "FLOP", "FLOP/s"]; // that take a prefix: 12.3 ms

// A number as it is said: "3,000,000 bytes", "1 byte", "12.3 ms", "0.75", "1.5 × 10^20".
export function sayGuess(value, unit) {
  if (typeof value === "string") return value;
  const size = Math.abs(value), whole = Number.isInteger(value);
  if (plainUnits.includes(unit) && !whole && size >= 1e-9 && size < 1e13) return amount(value, unit);
  let number;
  if (size < 1e15 && (whole || size >= 1000)) number = commas(even(value));
  else if (size >= 1e-4 && size < 1000) number = String(Number(value.toPrecision(4)));
  else {
    const [digits, power] = value.toExponential(3).split("e");
    number = `${Number(digits)} × 10^${Number(power)}`;
  }
  const one = number === "1" && unit.length > 2 && unit.endsWith("s") ? unit.slice(0, -1) : unit;
  return `${number} ${one}`.trim();
}
