// When each rank did what, as marks: bars, waits, idle times, the critical path and a second run.
import { axisMarks, legendMarks } from "./axes.js";
import { colourKey, colourOf, lettersOn, LEVEL_SHARES, levelKeys, tint } from "./colours.js";
import { columnOf, describeEvent, eventsAt, eventsOf, lanesOf } from "./events.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { PEAK_BAND, shadeOfKind, stackMarks, stacksOf } from "./memory_stacks.js";
import { amount } from "./numbers.js";

const TIMELINE_EDGE = 14, TIMELINE_TOP = 8; // px around a timeline
const BAR_HEIGHT = 18, RANK_GAP = 9; // px of a rank: what it computes, and paper below
const STACK_HEIGHT = 40; // px of what memory holds, under the bars of its rank
const GROUP_HEAD = 24; // px of a program's name above its ranks
const COMM_HEIGHTS = [16, 13, 8, 6]; // px of a line of communication, by how many a rank needs

// Grey alone would look like what is computed and has no colour of its own.
const IDLE_LOOK = { dots: true, edge: style.faint };

// Reads the data of a timeline once: what follows from them at any width and zoom.
export function readTimeline(data) {
  const runs = data.runs.map(eventsOf), lines = lanesOf(runs[0]);
  const names = data.names || data.ranks.map((rank) => `rank ${rank}`);
  const labels = data.groups ? data.groups.flatMap(([, own]) => own) : names;
  const stacks = data.memory ? stacksOf(data.memory) : [];
  return {
    ...data,
    runs,
    lines,
    isNamed: Boolean(data.names),
    names,
    labels,
    programs: groupsOf(data),
    place: rowPlaces(data, labels),
    colours: runs[0].ops.map(opColours),
    levels: stageLevels(runs[0]),
    steps: stepsOf(data),
    gaps: groupsOf(data).flatMap((places) => gapsOf(runs[0], lines, places)),
    same: sameEvents(data, runs),
    stacks: stacks.map((one) => ({ ...one, name: names[data.ranks.indexOf(one.rank)] })),
    shown: namesByColour(runs[0]),
    time: (ticks) => amount(ticks * data.tick, "s"),
  };
}

// Lays a timeline out; gives {marks, height, clip}.
export function layTimeline(timeline, state, width) {
  const { labels, runs, place, tick } = timeline;
  const view = viewOf(timeline, state, width);
  const marks = labels.map((label, i) => {
    const middle = place.y(i, 0, 0) + BAR_HEIGHT / 2;
    return textMark(place.left - 8, middle, label, { align: "right" });
  });
  marks.push(...place.heads.map(({ name, y }) => textMark(4, y, name)));
  const isPath = Boolean(state.path && timeline.steps);
  if (state.bubble) addGaps(marks, timeline, view);
  const { texts, waits } = addBars(marks, timeline, isPath, view);
  if (isPath) addPath(marks, timeline, view);
  for (const [n, run] of runs.entries()) if (n) addOutlines(marks, timeline, run, view);
  addStacks(marks, timeline, view);
  for (const text of texts) marks.push(text);
  marks.push(
    ...axisMarks(view.left, view.right, place.bottom, view.from * tick, view.to * tick),
  );
  const keys = keysOfTimeline(timeline, state, waits);
  const below = legendMarks(keys, view.left, place.bottom + 2 * style.line + 10, width);
  marks.push(...below.marks);
  const clip = { x: view.left, y: 0, w: view.right - view.left, h: place.bottom };
  return { marks, height: Math.round(below.y), clip };
}

// The window of time that is shown, in ticks and in pixels.
function viewOf({ place, span }, { from, to }, width) {
  const { left } = place, right = width - TIMELINE_EDGE, scale = (right - left) / (to - from);
  const x = (t) => left + (t - from) * scale;
  return { from, to, scale, left, right, x, end: x(span) };
}

// Where a rank computes nothing.
function addGaps(marks, { gaps, names, place, time }, { from, to, scale, x }) {
  for (const [i, begin, end] of gaps) {
    if (end < from || begin > to) continue;
    const about = () => `${names[i]}: not computing\nfrom ${time(begin)}, for ${time(end - begin)}`;
    const more = { ...IDLE_LOOK, inside: true, about };
    marks.push(boxMark(x(begin), place.y(i, 0, 0), (end - begin) * scale, BAR_HEIGHT, more));
  }
}

