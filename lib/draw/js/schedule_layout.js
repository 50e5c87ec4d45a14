// A played schedule as marks: its numbers, its rows, and its legend.
import { axisMarks, legendMarks } from "./axes.js";
import { colourOf, lettersOn, LEVEL_SHARES, levelKeys, tint } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { roundHalfEven } from "./numbers.js";
import { layKept } from "./schedule_kept.js";
import { figureText, meetsGoal, percentText, waitedFor } from "./schedule_words.js";
import { actionText, LETTERS } from "./schedules.js";

const ROWS_RIGHT = 14, ROW_GAP = 3, MEMORY_GAP_LEFT = 18; // px
const NARROW_ROWS = 520; // px of a picture whose memory lies below its rows
const ACTION_NAMES = ["forward", "backward", "backward for the input", "backward for the weights"];
const KINDS_OF_ACTION = [0, 1, 2, 3];

// What the keys go through, part by part: the numbers, the rows, and what the ranks keep.
const NUMBERS_PANEL = 0, ROWS_PANEL = 1;
const PANELS = ["Totals", "Ranks over time", "Peak memory"];

// The height of a row, in px.
export const ROW_HEIGHT = 20;

// Lays out all of a schedule that was played; `run.refused` where it could not be played to its
// end. Of its time `shares` are shown, from one to the other. `hasAll` tells whether every bar has
// its number.
export function layRun(schedule, run, { unit, par, limit }, width, shares = [0, 1]) {
  const isNarrow = width < NARROW_ROWS,
    place = isNarrow ? narrowPlace(schedule, width) : widePlace(width);
  const [from, end] = isNarrow ? [0, width] : [place.left, place.kept.x - 8];
  const step = ROW_HEIGHT + ROW_GAP, tall = schedule.rows.length * step;
  const above = isNarrow ? style.line + 8 : 0; // "rank", and then the rows come first
  const statsTop = isNarrow ? above + tall + 2 * style.line : 0;
  const stats = layStats(statsOf(run, unit, par), from, end, statsTop);
  const top = isNarrow ? above : stats.y, bottom = top + tall, { left, right, kept } = place;
  const span = Math.max(run.makespan, par || 0) || 1, [begin, until] = shares.map((s) => s * span);
  const pixels = (right - left) / (until - begin), zero = left - begin * pixels;
  const keptTop = isNarrow ? stats.y + style.line : top;
  Object.assign(place, { top, bottom, pixels, zero, limit, isNarrow, step, span });
  Object.assign(kept, { top: keptTop, bottom: keptTop + tall });
  const levels = levelsOf(schedule);
  const bars = layBars(schedule, run, levels, place, unit), marks = [...stats.marks, ...bars];
  if (isNarrow) marks.push(textMark(0, top - 16, "rank"));
  if (run.refused) marks.push(...layWaits(run, place));
  if (par) {
    const x = zero + par * pixels, about = `the goal for the makespan: ${figureText(par, unit)}`;
    const more = { about, inside: true };
    marks.push(lineMark([[x, top - 3], [x, bottom]], style.ink, more));
  }
  marks.push(...axisMarks(left, right, bottom, begin, until, unit));
  if (!run.refused) marks.push(...layKept(schedule, run, place));
  const rowsEnd = isNarrow ? stats.y : bottom + 2 * style.line + 10;
  const low = isNarrow && !run.refused ? kept.bottom + 8 : rowsEnd;
  const keys = legendMarks(keysOf(schedule, run, levels), isNarrow ? 0 : left, low, width);
  const written = bars.filter((mark) => mark.isNumber).length;
  const hasAll = written >= bars.filter((mark) => Number.isInteger(mark.id)).length;
  const clip = { x: left - 1, y: top - 8, w: right - left + 2, h: bottom - top + 8 };
  return {
    marks: [...marks, ...keys.marks],
    height: Math.round(keys.y),
    place,
    hasAll,
    clip,
    panels: PANELS,
  };
}

// Where the rows lie, and beside them the memory of their ranks.
function widePlace(width) {
  const end = width - ROWS_RIGHT;
  const x = end - Math.max(64, Math.min(170, roundHalfEven(width * 0.17)));
  return { left: 62, right: x - MEMORY_GAP_LEFT, kept: { x, end } };
}

