// A question and a place for a guess; and its reveal, which is covered until one is entered, or the
// reader asks to be shown it, and then tells how far off the guess was.
import { addAnswer, forgetAnswers, keptOf, onAnswer, showAnswer } from "./answers.js";
import { wrapText } from "./axes.js";
import { lettersOn, tint } from "./colours.js";
import { refocusControls } from "./controls.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { amount, commas, roundHalfEven } from "./numbers.js";
import { readNumber } from "./read_number.js";

const ASKED_COLOUR = style.compute.forward, OWN_COLOUR = style.comm.all_reduce;
const REVEALED_COLOUR = style.compute["backward for weights"];

// Makes the picture of a question, or of its reveal, from what lib/draw/guess.py gathers.
export function picture(data) {
  const { question } = data, isReveal = "answer" in data;
  const stateNow = () => {
    const { tries, isShown } = keptOf(question);
    return { tries, open: !tries.length, covered: !tries.length && !isShown };
  };
  const keep = (value) => {
    addAnswer(question, value);
    return { wrong: "" };
  };
  let end = null;
  return {
    title: isReveal ? "The answer" : "Your guess",
    summary: isReveal && stateNow().covered ? coveredText(question) : data.summary,
    printed: data.told,
    isBelow: true,
    isText: !isReveal,
    words: LEAST_WORDS,
    least: leastOf(data),
    state: { ...stateNow(), wrong: "" },
    controls: isReveal ? revealControls(question) : guessControls(data, keep),
    layout: (state, width, seen = width) =>
      isReveal ? layReveal(data, state, width, seen) : layQuestion(data, state, seen),
    begin(set) {
      end = onAnswer(question, () => set(stateNow()));
      set(stateNow());
    },
    end: () => end(),
  };
}

// An entry or a button for each choice, and one to guess again.
function guessControls({ choices, unit }, keep) {
  let isEmptied = false; // the entry begins anew
  const enter = (text) => {
    const { value, wrong } = readNumber(text, unit);
    return wrong ? { wrong } : done(value);
  };
  const done = (value) => {
    refocusControls();
    return keep(value);
  };
  const given = () => {
    const text = isEmptied ? "" : undefined;
    isEmptied = false;
    return text;
  };
  const again = () => {
    refocusControls();
    isEmptied = true;
    return { open: true };
  };
  const label = `Your guess${unit ? ` (${unit})` : ""}`;
  const ask = { kind: "entry", name: "mine", label, action: "Enter", isNumber: true };
  const entry = { ...ask, given, enter, wrong: (state) => state.wrong };
  const button = (label, press) => ({ kind: "button", label, press });
  const ways = choices.length ? choices.map((one) => button(one, () => done(one))) : [entry];
  return [
    ...ways.map((control) => (state) => ({ ...control, hidden: !state.open })),
    (state) => ({ ...button("Guess again", again), hidden: state.open }),
  ];
}

// To be shown the answer, or to cover it again, with all that was guessed forgotten.
function revealControls(question) {
  const button = (label, act) => {
    const press = () => {
      refocusControls();
      act(question);
      return {};
    };
    return { kind: "button", label, press };
  };
  return [
    (state) => ({ ...button("Show me", showAnswer), hidden: !state.covered }),
    (state) => ({ ...button("Cover again", forgetAnswers), hidden: state.covered }),
  ];
}

// The width of the words, or of columns of numbers below them.
function leastOf({ details = [] }) {
  const longest = Math.max(0, ...details.map((line) => line.length));
  return Math.max(LEAST_WORDS, Math.ceil(longest * style.letter) + GUESS_PX.left + 4);
}

const COVERED = "The answer is covered until you have made a guess.";
const coveredText = (question) => `${question}\n${COVERED}`;

const LEAST_WORDS = 152; // px: half of what a phone has
const GUESS_PX = { left: 16, top: 14, box: 26 }; // px, as in guess.py

function layTexts(texts, width) {
  const marks = [];
  let y = GUESS_PX.top;
  for (const [text, fill] of texts) {
    for (const line of wrapText(text, width - GUESS_PX.left - 8)) {
      marks.push(textMark(GUESS_PX.left, y, line, { fill }));
      y += style.line;
    }
    y += 4;
  }
  return { marks, y };
}

function accent(height, fill, about) {
  return boxMark(0, 0, 4, height, { fill, about, id: "all" });
}

function layQuestion({ question, hint, unit }, { tries, open }, width) {
  const texts = open ? [[question, style.ink], [hint, style.faint]] : [[question, style.ink]];
  const { marks, y } = layTexts(texts, width);
  const own = tries.length ? `Your guess is ${inUnits(tries.at(-1), unit)}. Now read on.` : "";
  const about = open ? `${question}\n${hint}` : question;
  const status = open ? "" : own;
  return { marks: [accent(y, ASKED_COLOUR, about), ...marks], height: y, status };
}