// The events of the first run; gives the texts on them, which lie above all bars, and whether any
// of them waits.
function addBars(marks, timeline, isFaded, view) {
  const { runs: [run], place, colours, levels } = timeline, { from, to, scale, x } = view;
  const texts = [];
  let waits = false;
  for (let i = 0; i < run.n; i++) {
    if (run.end[i] < from || run.start[i] > to) continue;
    const lane = run.lane[i], level = levels[i], colour = colours[run.op[i]][level];
    const shade = isFaded ? colour.faded : colour.shade;
    const half = run.half[i], h = lane ? place.comm : half ? BAR_HEIGHT / 2 : BAR_HEIGHT;
    const y = place.y(run.place[i], lane, run.track[i]) + (half === 2 ? h : 0);
    const more = { id: i, inside: true, about: () => describeOwnEvent(timeline, i) };
    const waiting = run.wait[i] - run.behind[i];
    let begin = run.start[i] + run.behind[i];
    if (waiting * scale > 0.5) {
      const box = boxMark(x(begin), y, waiting * scale, h, more);
      marks.push(Object.assign(box, { edge: style.faint, hatch: true }));
      begin += waiting;
      waits = true;
    }
    const w = Math.max((run.end[i] - begin) * scale, 0.6), at = x(begin);
    const box = boxMark(at, y, w, h, more);
    const edge = level && w > 5 && !isFaded ? colour.full : w > 3 ? style.paper : undefined;
    marks.push(Object.assign(box, { fill: shade, edge }));
    if (h <= 12 || w < 11 || isFaded) continue;
    addBarText(texts, timeline, i, box, colour.letters, view);
  }
  return { texts, waits };
}

// What a bar is, in the part of it that is seen, before a span that lies inside this one.
function addBarText(texts, { runs }, i, { x: at, y, w, h, fill }, letters, { left, right, x }) {
  const run = runs[0], isComm = run.lane[i] || run.lane[i + 1];
  const isNext = i + 1 < run.n && !isComm && run.place[i + 1] === run.place[i];
  const end = isNext && run.start[i + 1] < run.end[i] ? x(run.start[i + 1]) : at + w;
  const first = Math.max(at, left), last = Math.min(end, right), middle = (first + last) / 2;
  const text = barText(run.ops[run.op[i]], run.microbatch[i], last - first);
  if (!text) return;
  if (runs.length > 1) { // outlines pass behind the words
    const wide = Math.min(text.length * style.letter + 8, last - first);
    texts.push(boxMark(middle - wide / 2, y + h / 2 - 7, wide, 14, { fill, inside: true }));
  }
  const more = { fill: letters, align: "middle", inside: true };
  texts.push(textMark(middle, y + h / 2, text, more));
}

// What the end had to wait for: boxes in full colour, and lines from rank to rank.
function addPath(marks, timeline, { from, to, scale, x }) {
  const { steps, place, names, time } = timeline;
  let last = null;
  for (const step of steps) {
    const isComm = step.lane === 1, isUnknown = step.lane === 2;
    const y = place.y(step.place, Number(isComm), isComm ? trackOf(timeline, step) : 0);
    const h = isComm ? place.comm : BAR_HEIGHT, middle = y + h / 2, at = x(step.start);
    if (last && last.place !== step.place && !step.isFirst) {
      marks.push(lineMark([[at, last.y], [at, middle]], style.ink, { inside: true }));
    }
    last = { place: step.place, y: middle };
    if (step.end < from || step.start > to) continue;
    const text = isUnknown ? "nothing recorded explains this time" : step.op;
    const about = () =>
      `critical path, ${names[step.place]}: ${text}\nfor ${time(step.end - step.start)}`;
    const fill = isUnknown ? undefined : colourOf(step.op);
    const more = { fill, edge: style.ink, dots: isUnknown, thick: 1.5, inside: true, about };
    marks.push(boxMark(at, y, Math.max((step.end - step.start) * scale, 0.6), h, more));
  }
}

function trackOf({ runs, lines }, { place, start, end }) {
  const moving = eventsAt(runs[0], lines.get(2 * place + 1), (start + end) / 2);
  return moving.length ? runs[0].track[moving[0]] : 0;
}

