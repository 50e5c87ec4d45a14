// A schedule played: each action as soon as its rank is free and what it needs has arrived. The same
// as lib/predict/{_clock,play,_legal}.py, to the last bit of a number and the last word of a sentence.
import { actionText } from "./schedules.js";

// All rows end to end: where everything stands, and what waits for what (a place, or -1).
export function gridOf({ rows, stages, microbatches, paired }) {
  const first = [0];
  for (const row of rows) first.push(first.at(-1) + row.length);
  const length = first.at(-1), codes = new Int32Array(length), rank = new Int32Array(length);
  const forward = new Int32Array(stages * microbatches).fill(-1), backward = forward.slice();
  const home = new Int32Array(stages).fill(-1);
  rows.forEach((row, r) => {
    row.forEach((code, i) => {
      const at = first[r] + i, kind = code & 3;
      codes[at] = code;
      rank[at] = r;
      home[(code >> 2) % stages] = r;
      if (kind === 0) forward[code >> 2] = at;
      else if (kind < 3) backward[code >> 2] = at;
    });
  });
  const needs = new Int32Array(length).fill(-1);
  for (let at = 0; at < length; at++) {
    const kind = codes[at] & 3, cell = codes[at] >> 2, stage = cell % stages;
    if (kind === 0 && stage > 0) needs[at] = forward[cell - 1];
    else if ((kind === 1 || kind === 2) && stage < stages - 1) needs[at] = backward[cell + 1];
  }
  return { first, codes, rank, stages, home, needs, forward, backward, paired };
}

// The one loop. `busy` is how long an action takes its rank, `travel` how long its result is on its
// way after that, `also` a second need. Gives the starts, where each rank stopped, and its clock.
export function earliest(first, needs, busy, travel, also) {
  const ranks = first.length - 1, at = first.slice(0, ranks), clock = new Float64Array(ranks);
  const starts = new Float64Array(needs.length), arrives = new Float64Array(needs.length).fill(-1);
  const waiting = new Int32Array(needs.length).fill(-1), awake = [];
  for (let rank = ranks - 1; rank >= 0; rank--) awake.push(rank);
  while (awake.length) {
    const rank = awake.pop();
    let here = at[rank], free = clock[rank];
    for (; here < first[rank + 1]; here++) {
      const need = needs[here], other = also ? also[here] : -1;
      if (need >= 0) {
        if (arrives[need] < 0) { waiting[need] = rank; break; } // prettier-ignore
        if (arrives[need] > free) free = arrives[need];
      }
      if (other >= 0) {
        if (arrives[other] < 0) { waiting[other] = rank; break; } // prettier-ignore
        if (arrives[other] > free) free = arrives[other];
      }
      starts[here] = free;
      free += busy[here];
      arrives[here] = free + travel[here];
      if (waiting[here] >= 0) awake.push(waiting[here]), (waiting[here] = -1);
    }
    at[rank] = here;
    clock[rank] = free;
  }
  return { starts, at, clock };
}

// What each action takes, and its message. `costs` is {table: [F, B, I, W] of a number a stage each,
// send: one a border, overlap: one a stage or null, block: whether a sender computes nothing}.
function lengths(grid, costs) {
  const { codes, stages, home, paired, rank, needs } = grid, length = codes.length;
  const own = new Float64Array(length), sends = new Float64Array(length);
  let also = null;
  for (let at = 0; at < length; at++) {
    const kind = codes[at] & 3, stage = (codes[at] >> 2) % stages;
    own[at] = costs.table[kind][stage];
    const to = kind === 3 ? -1 : kind === 0 ? stage + 1 : stage - 1;
    if (to >= 0 && to < stages && home[to] !== rank[at]) sends[at] = costs.send[Math.min(to, stage)];
  }
  if (costs.overlap && paired.size) {
    also = new Int32Array(length).fill(-1);
    for (let at = 0; at < length; at++) {
      if (!paired.has(codes[at])) continue; // the forward stands for both
      own[at] = costs.overlap[(codes[at] >> 2) % stages];
      own[at + 1] = 0;
      also[at] = needs[at + 1];
    }
  }
  return { own, sends, also };
}

// Plays a legal schedule: {grid, starts, ends, together, makespan, work, share,
// overhead, span, peaks, alive}; `together` where pairs run side by side.
export function playSchedule(schedule, costs) {
  const grid = gridOf(schedule), { first, codes } = grid;
  const { own, sends, also } = lengths(grid, costs), none = new Float64Array(own.length);
  const busy = costs.block ? own.map((time, at) => time + sends[at]) : own;
  const { starts } = earliest(first, grid.needs, busy, costs.block ? none : sends, also);
  const ranks = first.length - 1, work = new Float64Array(ranks);
  own.forEach((time, at) => (work[grid.rank[at]] += time));
  if (also)
    own.forEach((time, at) => {
      if (grid.paired.has(codes[at])) (starts[at + 1] = starts[at]), (own[at + 1] = time);
    });
  const ends = starts.map((start, at) => start + own[at]);
  return { grid, starts, ends, together: Boolean(also), ...shares(grid, starts, ends, work), ...peaks(grid) };
}

