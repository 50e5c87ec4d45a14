// When each rank did what: the living twin of lib/draw/timeline.py.
// needs: zoom events stack
import { zoomable, headAt } from "./zoom.js";
import { columnOf, eventsOf, lanesOf, goingOn, named, tellEvent, ranksInWords } from "./events.js";
import { BAND, stacksOf, stackMarks, aliveAt, sayPeak, shadeOfKind, total } from "./stack.js";
import { amount, axis, colourOf, family, legend, lettersOn, tint } from "./axes.js";

const EDGE = 14, TOP = 8; // px around a timeline
const TALL = 18, GAP = 9; // px of a rank: what it computes, and paper below
const STACK = 40; // px of what memory holds, under the bars of its rank
const COMM = [16, 13, 8, 6]; // px of a line of communication, by how many a rank needs

export function picture(data) {
  const { ranks, tick, span } = data;
  const runs = data.runs.map(eventsOf), lines = lanesOf(runs[0]);
  const place = places(data), window = zoomable(span, "at");
  const looks = runs[0].ops.map(look);
  const { path, idle } = { path: stepsOf(data), idle: gapsOf(runs[0], lines, ranks) };
  const over = overOf(data, runs);
  const held = data.memory ? stacksOf(data.memory) : [];
  const shown = new Set([...new Set(runs[0].op)].map((op) => family(runs[0].ops[op])));
  const time = (ticks) => amount(ticks * tick, "s");

  function layout(state, width) {
    const right = width - EDGE, { from, to } = state;
    const scale = (right - place.left) / (to - from);
    const view = { from, to, scale, left: place.left, right, x: (t) => place.left + (t - from) * scale };
    const marks = ranks.map((rank, i) => ({
      kind: "text", x: place.left - 8, y: place.y(i, 0, 0) + TALL / 2, fill: style.ink,
      text: `rank ${rank}`, align: "right",
    })); // prettier-ignore
    if (state.bubble) gaps(marks, view);
    const { texts, waits } = bars(marks, runs[0], state.path && path, view);
    if (state.path && path) steps(marks, view);
    for (const run of runs.slice(1)) outlines(marks, run, view);
    for (const stack of held) {
      const y = place.stack(ranks.indexOf(stack.rank)), more = { ...view, end: view.x(span) };
      marks.push(...stackMarks(stack, data.memory.kinds, more, y, STACK, data.memory.top, tick));
    }
    for (const text of texts) marks.push(text);
    for (const mark of axis(place.left, right, place.bottom, from * tick, to * tick)) marks.push(mark);
    const keys = Object.entries({ ...style.compute, ...style.comm })
      .filter(([name]) => shown.has(name))
      .map(([name, shade]) => [name, shade, false]);
    if (state.bubble) keys.push(["not computing", style.grid, false]);
    if (waits) keys.push(["waiting for the last rank", null, true]);
    for (const run of runs.slice(1)) keys.push([run.source, null, false]);
    for (const kind of data.memory?.kinds || []) keys.push([kind, shadeOfKind(kind), false]);
    const below = legend(keys, place.left, place.bottom + 2 * style.line + 10, width);
    marks.push(...below.marks);
    const clip = { x: place.left, y: 0, w: right - place.left, h: place.bottom };
    return { marks, height: Math.round(below.y), clip, status: status(state) };
  }

  function status(state) {
    const { said } = data;
    const parts = [said.over, state.bubble && said.bubble, state.path && said.path,
      held.length && sayPeak(held, tick), said.thin]; // prettier-ignore
    return parts.filter(Boolean).join("\n");
  }

  // Where a rank computes nothing.
  function gaps(marks, { from, to, scale, x }) {
    for (const [i, begin, end] of idle) {
      if (end < from || begin > to) continue;
      const about = () => `rank ${ranks[i]}: not computing\nfrom ${time(begin)}, for ${time(end - begin)}`;
      const box = { kind: "box", x: x(begin), y: place.y(i, 0, 0), w: (end - begin) * scale, h: TALL };
      marks.push({ ...box, fill: style.grid, inside: true, about });
    }
  }

  // What the end had to wait for: boxes in full colour, and lines from rank to rank.
  function steps(marks, { from, to, scale, x }) {
    let last = null;
    for (const step of path) {
      const track = step.lane === 1 ? trackOf(step) : 0;
      const y = place.y(step.place, step.lane === 1 ? 1 : 0, track);
      const h = step.lane === 1 ? place.comm : TALL, middle = y + h / 2;
      if (last && last.place !== step.place)
        marks.push({ kind: "line", edge: style.ink, points: [[x(step.start), last.y], [x(step.start), middle]], inside: true });
      last = { place: step.place, y: middle };
      if (step.end < from || step.start > to) continue;
      const box = { kind: "box", x: x(step.start), y, w: Math.max((step.end - step.start) * scale, 0.6), h };
      const fill = step.lane === 2 ? undefined : colourOf(step.op);
      const words = step.lane === 2 ? "nothing recorded explains this time" : step.op;
      const about = () => `critical path, rank ${ranks[step.place]}: ${words}\nfor ${time(step.end - step.start)}`;
      marks.push({ ...box, fill, edge: style.ink, dash: step.lane === 2, thick: 1.5, inside: true, about });
    }
  }

  function trackOf({ place, start, end }) {
    const moving = goingOn(runs[0], lines.get(2 * place + 1), (start + end) / 2);
    return moving.length ? runs[0].track[moving[0]] : 0;
  }

  function bars(marks, run, faded, { from, to, scale, left, right, x }) {
    const texts = [];
    let waits = false;
    for (let i = 0; i < run.n; i++) {
      if (run.end[i] < from || run.start[i] > to) continue;
      const lane = run.lane[i], { letters } = looks[run.op[i]];
      const shade = faded ? looks[run.op[i]].faded : looks[run.op[i]].shade;
      const half = run.half[i], h = lane ? place.comm : half ? TALL / 2 : TALL;
      const y = place.y(run.place[i], lane, run.track[i]) + (half === 2 ? h : 0);
      const more = { id: i, inside: true, about: () => tell(i) };
      const waiting = run.wait[i] - run.behind[i];
      let begin = run.start[i] + run.behind[i];
      if (waiting * scale > 0.5) {
        const box = { kind: "box", x: x(begin), y, w: waiting * scale, h, edge: style.faint, hatch: true };
        marks.push(Object.assign(box, more));
        begin += waiting;
        waits = true;
      }
      const w = Math.max((run.end[i] - begin) * scale, 0.6), at = x(begin);
      const box = { kind: "box", x: at, y, w, h, fill: shade, edge: w > 3 ? style.paper : undefined };
      marks.push(Object.assign(box, more));
      if (h <= 12 || w < 11 || faded) continue;
      // words stand in the part that is seen, before a span that lies inside this one
      const next = i + 1 < run.n && !lane && !run.lane[i + 1] && run.place[i + 1] === run.place[i];
      const ends = next && run.start[i + 1] < run.end[i] ? x(run.start[i + 1]) : at + w;
      const first = Math.max(at, left), last = Math.min(ends, right);
      const text = label(run.ops[run.op[i]], run.microbatch[i], last - first);
      const middle = (first + last) / 2, wide = Math.min(text.length * style.letter + 8, last - first);
      if (text && runs.length > 1) // outlines pass behind the words
        texts.push({ kind: "box", x: middle - wide / 2, y: y + h / 2 - 7, w: wide, h: 14, fill: shade, inside: true });
      if (text)
        texts.push({ kind: "text", x: middle, y: y + h / 2, fill: letters, text, align: "middle", inside: true });
    }
    return { texts, waits };
  }

  function outlines(marks, run, { from, to, scale, x }) {
    for (let i = 0; i < run.n; i++) {
      const w = (run.end[i] - run.start[i]) * scale;
      if (w < 2 || run.end[i] < from || run.start[i] > to) continue; // a sliver would hide what it lies over
      const y = place.y(run.place[i], run.lane[i], run.track[i]), h = run.lane[i] ? place.comm : TALL;
      const about = () => `${run.source}: ${tellEvent(run, i, ranks, tick)}${versus(over.under[i], i)}`;
      marks.push({ kind: "box", x: x(run.start[i]), y, w, h, edge: style.ink, dash: true, inside: true, about });
    }
  }

  const tell = (i) => tellEvent(runs[0], i, ranks, tick) + versus(i, over.above.get(i));

  // How an event differs from the one of the other run.
  function versus(here, there) {
    if (!(here >= 0) || !(there >= 0)) return "";
    const [one, other] = runs, by = (ticks, more, less) => (ticks ? `${time(Math.abs(ticks))} ${ticks > 0 ? more : less}` : "");
    const longer = one.end[here] - one.start[here] - other.end[there] + other.start[there];
    const parts = [by(one.start[here] - other.start[there], "later", "earlier"), by(longer, "longer", "shorter")];
    return `\n${data.said.names.join(" against ")}: ${parts.filter(Boolean).join(", ") || "the same"}`;
  }

  // What every rank does at the play head; ranks that do the same are told together.
  function doing(moment) {
    const told = new Map();
    ranks.forEach((rank, i) => {
      const computes = goingOn(runs[0], lines.get(2 * i), moment).slice(0, 1);
      const moves = goingOn(runs[0], lines.get(2 * i + 1), moment).reverse();
      const words = [
        ...computes.map((e) => named(runs[0], e)),
        ...moves.map((e) => `${named(runs[0], e)} ${moment < runs[0].start[e] + runs[0].wait[e] ? "waiting" : "moving"}`),
      ];
      const stack = held.find((one) => one.rank === rank), text = [words.join(" and ") || "idle",
        stack && amount(total(aliveAt(stack, data.memory.kinds, moment)), "B")].filter(Boolean).join(", ");
      told.set(text, [...(told.get(text) || []), rank]);
    });
    return [...told].map(([text, who]) => `${ranksInWords(who)}: ${text}`).join("; ");
  }

  return {
    title: `Timeline, ${runs[0].source}`,
    summary: data.summary,
    state: { ...window.state, at: 0, bubble: false, path: false },
    moving: ["at"],
    controls: [
      { kind: "player", name: "at", label: "Time", min: 0, max: span, seconds: 8, show: time },
      ...window.controls,
      { kind: "toggle", name: "bubble", label: "Bubble" },
      ...(path ? [{ kind: "toggle", name: "path", label: "Critical path" }] : []),
    ],
    layout,
    overlay: (state, width, { clip }) => headAt(state, clip),
    says: (state, laid) => [laid.status, state.at && doing(state.at)].filter(Boolean).join("\n"),
    wheel: window.wheel, key: window.key, drag: window.drag,
  }; // prettier-ignore
}