// Another run in outlines over the first, dashed where it is predicted, from where an operation
// stood first in its group; a sliver would hide what it lies over.
function addOutlines(marks, timeline, run, { from, to, scale, x }) {
  const { place, names, tick, same } = timeline, dash = isPredicted(run);
  for (let i = 0; i < run.n; i++) {
    const begin = run.start[i] + run.behind[i], w = (run.end[i] - begin) * scale;
    if (w < 2 || run.end[i] < from || begin > to) continue;
    const y = place.y(run.place[i], run.lane[i], run.track[i]);
    const h = run.lane[i] ? place.comm : BAR_HEIGHT;
    const about = () =>
      `${run.source}: ${describeEvent(run, i, names, tick)}` +
      describeDifference(timeline, same.under[i], i);
    const more = { edge: style.ink, dash, inside: true, about };
    marks.push(boxMark(x(begin), y, w, h, more));
  }
}

// Whether a run is a prediction, which alone is drawn in dashes.
function isPredicted({ source }) {
  return source === "predicted";
}

// The memory of each rank, under its bars.
function addStacks(marks, { stacks, memory, ranks, place, tick }, view) {
  for (const stack of stacks) {
    const y = place.stack(ranks.indexOf(stack.rank));
    marks.push(...stackMarks(stack, memory.kinds, view, y, STACK_HEIGHT, memory.top, tick));
  }
}

function keysOfTimeline({ runs, shown, memory, levels }, state, waits) {
  const keys = Object.entries({ ...style.compute, ...style.comm })
    .filter(([name]) => shown.has(name))
    .map(([name, shade]) => [[...shown.get(name)].sort().join(", "), shade, false]);
  keys.push(...levelKeys(levels.reduce((a, b) => Math.max(a, b), 0)));
  if (state.bubble) keys.push(["not computing", null, "dots"]);
  if (waits) keys.push(["waiting for others", null, true]);
  for (const run of runs.slice(1)) keys.push([run.source, null, isPredicted(run) && "dashed"]);
  for (const kind of memory?.kinds || []) keys.push([kind, shadeOfKind(kind), false]);
  return keys;
}

// For each colour that occurs, the operations that have it. A letter and the ends of a message go
// by the colour's own name, and so does what is computed and has no colour.
function namesByColour({ op, ops, lane }) {
  const names = new Map();
  op.forEach((code, i) => {
    const own = ops[code], key = colourKey(own), isPlain = key === "compute" && !lane[i];
    if (!names.has(key)) names.set(key, new Set());
    const isShort = own.length === 1 || own === "send" || own === "recv";
    names.get(key).add(isPlain || isShort ? key : own);
  });
  return names;
}

function describeOwnEvent(timeline, i) {
  const { runs, names, tick, same } = timeline;
  const difference = describeDifference(timeline, i, same.above.get(i));
  return describeEvent(runs[0], i, names, tick) + difference;
}

// How an event of the first run differs from its counterpart in the second.
function describeDifference({ runs: [one, other], said, time }, first, second) {
  if (!(first >= 0) || !(second >= 0)) return "";
  const by = (ticks, more, less) => {
    return ticks ? `${time(Math.abs(ticks))} ${ticks > 0 ? more : less}` : "";
  };
  const longer = one.end[first] - one.start[first] - other.end[second] + other.start[second];
  const later = by(one.start[first] - other.start[second], "later", "earlier");
  const parts = [later, by(longer, "longer", "shorter")].filter(Boolean);
  return `\n${said.names.join(" against ")}: ${parts.join(", ") || "the same"}`;
}

// The places of each program's ranks, from the top.
function groupsOf({ groups, ranks }) {
  const all = ranks.map((_, place) => place);
  let from = 0;
  return groups ? groups.map(([, own]) => all.slice(from, (from += own.length))) : [all];
}

