// When each rank did what: the living twin of lib/draw/timeline.py.
// needs: zoom events
import { zoomable } from "./zoom.js";
import { eventsOf, lanesOf, goingOn, named, tellEvent, ranksInWords } from "./events.js";
import { amount, axis, colourOf, family, legend, lettersOn } from "./axes.js";

const EDGE = 14, TOP = 8; // px around a timeline
const TALL = 18, GAP = 9; // px of a rank: what it computes, and paper below
const COMM = [16, 13, 8, 6]; // px of a line of communication, by how many a rank needs

export function picture(data) {
  const { ranks, tick, span } = data;
  const runs = data.runs.map(eventsOf), lines = lanesOf(runs[0]);
  const place = places(data), window = zoomable(span, "at");
  const kinds = runs.map((run) => run.ops.map(look));
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
    const { texts, waits } = bars(marks, runs[0], kinds[0], view);
    for (const run of runs.slice(1)) outlines(marks, run, view);
    for (const text of texts) marks.push(text);
    for (const mark of axis(place.left, right, place.bottom, from * tick, to * tick)) marks.push(mark);
    const keys = Object.entries({ ...style.compute, ...style.comm })
      .filter(([name]) => shown.has(name))
      .map(([name, shade]) => [name, shade, false]);
    if (waits) keys.push(["waiting for the last rank", null, true]);
    for (const run of runs.slice(1)) keys.push([run.source, null, false]);
    const below = legend(keys, place.left, place.bottom + 2 * style.line + 10, width);
    marks.push(...below.marks);
    const clip = { x: place.left, y: 0, w: right - place.left, h: place.bottom };
    return { marks, height: Math.round(below.y), clip };
  }

  function bars(marks, run, looks, { from, to, scale, left, right, x }) {
    const texts = [];
    let waits = false;
    for (let i = 0; i < run.n; i++) {
      if (run.end[i] < from || run.start[i] > to) continue;
      const lane = run.lane[i], { shade, letters } = looks[run.op[i]];
      const y = place.y(run.place[i], lane, run.track[i]), h = lane ? place.comm : TALL;
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
      if (h <= 12 || w < 11) continue;
      // words stand in the part that is seen, before a span that lies inside this one
      const next = i + 1 < run.n && !lane && !run.lane[i + 1] && run.place[i + 1] === run.place[i];
      const ends = next && run.start[i + 1] < run.end[i] ? x(run.start[i + 1]) : at + w;
      const first = Math.max(at, left), last = Math.min(ends, right);
      const text = label(run.ops[run.op[i]], run.microbatch[i], last - first);
      const middle = (first + last) / 2;
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
      const about = () => `${run.source}\n${tellEvent(run, i, ranks, tick)}`;
      marks.push({ kind: "box", x: x(run.start[i]), y, w, h, edge: style.ink, dash: true, inside: true, about });
    }
  }

  const tell = (i) => tellEvent(runs[0], i, ranks, tick);

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
      const text = words.join(" and ") || "idle";
      told.set(text, [...(told.get(text) || []), rank]);
    });
    return [...told].map(([text, who]) => `${ranksInWords(who)}: ${text}`).join("; ");
  }

  return {
    title: `Timeline, ${runs[0].source}`,
    summary: data.summary,
    state: { ...window.state, at: 0 },
    moving: ["at"],
    controls: [
      { kind: "player", name: "at", label: "Time", min: 0, max: span, seconds: 8, show: time },
      ...window.controls,
    ],
    layout,
    overlay(state, width, { clip }) {
      if (!state.at) return [];
      const x = clip.x + ((state.at - state.from) / (state.to - state.from)) * clip.w;
      return [{ kind: "line", edge: style.ink, points: [[x, 0], [x, clip.h]], inside: true }];
    },
    says: (state, laid) => [laid.status, state.at && doing(state.at)].filter(Boolean).join("\n"),
    wheel: window.wheel, key: window.key, drag: window.drag,
  }; // prettier-ignore
}

// Where the lines of each rank lie.
function places({ ranks, tracks }) {
  const comm = COMM[Math.max(tracks, 1) - 1];
  const rank = TALL + tracks * (comm + 1) - (tracks > 0 ? 1 : 0) + GAP;
  const digits = String(Math.max(...ranks)).length;
  return {
    comm,
    left: 62 + 8 * Math.max(0, digits - 2),
    bottom: TOP + ranks.length * rank,
    y: (place, lane, track) => TOP + place * rank + lane * (TALL + 1 + track * (comm + 1)),
  };
}

function look(op) {
  const shade = colourOf(op);
  return { shade, letters: lettersOn(shade) };
}

// What fits into a bar: its name and microbatch, the microbatch alone, or nothing.
function label(op, microbatch, width) {
  const number = microbatch >= 0 ? String(microbatch) : "";
  const whole = op + (op.length > 1 && number ? " " : "") + number;
  const full = op === "compute" && !number ? "" : whole;
  return [full, number].find((text) => width > text.length * style.letter + 4) || "";
}