// Where the lines of each rank lie.
function places({ ranks, tracks, memory }) {
  const comm = COMM[Math.max(tracks, 1) - 1];
  const bars = TALL + tracks * (comm + 1) - (tracks > 0 ? 1 : 0);
  const rank = bars + (memory ? BAND + STACK : 0) + GAP;
  const digits = String(Math.max(...ranks)).length;
  return {
    comm,
    left: 62 + 8 * Math.max(0, digits - 2),
    bottom: TOP + ranks.length * rank,
    stack: (place) => TOP + place * rank + bars + BAND,
    y: (place, lane, track) => TOP + place * rank + lane * (TALL + 1 + track * (comm + 1)),
  };
}

function look(op) {
  const shade = colourOf(op);
  return { shade, letters: lettersOn(shade), faded: tint(shade, 0.3) };
}

// The critical path, if it travelled: steps that touch, each with its place.
function stepsOf({ path, ranks }) {
  if (!path) return null;
  const [op, rank, lane, length] = ["op", "rank", "lane", "length"].map((name) => columnOf(path[name], path.n));
  let end = path.begin;
  return length.map((long, i) => {
    const step = { op: path.ops[op[i]], place: ranks.indexOf(rank[i]), lane: lane[i], start: end, end: end + long };
    end += long;
    return step;
  });
}

// Which events of two runs are the same operation: `under` by the other's, `above` by this one's.
function overOf({ pairs }, runs) {
  const under = pairs == null ? [] : columnOf(pairs, runs[1].n).map((shift, i) => shift + i);
  return { under, above: new Map(under.map((here, i) => [here, i])) };
}

// [place, from, to] of all times, from the first event to the last, in which a rank does not compute.
function gapsOf(events, lines, ranks) {
  const begin = Math.min(...events.start), span = Math.max(...events.end), gaps = [];
  ranks.forEach((_, i) => {
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
function label(op, microbatch, width) {
  const number = microbatch >= 0 ? String(microbatch) : "";
  const whole = op + (op.length > 1 && number ? " " : "") + number;
  const full = op === "compute" && !number ? "" : whole;
  return [full, number].find((text) => width > text.length * style.letter + 4) || "";
}
