// A played schedule as marks: the same as lib/draw/schedule.py, to a tenth of a pixel.
import { axis, colourOf, commas, amount, even, legend, lettersOn, plural, tint } from "./axes.js";
import { actionText, LETTERS } from "./schedules.js";

export const LEFT = 62;
const RIGHT = 14, ROW = 20, GAP = 3, BETWEEN = 18; // px; between times and memory
const NARROW = 520; // px of a picture whose memory has its name on a line of its own
const SHARES = [1, 0.5, 0.3, 0.15]; // how full the colour is of a rank's first stage, its second ...
const NAMES = ["forward", "backward", "backward for the input", "backward for the weights"];
const ORDINALS = ["1st", "2nd", "3rd", "4th and later"];

// A number in four digits, or in three with its unit.
export function figureOf(value, unit) {
  if (unit) return amount(value, unit);
  if (!value || Math.abs(value) >= 1000) return commas(even(value));
  const digits = 10 ** (3 - Math.floor(Math.log10(Math.abs(value))));
  return String(Number((even(value * digits) / digits).toPrecision(12)));
}

export function percentOf(share) {
  return `${(even(share * 1000) / 10).toFixed(1)} %`;
}

export function batches(number) {
  return `${figureOf(number, "")} microbatch${number === 1 ? "" : "es"}`;
}

// Everything of a schedule that was played; `run.refused` where it could not be played to its end.
export function layRun(schedule, run, { unit, par, limit }, width) {
  const narrow = width < NARROW;
  const memory = width - RIGHT - Math.max(64, Math.min(170, even(width * 0.17)));
  const right = memory - BETWEEN;
  const stats = layStats(statsOf(run, unit, par), narrow ? 0 : LEFT, narrow ? width : memory - 8);
  const top = stats.y + (narrow ? style.line : 0), ranks = schedule.rows.length;
  const bottom = top + ranks * (ROW + GAP), span = Math.max(run.makespan, par || 0) || 1;
  const pixels = (right - LEFT) / span, levels = levelsOf(schedule);
  const place = { top, bottom, memory, right, end: width - RIGHT, width, narrow, pixels, limit };
  const marks = [...stats.marks, ...layBars(schedule, run, levels, place, unit)];
  if (run.refused) marks.push(...layWaits(run, place));
  if (par) {
    const x = LEFT + par * pixels, points = [[x, top - 3], [x, bottom]];
    marks.push({ kind: "line", points, edge: style.ink, dash: true, about: `par ${figureOf(par, unit)}` });
  }
  marks.push(...axis(LEFT, right, bottom, 0, span, unit));
  if (!run.refused) marks.push(...layMemory(schedule, run, limit, place));
  const keys = legend(keysOf(schedule, run, levels), LEFT, bottom + 2 * style.line + 10, width);
  marks.push(...keys.marks);
  return { marks, height: Math.round(keys.y), place };
}

// [name, value, what it is] of each number above the rows.
function statsOf(run, unit, par) {
  const names = ["makespan", "bubble share", "bubble overhead", "bubble span"];
  if (run.refused) return names.map((name) => [name, "—", `${name}: none, this order never ends`]);
  const time = (value) => figureOf(value, unit), { makespan, longest } = run, ranks = run.work.length;
  const work = run.work.reduce((sum, one) => sum + one, 0), idle = makespan * ranks - work;
  const span = run.spans[longest], busy = run.work[longest];
  const goal = par ? ` · par ${time(par)} ${meets(makespan, par) ? "✓" : "✗"}` : "";
  return [
    [names[0], time(makespan) + goal, "makespan: from the first start to the last end"],
    [names[1], percentOf(run.share), `bubble, share: idle ÷ (ranks · makespan) = ${time(idle)} ÷ ` +
      `${time(makespan * ranks)}; GPipe's (p−1)/(m+p−1), arXiv 1811.06965`],
    [names[2], percentOf(run.overhead), `bubble, overhead: idle ÷ work = ${time(idle)} ÷ ` +
      `${time(work)}; Narayanan's (p−1)/m, arXiv 2104.04473`],
    [names[3], percentOf(run.span), "bubble, span: (cost − m·T) ÷ cost, where cost is the longest span " +
      `of one rank, here rank ${longest}: (${time(span)} − ${time(busy)}) ÷ ${time(span)}; ` +
      "the zero-bubble paper's, arXiv 2401.10241"],
  ]; // prettier-ignore
}

export function meets(value, goal) {
  return value <= goal * (1 + 1e-9);
}

