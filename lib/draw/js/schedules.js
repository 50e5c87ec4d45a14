// Pipeline schedules: the rules of lib/predict/pipeline/schedules.py and v_rules.py, for the
// sliders; the browser tests hold the two together. A schedule is {name, stages, microbatches,
// rows, paired}: `rows` has the codes of each rank, 4·(microbatch·stages + stage) + the letter's
// place in FBIW, and `paired` the codes of the forwards that run beside the backward that follows
// them.

// PyTorch's letters: forward, whole backward, backward for the input, backward for the weights.
export const LETTERS = "FBIW";
const [F, B, I, W] = [0, 1, 2, 3];

// By kind: its name, the stages of a rank (0 where the reader chooses), and its rule.
export const RULES = {
  naive: ["naive", 1, naive],
  gpipe: ["GPipe", 1, gpipe],
  "1f1b": ["1F1B", 1, oneFOneB],
  interleaved: ["interleaved 1F1B", 0, interleaved],
  "zb-h1": ["ZB-H1", 1, zbH1],
  "zb-h2": ["ZB-H2", 1, zbH2],
  "zb-v": ["ZB-V", 2, zbV],
};

// Gives the schedule of that kind; an Error with a sentence where there is none for these numbers.
export function generate(kind, ranks, microbatches, chunks) {
  const [name, each, rule] = RULES[kind], stages = ranks * (each || chunks);
  const code = (letter, stage, microbatch) => 4 * (microbatch * stages + stage) + letter;
  const rows = [];
  for (let rank = 0; rank < ranks; rank++) {
    rows.push(rule({ rank, ranks, stages, microbatches, chunks: each || chunks, code }));
  }
  return { name, stages, microbatches, rows, paired: new Set() };
}

function naive({ rank, microbatches: m, code }) {
  return weave(...both(rank, m, code, B), 0);
}

function gpipe({ rank, microbatches: m, code }) {
  return weave(...both(rank, m, code, B), m);
}

function oneFOneB({ rank, ranks, microbatches: m, code }) {
  return weave(...both(rank, m, code, B), ranks - 1 - rank);
}

function zbH1({ rank, ranks, microbatches: m, code }) {
  return lag(weave(...both(rank, m, code, I), ranks - 1 - rank), rank);
}

function zbH2({ rank, ranks, microbatches: m, code }) {
  return lag(weave(...both(rank, m, code, I), 2 * (ranks - 1 - rank)), 2 * rank);
}

// Microbatches go in rounds of about one for each rank, through all stages of a rank in turn.
function interleaved({ rank, ranks, microbatches: m, chunks, code }) {
  const rounds = Math.max(1, Math.floor(m / ranks)), size = m / rounds;
  if (m % rounds) {
    throw new Error(
      `The batch has ${m} microbatches; ${rounds} rounds cannot share them equally. ` +
        `Choose a multiple of ${ranks}, or fewer than ${2 * ranks}.`,
    );
  }
  const forwards = [], backwards = [];
  for (let k = 0; k < chunks * m; k++) {
    const chunk = Math.floor(k / size) % chunks;
    const microbatch = Math.floor(k / (size * chunks)) * size + (k % size);
    forwards.push(code(F, chunk * ranks + rank, microbatch));
    backwards.push(code(B, (chunks - 1 - chunk) * ranks + rank, microbatch));
  }
  return weave(forwards, backwards, (chunks - 1) * size + 2 * (ranks - 1 - rank));
}