// On a phone the rows are as long as it is wide, so that bars have room for their numbers.
function narrowPlace({ rows }, width) {
  const left = 6 + Math.ceil(String(rows.length - 1).length * style.letter);
  return { left, right: width - 2, kept: { x: left, end: width } };
}

// [name, value, what it is] of each number above the rows.
function statsOf(run, unit, par) {
  const names = ["makespan", "bubble share", "bubble overhead", "bubble span"];
  if (run.refused) return names.map((name) => [name, "—", `${name}: none, this order never ends`]);
  const { makespan, longest, share, overhead } = run, ranks = run.work.length;
  const time = (value) => figureText(value, unit);
  const work = run.work.reduce((sum, one) => sum + one, 0), idle = makespan * ranks - work;
  const span = run.spans[longest], busy = run.work[longest];
  const goal = par ? ` · goal ${time(par)} ${meetsGoal(makespan, par) ? "✓" : "✗"}` : "";
  const values = [time(makespan) + goal, ...[share, overhead, run.span].map(percentText)];
  const explained = [
    "makespan: from the first start to the last end",
    `bubble, share: idle ÷ (ranks · makespan) = ${time(idle)} ÷ ` +
    `${time(makespan * ranks)}; GPipe's (p−1)/(m+p−1), arXiv 1811.06965`,
    `bubble, overhead: idle ÷ work = ${time(idle)} ÷ ` +
    `${time(work)}; Narayanan's (p−1)/m, arXiv 2104.04473`,
    "bubble, span: (cost − m·T) ÷ cost, where cost is the longest span " +
    `of one rank, here rank ${longest}: (${time(span)} − ${time(busy)}) ÷ ${time(span)}; ` +
    "the zero-bubble paper's, arXiv 2401.10241",
  ];
  return names.map((name, i) => [name, values[i], explained[i]]);
}

function layStats(items, left, right, top) {
  const marks = [];
  let x = left, y = top;
  items.forEach(([name, value, about], i) => {
    const w = Math.max(name.length, value.length) * style.letter;
    if (x > left && x + w > right) [x, y] = [left, y + 2 * style.line + 6];
    marks.push(textMark(x, y + style.line / 2, name, { fill: style.faint }));
    marks.push(textMark(x, y + 1.5 * style.line, value));
    marks.push(
      boxMark(x, y, w, 2 * style.line, { about, id: `number ${i}`, panel: NUMBERS_PANEL }),
    );
    x += w + 20;
  });
  return { marks, y: y + 2 * style.line + 10 };
}

// For each stage, whether it is the first (0), second (1) ... of its rank.
function levelsOf({ rows, stages }) {
  const levels = new Array(stages).fill(0);
  for (const row of rows) {
    const own = [...new Set(row.map((code) => (code >> 2) % stages))].sort((a, b) => a - b);
    own.forEach((stage, level) => (levels[stage] = Math.min(level, LEVEL_SHARES.length - 1)));
  }
  return levels;
}

// The rows: an action is a bar, and where a rank waits there is an invisible one that tells for
// what.
function layBars(schedule, run, levels, { top, left, zero, pixels, isNarrow, step }, unit) {
  const name = (rank) => isNarrow ? String(rank) : `rank ${rank}`;
  const marks = [], { starts, ends, grid, refused, makespan } = run;
  const shades = KINDS_OF_ACTION.map((kind) => LEVEL_SHARES.map((share) => shadesOf(kind, share)));
  const rows = {
    schedule,
    run,
    levels,
    zero,
    pixels,
    shades,
    time: (value) => figureText(value, unit),
  };
  schedule.rows.forEach((row, rank) => {
    const y = top + rank * step, first = grid.first[rank];
    const stop = refused ? run.stuck[rank] : grid.first[rank + 1];
    marks.push(
      textMark(left - (isNarrow ? 5 : 8), y + ROW_HEIGHT / 2, name(rank), { align: "right" }),
    );
    let free = 0;
    row.forEach((code, i) => {
      const at = first + i, isDead = at >= stop;
      if (!isDead) {
        const why = () => `waits for ${waitedFor(run, at, schedule.stages)}`;
        marks.push(...idleMarks(rows, rank, free, starts[at], y, why, `idle ${code}`));
      }
      free = Math.max(free, ends[at]);
      if (ends[at] > starts[at]) marks.push(...barMarksOf(rows, rank, i, y, isDead));
    });
    if (refused) return;
    const why = () => "has done all it has to do";
    marks.push(...idleMarks(rows, rank, free, makespan, y, why, `end ${rank}`));
  });
  return marks;
}