function layReveal(data, state, width, seen) {
  return state.covered ? layCovered(data, seen) : layAnswer(data, state, width, seen);
}

// The question, and a hatched box in place of the answer.
function layCovered({ question }, width) {
  const texts = [[question, style.faint], [COVERED, style.ink]], summary = coveredText(question);
  const { marks, y } = layTexts(texts, width), { left, box } = GUESS_PX;
  const more = { hatch: true, edge: style.faint, about: COVERED, id: "cover" };
  const cover = boxMark(left, y + 2, Math.min(220, width - left - 8), box, more);
  const height = y + box + 10;
  const all = [accent(height, REVEALED_COLOUR, summary), ...marks, cover];
  return { marks: all, height, summary, covers: true };
}

function layAnswer(data, { tries }, width, seen) {
  const { question, told: answerText, answer, unit } = data;
  const ownText = tries.length ? revealText(tries, answer, unit) : "";
  const texts = [[question, style.faint], [answerText, style.ink]];
  if (ownText) texts.push([ownText, style.ink]);
  const { marks, y } = layTexts(texts, seen), below = layOwnAnswers(data, tries, y, seen);
  const details = data.details || [], table = layColumns(details, below.y, width);
  const summary = [question, answerText, ownText, ...details].filter(Boolean).join("\n");
  const bar = accent(table.y, REVEALED_COLOUR, summary);
  return { marks: [bar, ...marks, ...below.marks, ...table.marks], height: table.y, summary };
}

// Lines of text in columns: what begins and ends at one place in them does so here. Numbers end
// where their last letter was, all else begins where its first was.
function layColumns(lines, y, width) {
  const longest = Math.max(1, ...lines.map((line) => line.length)), { left } = GUESS_PX;
  const letter = Math.min(style.letter, (width - left - 4) / longest);
  const marks = lines.flatMap((line, n) =>
    [...line.matchAll(/\S+( \S+)*/g)].map(({ 0: text, index }) => {
      const isNumber = /^[\d.,×%+-]+$/.test(text), end = index + text.length;
      const x = left + letter * (isNumber ? end : index);
      return textMark(x, y + 8 + n * style.line, text, { align: isNumber ? "right" : "left" });
    })
  );
  return { marks, y: lines.length ? y + 12 + lines.length * style.line : y };
}

// The choices, or how far off each guess was, where that can be drawn.
function layOwnAnswers({ choices, answer, unit }, tries, y, width) {
  if (choices.length) return layChoices(choices, answer, tries.at(-1), y + 4, width);
  const isDrawn = answer > 0 && tries.length && tries.every((value) => value > 0);
  return isDrawn ? layDistances(tries, answer, unit, y, width) : { marks: [], y };
}

// The choices: the right one is filled, the reader's is marked.
function layChoices(choices, answer, last, y, width) {
  const marks = [], { left, box } = GUESS_PX;
  let x = left, below = 0;
  for (const choice of choices) {
    const w = choice.length * style.letter + 20;
    if (x > left && x + w > width - 8) [x, y, below] = [left, y + box + 24, 0];
    marks.push(...choiceMarks(choice, x, y, w, choice === answer, choice === last));
    if (choice === last) below = 18;
    x += w + 10;
  }
  return { marks, y: y + box + 10 + below };
}

function choiceMarks(choice, x, y, w, isRight, isOwn) {
  const h = GUESS_PX.box, middle = x + w / 2, fill = isRight ? REVEALED_COLOUR : undefined;
  const about = [choice, isRight && "the answer", isOwn && "you"].filter(Boolean).join(": ");
  const letters = isRight ? lettersOn(REVEALED_COLOUR) : style.ink;
  const marks = [
    boxMark(x, y, w, h, { fill, edge: fill || style.faint, about, id: choice }),
    textMark(middle, y + h / 2, choice, { align: "middle", fill: letters }),
  ];
  if (!isOwn) return marks;
  return [
    ...marks,
    boxMark(x - 3, y - 3, w + 6, h + 6, { edge: OWN_COLOUR, thick: 2 }),
    textMark(middle, y + h + 14, "you", { align: "middle" }),
  ];
}

// Guesses and the answer on a line where each step is ten times: how far off one was can be seen.
function layDistances(tries, answer, unit, y, width) {
  const powers = tries.map((value) => Math.log10(value / answer));
  const far = Math.max(...powers.map(Math.abs));
  const decades = Math.min(8, Math.max(2, Math.ceil(far + 0.2)));
  const left = GUESS_PX.left + 30, right = width - 38, middle = (left + right) / 2;
  const step = (right - left) / 2 / decades, base = y + 42;
  const place = (power) => middle + Math.max(-decades, Math.min(decades, power)) * step;
  const line = { decades, left, right, middle, step, base, place };
  const marks = [...decadeMarks(line), ...triesMarks(line, tries, powers, answer, unit)];
  return { marks, y: base + 40 };
}