// The three definitions of the bubble, by the names of play.py.
function shares({ first, rank }, starts, ends, work) {
  const ranks = work.length, last = new Float64Array(ranks);
  let begin = Infinity, end = 0, busy = 0;
  ends.forEach((time, at) => {
    if (time > last[rank[at]]) last[rank[at]] = time;
    if (time > end) end = time;
    if (starts[at] < begin) begin = starts[at];
  });
  work.forEach((time) => (busy += time));
  const makespan = end - begin, total = makespan * ranks;
  const spans = Array.from(last, (time, r) => time - starts[first[r]]);
  const longest = spans.indexOf(Math.max(...spans)), span = spans[longest];
  return {
    makespan, work, spans, longest,
    share: total ? (total - busy) / total : 0,
    overhead: total ? (total - busy) / busy : 0, // endless where only messages take time
    span: span ? (span - work[longest]) / span : 0,
  }; // prettier-ignore
}

// The most microbatches alive at once, by stage; and by rank, its stages together.
function peaks({ first, codes, stages }) {
  const now = new Int32Array(stages), most = new Int32Array(stages), alive = [];
  for (let r = 0; r + 1 < first.length; r++) {
    let held = 0, top = 0;
    for (let at = first[r]; at < first[r + 1]; at++) {
      const kind = codes[at] & 3, stage = (codes[at] >> 2) % stages;
      const change = kind === 0 ? 1 : kind === 2 ? 0 : -1;
      held += change;
      now[stage] += change;
      if (held > top) top = held;
      if (now[stage] > most[stage]) most[stage] = now[stage];
    }
    alive.push(top);
  }
  return { peaks: Array.from(most), alive };
}

// Why no ranks could carry this order out, or null: {sentence, waits: [[place, what it waits for]]}.
// Nothing is missing or there twice, since only orders are changed here: rules 5 and 6 of _legal.py.
export function refusal(grid) {
  const { first, codes, rank, stages, needs } = grid, text = (at) => actionText(codes[at], stages);
  const early = tooEarly(grid);
  for (let at = 0; at < codes.length; at++) {
    if (early[at] < 0) continue;
    const name = (codes[at] & 3) === 3 ? "backward for the input" : "forward";
    const sentence = `${text(at)} comes before its ${name}, ${text(early[at])}.`;
    return { sentence, waits: [[at, early[at]]] };
  }
  const nothing = new Float64Array(codes.length);
  const { at } = earliest(first, needs, nothing, nothing);
  let r = at.findIndex((place, i) => place < first[i + 1]);
  if (r < 0) return null;
  let circle = [];
  for (; !circle.includes(r); r = rank[needs[at[r]]]) circle.push(r);
  circle = circle.slice(circle.indexOf(r));
  const waits = circle.map((stuck) => [at[stuck], needs[at[stuck]]]);
  const words = waits.map(([here, want]) => {
    const whose = rank[here] === rank[want] ? "later in its row" : `of rank ${rank[want]}`;
    return `rank ${rank[here]} stands before ${text(here)} and waits for ${text(want)} ${whose}`;
  });
  return { sentence: `Deadlock: ${words.join("; ")}.`, waits };
}

// For each action the place of its own rank's action that should stand before it and does not.
function tooEarly({ codes, forward, backward }) {
  return codes.map((code, at) => {
    const kind = code & 3;
    const before = kind === 0 ? -1 : kind === 3 ? backward[code >> 2] : forward[code >> 2];
    return before > at ? before : -1;
  });
}

// A refused schedule as far as it runs; the rest of each row stands behind, one after the other.
export function playStuck(schedule, costs) {
  const grid = gridOf(schedule), { own, sends } = lengths(grid, { ...costs, overlap: null });
  const early = tooEarly(grid), needs = grid.needs.map((need, at) => (early[at] < 0 ? need : early[at]));
  const { starts, at, clock } = earliest(grid.first, needs, own, sends);
  at.forEach((from, r) => {
    for (let place = from; place < grid.first[r + 1]; place++) {
      starts[place] = clock[r];
      clock[r] += own[place];
    }
  });
  const ends = starts.map((start, i) => start + own[i]);
  return { grid, starts, ends, makespan: Math.max(...clock), stuck: at, refused: refusal(grid) };
}
