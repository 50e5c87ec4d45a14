// The allocator's blocks over time: addresses upwards, births and deaths to the right, and below it
// all free bytes beside the largest free block.
import { axisMarks, legendMarks, roundNumbers } from "./axes.js";
import { columnOf } from "./events.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas, plural } from "./numbers.js";
import { playHeadMarks, zoomable } from "./zoom.js";

const BLOCKS_LEFT = 66, BLOCKS_RIGHT = 14, BLOCKS_TOP = 22; // px
const ADDRESSES_TALL = 260, FREE_TALL = 64, BLOCKS_GAP = 30, LEAST_SEEN = 0.3; // px

// Makes the picture of blocks from what lib/draw/blocks.py gathers.
export function picture(data) {
  const runs = data.runs.map((run) => readRun(run, data.unit)), zoom = zoomable(data.span, "at");
  const options = runs.map(({ name }, n) => [n, name]);
  return {
    title: "The allocator's blocks over time",
    summary: data.summary,
    state: { ...zoom.state, at: 0, run: 0 },
    moving: ["at"],
    controls: [
      ...(runs.length > 1 ? [{ kind: "choice", name: "run", label: "Allocator", options }] : []),
      {
        kind: "player",
        name: "at",
        label: "Events",
        min: 0,
        max: data.span,
        seconds: 8,
        show: (at) => commas(Math.floor(at)),
        zoomed: zoom.zoomed,
      },
      ...zoom.controls,
    ],
    layout: (state, width) => layBlocks(data, runs[state.run], state, width),
    overlay: (state, width, { clip }) => playHeadMarks(state, clip),
    status: (state, laid) => {
      const run = runs[state.run], last = Math.min(Math.floor(state.at), run.events) - 1;
      const event = last < 0 ? run.scattered : last;
      return [stateStatus(run, event, last < 0), laid.status].filter(Boolean).join("\n");
    },
    wheel: zoom.wheel,
    pan: zoom.pan,
    key: zoom.key,
    drag: zoom.drag,
  };
}

// A replay with its columns as lists, sizes in bytes.
function readRun(run, unit) {
  const { n, events } = run, states = {}, bytes = (units) => units * unit;
  const [address, size] = [run.address, run.size].map((column) => columnOf(column, n).map(bytes));
  const born = summedUp(columnOf(run.born, n)), length = columnOf(run.length, n);
  const died = born.map((event, i) => event + length[i]);
  const rounded = columnOf(run.rounded, n), nbytes = size.map((all, i) => all - rounded[i]);
  for (const name in run.states) {
    states[name] = summedUp(columnOf(run.states[name], events)).map(bytes);
  }
  const [kind, maker] = [columnOf(run.kind, n), columnOf(run.maker, n)];
  return { ...run, address, size, nbytes, born, died, kind, maker, states };
}

