// A schedule played: each action as soon as its rank is free and what it needs has arrived. It
// gives the numbers and sentences of lib/predict/pipeline/{grid,clock,lengths,play,legality}.py,
// to the last bit and word.
import { withLinks } from "./links.js";
import { actionText, cellText } from "./schedules.js";

// Gives all rows end to end: where everything stands, and what waits for what (a place, or -1).
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
  // The results of a pair are there when both are done.
  const waits = needs.map((need) => (need >= 0 && paired.has(codes[need]) ? need + 1 : need));
  return { first, codes, rank, stages, home, needs, waits, forward, backward, paired };
}

// The one loop. An action may start `late` after the end of the one it waits for, and takes its
// rank for `busy`. Gives the ends, where each rank stopped, and when.
function earliest(first, waits, late, busy) {
  const ranks = first.length - 1, at = first.slice(0, ranks), clock = new Float64Array(ranks);
  const ends = new Float64Array(waits.length).fill(-1), awake = [];
  const waiting = new Int32Array(waits.length).fill(-1); // a rank that waits for this action
  const after = new Int32Array(ranks).fill(-1); // and who waits for the same as that rank
  for (let rank = ranks - 1; rank >= 0; rank--) awake.push(rank);
  while (awake.length) {
    const rank = awake.pop();
    let here = at[rank], free = clock[rank];
    for (; here < first[rank + 1]; here++) {
      const need = waits[here];
      if (need >= 0) {
        if (ends[need] < 0) {
          after[rank] = waiting[need];
          waiting[need] = rank;
          break;
        }
        free = Math.max(free, ends[need] + late[here]);
      }
      free += busy[here];
      ends[here] = free;
      for (let other = waiting[here]; other >= 0; other = after[other]) awake.push(other);
      waiting[here] = -1;
    }
    at[rank] = here;
    clock[rank] = free;
  }
  return { ends, at, clock };
}

// What each action takes, and its message. `costs` is {table: [F, B, I, W] of a number a stage
// each, send: one a border, overlap: one a stage or null, block: whether a sender computes
// nothing, link, ahead: as in Costs, accumulate: one a stage}.
function lengths(grid, costs) {
  const { codes, stages, home, paired, rank } = grid, length = codes.length;
  const own = new Float64Array(length), sends = new Float64Array(length);
  const isAdded = new Uint8Array(stages); // whether a stage has a gradient to add to
  for (let at = 0; at < length; at++) {
    const kind = codes[at] & 3, stage = (codes[at] >> 2) % stages;
    own[at] = costs.table[kind][stage];
    if (kind % 2 && !isAdded[stage]) own[at] -= costs.accumulate[stage];
    if (kind % 2) isAdded[stage] = 1;
    const to = kind === 3 ? -1 : kind === 0 ? stage + 1 : stage - 1;
    if (to >= 0 && to < stages && home[to] !== rank[at]) {
      sends[at] = costs.send[Math.min(to, stage)];
    }
  }
  const busy = own.slice(), pairs = [];
  if (paired.size) {
    for (let at = 0; at < length; at++) {
      if (!paired.has(codes[at])) continue; // the second of a pair stands for both
      pairs.push(at);
      busy[at + 1] = costs.overlap
        ? costs.overlap[(codes[at] >> 2) % stages]
        : own[at] + own[at + 1];
      busy[at] = 0;
    }
  }
  if (!costs.block) return { own, busy, sends, delays: sends, pairs };
  // A sender that waits for its messages: those of a pair leave one after the other, when both are
  // done.
  const delays = new Float64Array(length);
  sends.forEach((time, at) => (busy[at] += time));
  for (const one of pairs) {
    busy[one + 1] += sends[one];
    busy[one] = 0;
    delays[one] = -sends[one + 1];
  }
  return { own, busy, sends, delays, pairs };
}

// When each action runs, as far as its rank gets: {starts, ends, own, pairs, at, clock}.
function runActions(grid, costs, waits) {
  const { own, busy, sends, delays, pairs } = lengths(grid, costs), { first, needs } = grid;
  const queue = costs.link && !costs.block && sends.some((time) => time > 0);
  const late = Float64Array.from(needs, (need) => (need < 0 ? 0 : delays[need]));
  const rows = queue ? withLinks(grid, waits, busy, sends, costs) : { first, waits, late, busy };
  const { ends: done, at, clock } = earliest(rows.first, rows.waits, rows.late, rows.busy);
  const starts = done.slice(0, own.length), ranks = first.length - 1;
  for (let rank = 0; rank < ranks; rank++) {
    let free = 0;
    for (let here = first[rank]; here < at[rank]; here++) {
      const need = rows.waits[here];
      starts[here] = need < 0 ? free : Math.max(free, done[need] + rows.late[here]);
      free = done[here];
    }
  }
  for (const one of pairs) {
    starts[one] = starts[one + 1];
    if (costs.overlap) {
      own[one] = own[one + 1] = costs.overlap[(grid.codes[one] >> 2) % grid.stages];
    } else starts[one + 1] += own[one];
  }
  const ends = starts.map((start, i) => start + own[i]);
  return { starts, ends, own, pairs, at: at.slice(0, ranks), clock: clock.slice(0, ranks) };
}