function layStats(items, left, right) {
  const marks = [];
  let x = left, y = 0;
  items.forEach(([name, value, about], i) => {
    const w = Math.max(name.length, value.length) * style.letter;
    if (x > left && x + w > right) (x = left), (y += 2 * style.line + 6);
    marks.push({ kind: "text", x, y: y + style.line / 2, fill: style.faint, text: name, align: "left" });
    marks.push({ kind: "text", x, y: y + 1.5 * style.line, fill: style.ink, text: value, align: "left" });
    marks.push({ kind: "box", x, y, w, h: 2 * style.line, about, id: `number ${i}` });
    x += w + 20;
  });
  return { marks, y: y + 2 * style.line + 10 };
}

// For each stage, whether it is the first (0), second (1) ... of its rank.
function levelsOf({ rows, stages }) {
  const levels = new Array(stages).fill(0);
  for (const row of rows) {
    const own = [...new Set(row.map((code) => (code >> 2) % stages))].sort((a, b) => a - b);
    own.forEach((stage, level) => (levels[stage] = Math.min(level, SHARES.length - 1)));
  }
  return levels;
}

function layBars(schedule, run, levels, { top, pixels }, unit) {
  const marks = [], { starts, ends, grid, refused, makespan } = run, { stages } = schedule;
  const shades = [0, 1, 2, 3].map((kind) => SHARES.map((share) => shadesOf(kind, share)));
  const never = [0, 1, 2, 3].map((kind) => tint(colourOf(LETTERS[kind]), 0.2));
  const time = (value) => figureOf(value, unit);
  const idle = (rank, from, to, y, why, id) => {
    if ((to - from) * pixels <= 0.5) return;
    const about = () => `rank ${rank} idle from ${time(from)} to ${time(to)}: ${why()}`;
    marks.push({ kind: "box", x: LEFT + from * pixels, y, w: (to - from) * pixels, h: ROW, about, id });
  };
  schedule.rows.forEach((row, rank) => {
    const y = top + rank * (ROW + GAP), first = grid.first[rank];
    const stop = refused ? run.stuck[rank] : grid.first[rank + 1];
    const label = { kind: "text", x: LEFT - 8, y: y + ROW / 2, fill: style.ink, text: `rank ${rank}` };
    marks.push({ ...label, align: "right" });
    let free = 0;
    row.forEach((code, i) => {
      const at = first + i, kind = code & 3, stage = (code >> 2) % stages;
      const start = starts[at], end = ends[at], dead = at >= stop;
      if (!dead) idle(rank, free, start, y, () => `waits for ${waitedFor(run, at, stages)}`, `idle ${code}`);
      free = Math.max(free, end);
      if (end <= start) return;
      const level = levels[stage], [full, edge, ink] = shades[kind][level];
      const fill = dead ? never[kind] : full;
      let x = LEFT + start * pixels, w = Math.max((end - start) * pixels, 0.6), above = y, h = ROW;
      if (run.together && grid.paired.has(code)) h = ROW / 2 - 0.5;
      else if (run.together && i && grid.paired.has(row[i - 1])) (above = y + ROW / 2 + 0.5), (h = ROW / 2 - 0.5);
      const mark = { kind: "box", x, y: above, w, h, fill, id: code };
      if (!dead && level && w > 5) Object.assign(mark, inset(mark), { edge });
      else if (w > 3) mark.edge = style.paper;
      const microbatch = Math.floor((code >> 2) / stages);
      mark.about = () => `${actionText(code, stages)} on rank ${rank}: ${NAMES[kind]}, stage ${stage}, ` +
        `microbatch ${microbatch}, ${dead ? "never runs" : `from ${time(start)} to ${time(end)}`}`; // prettier-ignore
      marks.push(mark);
      const text = String(microbatch);
      if (h === ROW && w > text.length * style.letter + 1)
        marks.push({ kind: "text", x: x + w / 2, y: y + ROW / 2, fill: dead ? style.faint : ink, text, align: "middle" });
    });
    if (!refused) idle(rank, free, makespan, y, () => "has done all it has to do", `end ${rank}`);
  });
  return marks;
}

// The fill of a rank's first, second ... stage, its edge, and the letters on it.
function shadesOf(kind, share) {
  const full = colourOf(LETTERS[kind]), fill = share < 1 ? tint(full, share) : full;
  return [fill, full, lettersOn(fill)];
}

function inset({ x, y, w, h }) {
  return { x: x + 0.5, y: y + 0.5, w: w - 1, h: h - 1 };
}

// What came last of what an action had to wait for.
function waitedFor({ grid, ends }, at, stages) {
  const both = [grid.waits[at], grid.paired.has(grid.codes[at]) ? grid.waits[at + 1] : -1];
  const last = both.filter((need) => need >= 0).sort((a, b) => ends[b] - ends[a])[0];
  return last === undefined ? "nothing" : actionText(grid.codes[last], stages);
}