function idleMarks({ zero, pixels, time }, rank, from, to, y, why, id) {
  if ((to - from) * pixels <= 0.5) return [];
  const about = () => `rank ${rank} idle from ${time(from)} to ${time(to)}: ${why()}`;
  const more = { about, id, inside: true, row: rank, panel: ROWS_PANEL };
  return [boxMark(zero + from * pixels, y, (to - from) * pixels, ROW_HEIGHT, more)];
}

// An action's bar with its microbatch; a dead one never runs. Pairs that run side by side share
// their row.
function barMarksOf(
  { schedule, run, levels, zero, pixels, shades, time },
  rank,
  i,
  rowTop,
  isDead,
) {
  const { stages, rows } = schedule, { grid, starts, ends, together } = run;
  const at = grid.first[rank] + i, code = rows[rank][i], kind = code & 3, cell = code >> 2;
  const stage = cell % stages, microbatch = Math.floor(cell / stages), level = levels[stage];
  const isUpper = together && grid.paired.has(code);
  const isLower = together && !isUpper && i > 0 && grid.paired.has(rows[rank][i - 1]);
  const h = isUpper || isLower ? ROW_HEIGHT / 2 - 0.5 : ROW_HEIGHT;
  const y = isLower ? rowTop + ROW_HEIGHT / 2 + 0.5 : rowTop;
  const x = zero + starts[at] * pixels, w = Math.max((ends[at] - starts[at]) * pixels, 0.6);
  const [full, edge, ink] = shades[kind][level];
  const when = () => isDead ? "never runs" : `from ${time(starts[at])} to ${time(ends[at])}`;
  const about = () =>
    `${actionText(code, stages)} on rank ${rank}: ${ACTION_NAMES[kind]}, ` +
    `stage ${stage}, microbatch ${microbatch}, ${when()}`;
  const fill = isDead ? tint(colourOf(LETTERS[kind]), 0.2) : full;
  const where = { row: rank, panel: ROWS_PANEL, inside: true };
  const bar = boxMark(x, y, w, h, { fill, id: code, about, ...where });
  if (!isDead && level && w > 5) Object.assign(bar, inset(bar), { edge });
  else if (w > 3) bar.edge = style.paper;
  const text = String(microbatch);
  if (h < ROW_HEIGHT || w <= text.length * style.letter + 0.5) return [bar];
  const letters = {
    fill: isDead ? style.faint : ink,
    align: "middle",
    isNumber: true,
    inside: true,
  };
  return [bar, textMark(x + w / 2, y + h / 2, text, letters)];
}

// The fill of a rank's first, second ... stage, its edge, and the letters on it.
function shadesOf(kind, share) {
  const full = colourOf(LETTERS[kind]), fill = share < 1 ? tint(full, share) : full;
  return [fill, full, lettersOn(fill)];
}

function inset({ x, y, w, h }) {
  return { x: x + 0.5, y: y + 0.5, w: w - 1, h: h - 1 };
}

// Who waits for whom in a refused order: a ring around the bar that never runs, a line to the
// other.
function layWaits({ grid, starts, ends, refused }, { top, zero, pixels, step }) {
  const place = (at) => {
    const y = top + grid.rank[at] * step;
    return [zero + starts[at] * pixels, y, (ends[at] - starts[at]) * pixels, ROW_HEIGHT];
  };
  const middle = ([x, y, w, h]) => [x + w / 2, y + h / 2];
  return refused.waits.flatMap(([here, needed]) => {
    const [x, y] = middle(place(needed));
    return [
      lineMark([middle(place(here)), [x, y]], style.ink, { thick: 1.6, inside: true }),
      boxMark(x - 3, y - 3, 6, 6, { fill: style.ink, inside: true }),
      boxMark(...place(here), { edge: style.ink, thick: 2.5, inside: true }),
    ];
  });
}

function keysOf({ rows }, run, levels) {
  const shown = new Set(rows.flatMap((row) => row.map((code) => code & 3)));
  const keys = KINDS_OF_ACTION.filter((kind) => shown.has(kind))
    .map((kind) => [ACTION_NAMES[kind], colourOf(LETTERS[kind])]);
  keys.push(...levelKeys(Math.max(...levels)));
  if (run.refused) keys.push(["never runs", tint(colourOf("F"), 0.2)]);
  return keys;
}