// Plays a legal schedule: {grid, starts, ends, together, makespan, work, share, overhead, span,
// peaks, alive}; `together` where pairs run side by side.
export function playSchedule(schedule, costs) {
  const grid = gridOf(schedule);
  const { starts, ends, own, pairs } = runActions(grid, costs, grid.waits);
  const together = Boolean(costs.overlap && pairs.length);
  const work = new Float64Array(schedule.rows.length);
  own.forEach((time, at) => (work[grid.rank[at]] += time));
  if (together) pairs.forEach((one) => (work[grid.rank[one]] -= own[one]));
  return { grid, starts, ends, together, ...shares(grid, starts, ends, work), ...peaks(grid) };
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
    makespan,
    work,
    spans,
    longest,
    share: total ? (total - busy) / total : 0,
    overhead: total ? (total - busy) / busy : 0, // endless where only messages take time
    span: span ? (span - work[longest]) / span : 0,
  };
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

// Tells why no ranks could carry this order out, or null: {sentence, waits: [[place, what it waits
// for]]}. Nothing is missing or there twice, since only orders are changed here: rules 5 and 6 of
// legality.py.
export function refusal(grid) {
  const { first, codes, rank, stages, waits } = grid, text = (at) => actionText(codes[at], stages);
  const early = tooEarly(grid);
  for (let at = 0; at < codes.length; at++) {
    if (early[at] < 0) continue;
    const name = (codes[at] & 3) === 3 ? "backward for the input" : "forward";
    const sentence = `${text(at)} comes before its ${name}, ${text(early[at])}.`;
    return { sentence, waits: [[at, early[at]]] };
  }
  const nothing = new Float64Array(codes.length);
  const { at } = earliest(first, waits, nothing, nothing);
  let r = at.findIndex((place, i) => place < first[i + 1]);
  if (r < 0) return null;
  let circle = [];
  for (; !circle.includes(r); r = rank[waits[at[r]]]) circle.push(r);
  circle = circle.slice(circle.indexOf(r));
  const stuck = circle.map((one) => [at[one], waits[at[one]]]);
  const sentences = stuck.map(([here, needed]) => {
    const whose = rank[here] === rank[needed] ? "later in its row" : `of rank ${rank[needed]}`;
    const isPair = grid.paired.has(codes[needed - 1]); // its results are there when both are done
    const name = isPair ? cellText([codes[needed - 1], codes[needed]], stages) : text(needed);
    return `rank ${rank[here]} stands before ${text(here)} and waits for ${name} ${whose}`;
  });
  return { sentence: `Deadlock: ${sentences.join("; ")}.`, waits: stuck };
}

// For each action the place of its own rank's action that should stand before it and does not.
function tooEarly({ codes, forward, backward }) {
  return codes.map((code, at) => {
    const kind = code & 3;
    const before = kind === 0 ? -1 : kind === 3 ? backward[code >> 2] : forward[code >> 2];
    return before > at ? before : -1;
  });
}

// Plays a refused schedule as far as it runs; the rest of each row stands behind, one after the
// other.
export function playStuck(schedule, costs) {
  const grid = gridOf(schedule), early = tooEarly(grid);
  const waits = grid.waits.map((need, at) => (early[at] < 0 ? need : early[at]));
  const { starts, ends, own, pairs, at, clock } = runActions(
    grid,
    { ...costs, overlap: null },
    waits,
  );
  const halves = new Set(pairs);
  const stuck = at.map((place) => (halves.has(place - 1) ? place - 1 : place)); // a pair is one
  stuck.forEach((from, r) => {
    for (let place = from; place < grid.first[r + 1]; place++) {
      starts[place] = clock[r];
      ends[place] = clock[r] += own[place];
    }
  });
  return { grid, starts, ends, makespan: Math.max(...clock), stuck, refused: refusal(grid) };
}