// Who waits for whom in a refused order: a ring around the bar that never runs, a line to the other.
function layWaits({ grid, starts, ends, refused }, { top, pixels }) {
  const box = (at) => ({
    x: LEFT + starts[at] * pixels, w: (ends[at] - starts[at]) * pixels,
    y: top + grid.rank[at] * (ROW + GAP), h: ROW,
  }); // prettier-ignore
  const middle = (at, { x, y, w, h } = box(at)) => [x + w / 2, y + h / 2];
  return refused.waits.flatMap(([here, want]) => [
    { kind: "line", points: [middle(here), middle(want)], edge: style.ink, thick: 1.6 },
    { kind: "box", ...dot(middle(want)), fill: style.ink },
    { kind: "box", ...box(here), edge: style.ink, thick: 2.5 },
  ]);
}

function dot([x, y]) {
  return { x: x - 3, y: y - 3, w: 6, h: 6 };
}

// What each rank keeps: the most microbatches alive at once; one counts whole where all the stages
// of its rank keep it.
function layMemory(schedule, run, limit, { top, bottom, memory, end, width, narrow }) {
  const marks = [], kept = keptBy(schedule, run.alive), most = Math.max(...kept, limit || 0);
  const scale = (end - memory - 30) / most, fill = tint(style.compute.forward, 0.45);
  const [x, align] = narrow ? [width, "right"] : [memory, "left"];
  const say = (y, text) => marks.push({ kind: "text", x, y, fill: style.faint, text, align });
  say(top - 12, "peak memory");
  say(bottom + 14, "microbatches");
  kept.forEach((amount, rank) => {
    const y = top + rank * (ROW + GAP) + 3, h = ROW - 6, inside = Math.min(amount, limit || amount);
    const stages = [...new Set(schedule.rows[rank].map((code) => (code >> 2) % schedule.stages))];
    const about = () => `rank ${rank} keeps the activations of at most ${batches(amount)}; ` +
      stages.sort((a, b) => a - b).map((s) => `stage ${s}: ${run.peaks[s]}`).join(", "); // prettier-ignore
    marks.push({ kind: "box", x: memory, y, w: inside * scale, h, fill, about, id: `memory ${rank}` });
    const over = { x: memory + inside * scale, w: (amount - inside) * scale };
    if (over.w > 0) marks.push({ kind: "box", ...over, y, h, edge: style.ink, dash: true });
    const text = figureOf(amount, "");
    marks.push({ kind: "text", x: memory + amount * scale + 6, y: y + h / 2, fill: style.ink, text, align: "left" });
  });
  if (limit) {
    const sign = kept.every((amount) => meets(amount, limit)) ? "✓" : "✗", at = memory + limit * scale;
    const points = [[at, top], [at, bottom - GAP]];
    marks.push({ kind: "line", points, edge: style.ink, dash: true, about: `limit ${figureOf(limit, "")}` });
    say(bottom + 14 + style.line, `limit ${figureOf(limit, "")} ${sign}`);
  }
  return marks;
}

// Microbatches alive on each rank, from the number of activations of its stages.
export function keptBy({ rows, stages }, alive) {
  return rows.map((row, rank) => alive[rank] / new Set(row.map((code) => (code >> 2) % stages)).size);
}

function keysOf({ rows }, run, levels) {
  const there = new Set(rows.flatMap((row) => row.map((code) => code & 3)));
  const keys = [0, 1, 2, 3].filter((kind) => there.has(kind)).map((kind) => [NAMES[kind], colourOf(LETTERS[kind])]);
  const most = Math.max(...levels), forward = colourOf("F");
  for (let level = 1; level <= most; level++)
    keys.push([`${ORDINALS[level]} stage of a rank`, tint(forward, SHARES[level])]);
  if (run.refused) keys.push(["never runs", tint(forward, 0.2)]);
  return keys;
}

// The same in words.
export function tellRun(schedule, run, times, unit) {
  const { name, stages, microbatches, rows } = schedule;
  const lines = [
    `${name}: ${plural(stages, "stage")} on ${plural(rows.length, "rank")}, ${batches(microbatches)}; ` +
      Object.entries(times).map(([word, all]) => `${word} ${range(all, unit)}`).join(", "),
  ]; // prettier-ignore
  if (run.refused) return [...lines, `  refused: ${run.refused.sentence}`].join("\n");
  lines.push(`  makespan ${figureOf(run.makespan, unit)}; bubble share ${percentOf(run.share)}, ` +
    `overhead ${percentOf(run.overhead)}, span ${percentOf(run.span)}`); // prettier-ignore
  lines.push(`  microbatches alive at most, by stage: ${run.peaks.join(", ")}`);
  return lines.join("\n");
}

function range(all, unit) {
  const [low, high] = [Math.min(...all), Math.max(...all)].map((value) => figureOf(value, unit));
  return low === high ? low : `${low} to ${high}`;
}