// Where the lines of each rank lie, and above those of each program its name.
function rowPlaces(data, labels) {
  const { ranks, groups, names, tracks, memory } = data;
  const comm = COMM_HEIGHTS[Math.max(tracks, 1) - 1];
  const bars = BAR_HEIGHT + tracks * (comm + 1) - (tracks > 0 ? 1 : 0);
  const rank = bars + (memory ? PEAK_BAND + STACK_HEIGHT : 0) + RANK_GAP;
  const digits = String(Math.max(...ranks)).length, letters = (name) => name.length * style.letter;
  const wide = names ? 14 + Math.max(...labels.map(letters)) : 62 + 8 * Math.max(0, digits - 2);
  const above = groupsOf(data).flatMap((own, n) => own.map(() => (groups ? n + 1 : 0)));
  const top = (place) => TIMELINE_TOP + place * rank + above[place] * GROUP_HEAD;
  const firsts = groups ? groupsOf(data).map(([place]) => place) : [];
  return {
    comm,
    left: wide,
    bottom: top(ranks.length - 1) + rank,
    heads: firsts.map((place, n) => ({ name: groups[n][0], y: top(place) - GROUP_HEAD / 2 - 2 })),
    stack: (place) => top(place) + bars + PEAK_BAND,
    y: (place, lane, track) => top(place) + lane * (BAR_HEIGHT + 1 + track * (comm + 1)),
  };
}

// The colours of an operation, for a rank's first stage, its second ...
function opColours(op) {
  const full = colourOf(op), faded = tint(full, 0.3);
  return LEVEL_SHARES.map((share) => {
    const shade = share < 1 ? tint(full, share) : full;
    return { full, shade, faded, letters: lettersOn(shade) };
  });
}

// For each event, whether its stage is the first (0), second (1) ... that its rank computes.
function stageLevels({ n, place, lane, stage }) {
  const own = new Map(), last = LEVEL_SHARES.length - 1;
  for (let i = 0; i < n; i++) {
    if (lane[i] || stage[i] < 0) continue;
    if (!own.has(place[i])) own.set(place[i], new Set());
    own.get(place[i]).add(stage[i]);
  }
  const order = new Map([...own].map(([at, all]) => [at, [...all].sort((a, b) => a - b)]));
  return place.map((at, i) => {
    return lane[i] || stage[i] < 0 ? 0 : Math.min(order.get(at).indexOf(stage[i]), last);
  });
}

// The steps of each program's critical path, or null where none travelled.
function stepsOf({ path, paths, ranks }) {
  const all = paths || (path ? [path] : null);
  return all && all.flatMap((one) => stepsOfPath(one, ranks));
}

// The steps of a path, each with its place: one begins where the one before it ends.
function stepsOfPath(path, ranks) {
  const names = ["op", "rank", "lane", "length"];
  const [op, rank, lane, length] = names.map((name) => columnOf(path[name], path.n));
  let start = path.begin;
  return length.map((long, i) => {
    const step = { op: path.ops[op[i]], place: ranks.indexOf(rank[i]), lane: lane[i] };
    const end = start + long;
    Object.assign(step, { start, end, isFirst: !i });
    start = end;
    return step;
  });
}

// Which events of two runs are the same operation: `under` by the other's, `above` by this one's.
function sameEvents({ pairs }, runs) {
  const under = pairs == null ? [] : columnOf(pairs, runs[1].n).map((shift, i) => shift + i);
  return { under, above: new Map(under.map((first, i) => [first, i])) };
}

// [place, from, to] of all times, from the first event at these places to the last, in which a rank
// computes nothing.
function gapsOf(events, lines, places) {
  const isHere = (_, i) => places.includes(events.place[i]);
  const begin = Math.min(...events.start.filter(isHere)), gaps = [];
  const span = Math.max(...events.end.filter(isHere));
  places.forEach((i) => {
    const line = lines.get(2 * i);
    let until = begin;
    for (let e = line ? line.from : 0; e < (line ? line.to : 0); e++) {
      if (events.start[e] > until) gaps.push([i, until, events.start[e]]);
      until = Math.max(until, events.end[e]);
    }
    if (until < span) gaps.push([i, until, span]);
  });
  return gaps;
}

// What fits into a bar: its name and microbatch, the microbatch alone, or nothing.
function barText(op, microbatch, width) {
  const number = microbatch >= 0 ? String(microbatch) : "";
  const whole = op + (op.length > 1 && number ? " " : "") + number;
  const full = op === "compute" && !number ? "" : whole;
  const broad = (text) => text.length + 0.7 * (text.match(/[mw]/gi) || []).length; // in letters
  return [full, number].find((text) => width > broad(text) * style.letter + 4) || "";
}