// The line: within a factor of 2, and ten times after ten times.
function decadeMarks({ decades, left, right, middle, step, base, place }) {
  const near = Math.log10(2) * step, every = Math.ceil(62 / step);
  const shade = { fill: tint(REVEALED_COLOUR, 0.25), about: "within a factor of 2", id: "near" };
  const marks = [
    boxMark(middle - near, base - 12, 2 * near, 24, shade),
    lineMark([[left, base], [right, base]], style.faint, { thick: 1 }),
  ];
  for (let power = -decades; power <= decades; power++) {
    const x = place(power), fill = power ? style.faint : style.ink;
    marks.push(lineMark([[x, base - 4], [x, base + 4]], style.faint, { thick: 1 }));
    const text = power ? `${power > 0 ? "×" : "÷"} ${tenTo(Math.abs(power))}` : "the answer";
    if (power % every === 0) marks.push(textMark(x, base + 22, text, { fill, align: "middle" }));
  }
  return marks;
}

// How far the last guess is off, the guesses before it, and the answer.
function triesMarks({ middle, base, place }, tries, powers, answer, unit) {
  const x = place(powers.at(-1)), last = tries.length - 1;
  const own = `you: ${inUnits(tries[last], unit)}`, right = `the answer: ${inUnits(answer, unit)}`;
  const earlier = powers.slice(0, -1).map((power, n) => {
    const look = { fill: style.paper, edge: OWN_COLOUR, thick: 1.5 };
    const about = `your guess ${n + 1}: ${inUnits(tries[n], unit)}`;
    return boxMark(place(power) - 5, base - 5, 10, 10, { ...look, about, id: n });
  });
  const rightMore = { fill: REVEALED_COLOUR, about: right, id: "answer" };
  const ownMore = { fill: OWN_COLOUR, edge: style.paper, about: own, id: last };
  return [
    lineMark([[x, base], [middle, base]], OWN_COLOUR, { thick: 3 }),
    ...earlier,
    boxMark(middle - 2, base - 14, 4, 28, rightMore),
    boxMark(x - 6, base - 6, 12, 12, ownMore),
    textMark(x, base - 24, "you", { align: "middle" }),
  ];
}

function tenTo(power) {
  return power < 4 ? commas(10 ** power) : `10${"⁴⁵⁶⁷⁸"[power - 4]}`;
}

function revealText(tries, answer, unit) {
  const far = (value) => howFar(value, answer, unit);
  const before = tries.slice(0, -1).map((value) => `${inUnits(value, unit)} (${far(value)})`);
  const last = `You said ${inUnits(tries.at(-1), unit)}: ${far(tries.at(-1))}.`;
  return last + (before.length ? ` Before that: ${before.join(", ")}.` : "");
}

// Tells how far off a guess is: "right" within 1 %, "12 % too much", "3.2 times too little", and "3
// bytes too little" where one is 0. Of a percentage the points are told: "12 %" of it would be one
// itself.
export function howFar(value, answer, unit) {
  if (typeof answer === "string") return value === answer ? "right" : "not this time";
  if (Math.abs(value - answer) <= 0.01 * Math.abs(answer)) return "right";
  const way = value > answer ? "too much" : "too little";
  if (unit === "%") return `${inUnits(Math.abs(value - answer), "points")} ${way}`;
  if (value <= 0 || answer <= 0) return `${inUnits(Math.abs(value - answer), unit)} ${way}`;
  const ratio = Math.max(value / answer, answer / value);
  if (ratio < 1.5) return `${roundHalfEven(100 * Math.abs(value / answer - 1))} % ${way}`;
  if (ratio >= 1e9) return `more than a billion times ${way}`;
  return `${commas(Number(ratio.toPrecision(2)))} times ${way}`;
}

const plainUnits = ["B", "s", "B/s", "FLOP", "FLOP/s"]; // that take a prefix: 12.3 ms

// Writes a number with its unit: "3,000,000 bytes", "1 byte", "12.3 ms", "0.75", "1.5 × 10^20".
export function inUnits(value, unit) {
  if (typeof value === "string") return value;
  const size = Math.abs(value), whole = Number.isInteger(value);
  if (plainUnits.includes(unit) && !whole && size >= 1e-9 && size < 1e13) {
    return amount(value, unit);
  }
  let number;
  if (size < 1e15 && (whole || size >= 1000)) number = commas(roundHalfEven(value));
  else if (size >= 1e-4 && size < 1000) number = String(Number(value.toPrecision(4)));
  else {
    const [digits, power] = value.toExponential(3).split("e");
    number = `${Number(digits)} × 10^${Number(power)}`;
  }
  const one = number === "1" && unit.length > 2 && unit.endsWith("s") ? unit.slice(0, -1) : unit;
  return `${number} ${one}`.trim();
}