// Down the V is a rank's first stage, up again its second; moves are numbered as they come.
function zbV({ rank: r, ranks, stages, microbatches: m, code }) {
  const total = Math.max(2 * ranks - 1, m), started = 2 * ranks - 1 - r;
  const up = ["F1", "I1", "W1"], moves = [];
  const add = (times, ...more) => {
    for (let i = 0; i < times; i++) moves.push(...more);
  };
  add(2 * (ranks - r) - 1, "F0"), add(r, "F1", "F0"), add(ranks - r, ...up);
  add(total - started, "F0", "I0", "W0", ...up), add(started - ranks, "I0", "W0", ...up);
  add(r, "I0", "I1"), add(ranks - r, "I0", "W0"), add(r, "W1"), add(r, "W0");
  const counts = {}, row = [];
  for (const move of moves) {
    const number = (counts[move] = (counts[move] ?? -1) + 1);
    const stage = move[1] === "0" ? r : stages - 1 - r;
    if (number < m) row.push(code(LETTERS.indexOf(move[0]), stage, number));
  }
  return row;
}

// The forwards of a stage, and its backwards, in the order of microbatches.
function both(stage, microbatches, code, backward) {
  const each = Array.from({ length: microbatches }, (_, m) => m);
  return [each.map((m) => code(F, stage, m)), each.map((m) => code(backward, stage, m))];
}

// `warm` forwards, then forward and backward in turn, then the backwards that are left.
function weave(forwards, backwards, warm) {
  const row = forwards.slice(0, warm), turns = Math.max(0, forwards.length - warm);
  for (let i = 0; i < turns; i++) row.push(forwards[warm + i], backwards[i]);
  return row.concat(backwards.slice(turns));
}

// After each I the W that is `late` I's older; the other W's at the end.
function lag(row, late) {
  const delayed = [], inputs = [];
  let next = 0;
  for (const code of row) {
    delayed.push(code);
    if (code % 4 !== I) continue;
    inputs.push(code);
    if (inputs.length > late) delayed.push(inputs[next++] - I + W);
  }
  return delayed.concat(inputs.slice(next).map((code) => code - I + W));
}

// Writes an action as PyTorch does: 2F0.
export function actionText(code, stages) {
  const cell = code >> 2;
  return `${cell % stages}${LETTERS[code & 3]}${Math.floor(cell / stages)}`;
}

// Reads a schedule from PyTorch's pipeline CSV: one line for each rank.
export function readSchedule(text, name) {
  const lines = text.trim().split("\n");
  const actions = lines.map((line) => [...line.matchAll(/(\()?(\d+)([FBIW])(\d+)/g)]);
  const all = actions.flat();
  const stages = 1 + Math.max(...all.map(([, , stage]) => Number(stage)));
  const microbatches = 1 + Math.max(...all.map(([, , , , microbatch]) => Number(microbatch)));
  const code = ([, , stage, letter, microbatch]) =>
    4 * (Number(microbatch) * stages + Number(stage)) + LETTERS.indexOf(letter);
  const paired = new Set(all.filter(([, bracket]) => bracket).map(code));
  return { name, stages, microbatches, rows: actions.map((row) => row.map(code)), paired };
}

// Cuts a row into cells: [code], or [forward, backward] of a pair, which moves as one.
export function cellsOf(row, paired) {
  const cells = [];
  for (let i = 0; i < row.length; i++) {
    cells.push(paired.has(row[i]) ? [row[i], row[++i]] : [row[i]]);
  }
  return cells;
}

// Writes a cell as PyTorch does.
export function cellText(cell, stages) {
  const [one, two] = cell.map((code) => actionText(code, stages));
  return two ? `(${one};${two})OVERLAP_F_B` : one;
}

// Writes a schedule as PyTorch's pipeline CSV: one line for each rank.
export function scheduleText({ rows, stages, paired }) {
  return rows.map((row) => cellsOf(row, paired).map((c) => cellText(c, stages)).join(",")).join(
    "\n",
  );
}

// Gives the same schedule with one cell of a rank at another place of its row.
export function withMove(schedule, [rank, from, to]) {
  const cells = cellsOf(schedule.rows[rank], schedule.paired);
  cells.splice(to, 0, ...cells.splice(from, 1));
  return { ...schedule, rows: schedule.rows.with(rank, cells.flat()) };
}