function summedUp(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

function layBlocks(data, run, { from, to }, width) {
  const left = BLOCKS_LEFT, right = width - BLOCKS_RIGHT, base = BLOCKS_TOP + ADDRESSES_TALL;
  const x = (event) => left + ((event - from) / (to - from)) * (right - left);
  const y = (address) => base - (address / data.top) * ADDRESSES_TALL;
  const view = { from, to, left, right, x, y, base }, drawn = blockMarks(run, data.kinds, view);
  const free = freeMarks(run, data.free, view), end = free.y;
  const marks = [
    ...levelMarks(data.top, view, y),
    ...segmentMarks(run, view),
    ...drawn.marks,
    ...phaseMarks(run, view),
    ...free.marks,
    ...axisMarks(left, right, end, from, to, ""),
    textMark(right, end + style.line + 14, "events", { fill: style.faint, align: "right" }),
  ];
  const keys = [...data.kinds.map((kind) => [kind, shadeOfKind(kind), false])];
  keys.push(["free in a segment", null, true], ["largest free block", style.ink, false]);
  const below = legendMarks(keys, left, end + 2 * style.line + 12, width);
  const hidden = run.left + drawn.hidden;
  const few = hidden && `${plural(hidden, "block")} too small to be seen.`;
  const status = [few, run.failure].filter(Boolean).join("\n");
  const clip = { x: left, y: 0, w: right - left, h: end };
  return { marks: [...marks, ...below.marks], height: Math.round(below.y), clip, status };
}

// The addresses beside the picture, as round numbers of bytes.
function levelMarks(top, { left, right }, y) {
  return roundNumbers(0, top, 4).flatMap((bytes) => [
    lineMark([[left, y(bytes)], [right, y(bytes)]], style.grid, { thick: 1 }),
    textMark(left - 6, y(bytes), bytes ? amount(bytes, "B") : "0", { align: "right" }),
  ]);
}

// What the driver gave: hatched, as far as no block lies over it.
function segmentMarks({ segments }, { x, y, from, to }) {
  const isSeen = ([, , , since, until]) => until > from && since < to;
  return segments.filter(isSeen).map(([address, size, pool, since, until], n) => {
    const which = pool === "arena" ? "arena" : `segment of ${pool} blocks`;
    const about = `${which}: ${commas(size)} bytes, events ${commas(since)} to ${commas(until)}`;
    const more = { hatch: true, edge: style.faint, thick: 1, inside: true, id: `s${n}`, about };
    const high = y(address + size), wide = x(until) - x(since);
    return boxMark(x(since), high, wide, y(address) - high, more);
  });
}

// A box for each storage that is large enough to be seen.
function blockMarks(run, kinds, { x, y, from, to }) {
  const marks = [];
  let hidden = 0;
  for (let i = 0; i < run.n; i++) {
    const high = y(run.address[i]), low = y(run.address[i] + run.size[i]);
    if (run.died[i] <= from || run.born[i] >= to) continue;
    if (high - low < LEAST_SEEN) {
      hidden++;
      continue;
    }
    const begin = x(run.born[i]), wide = Math.max(x(run.died[i]) - begin, 0.5);
    const more = { fill: shadeOfKind(kinds[run.kind[i]]), inside: true, id: `b${run.born[i]}` };
    const edge = high - low > 4 && wide > 4 ? { edge: style.paper, thick: 0.5 } : {};
    const about = () => describeBlock(run, kinds, i);
    marks.push(boxMark(begin, low, wide, high - low, { ...more, ...edge, about }));
  }
  return { marks, hidden };
}

function describeBlock(run, kinds, i) {
  const maker = run.makers[run.maker[i]], rounded = run.size[i] - run.nbytes[i];
  return [
    `${kinds[run.kind[i]]}: ${commas(run.nbytes[i])} bytes`,
    rounded && `in a block of ${commas(run.size[i])}`,
    maker && `made by ${maker}`,
    `events ${commas(run.born[i])} to ${commas(run.died[i])}`,
  ].filter(Boolean).join("\n");
}

// Where forward, backward and the step begin: a line, and the name where it has room.
function phaseMarks({ phases, events }, { x, from, to, left, right, base }) {
  const marks = [];
  phases.forEach(([event, name], n) => {
    const until = n + 1 < phases.length ? phases[n + 1][0] : events;
    if (until <= from || event >= to) return;
    const begin = Math.max(left, x(event)), stop = Math.min(right, x(until));
    if (event >= from) marks.push(lineMark([[begin, 4], [begin, base]], style.faint, { thick: 1 }));
    if (name.length * style.letter > stop - begin - 6) return;
    marks.push(textMark(begin + 4, BLOCKS_TOP / 2, name, { fill: style.faint }));
  });
  return marks;
}

// All free bytes as an area, the largest free block as a line in front of it.
function freeMarks({ states, events }, most, { x, from, to, left, right, base }) {
  const end = base + BLOCKS_GAP + FREE_TALL, height = (bytes) => end - (bytes / most) * FREE_TALL;
  const steps = (column) => {
    const points = [];
    for (let i = Math.max(0, Math.floor(from)); i < Math.min(events, Math.ceil(to)); i++) {
      points.push([Math.max(left, x(i)), height(column[i])]);
      points.push([Math.min(right, x(i + 1)), height(column[i])]);
    }
    return points;
  };
  const area = steps(states.free), line = steps(states.largest_free), marks = [];
  if (area.length) {
    const outline = [[area[0][0], end], ...area, [area.at(-1)[0], end]];
    marks.push(areaMark(outline, style.grid, { alpha: 1, inside: true }));
    marks.push(lineMark(line, style.ink, { thick: 1.5, inside: true }));
  }
  const name = `free bytes, at most ${amount(most, "B")}`;
  marks.push(textMark(left, end - FREE_TALL - 10, name, { fill: style.faint }));
  return { marks, y: end };
}

// What is free after an event, and in how large a piece.
function stateStatus({ states }, event, isWorst) {
  const [allocated, reserved, free, largest, split] = [
    "allocated",
    "reserved",
    "free",
    "largest_free",
    "inactive_split",
  ].map((name) => states[name][event]);
  const when = isWorst ? "Most scattered after" : "After";
  return `${when} event ${commas(event)}: ${amount(allocated, "B")} allocated of ` +
    `${amount(reserved, "B")} reserved; ${amount(free, "B")} free, ` +
    `${amount(split, "B")} of it in segments that are partly in use; ` +
    `largest free block ${amount(largest, "B")}.`;
}
