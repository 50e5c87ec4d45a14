// When each rank did what: bars on a time axis that is zoomed, moved and played.
import { eventName, eventsAt, ranksInWords } from "./events.js";
import { aliveAt, peakStatus, totalBytes } from "./memory_stacks.js";
import { amount } from "./numbers.js";
import { layTimeline, readTimeline } from "./timeline_layout.js";
import { timelineRows, timelineTrace } from "./timeline_rows.js";
import { playHeadMarks, zoomable } from "./zoom.js";

const PERFETTO = " Open it at ui.perfetto.dev.";
const PATH = "What the end waited for (critical path)";

// Makes the picture of a timeline from what lib/draw/timeline.py gathers.
export function picture(data) {
  const timeline = readTimeline(data), zoom = zoomable(timeline.span, "at");
  return {
    title: `Timeline, ${timeline.runs[0].source}`,
    summary: data.summary,
    state: { ...zoom.state, at: 0, bubble: false, path: false },
    moving: ["at"],
    controls: [
      timePlayer(timeline, zoom),
      ...zoom.controls,
      { kind: "toggle", name: "bubble", label: "Idle time (bubble)" },
      ...(timeline.steps ? [{ kind: "toggle", name: "path", label: PATH }] : []),
    ],
    layout: (state, width) => ({
      ...layTimeline(timeline, state, width),
      status: timelineStatus(timeline, state),
    }),
    overlay: (state, width, { clip }) => playHeadMarks(state, clip),
    status: (state, laid) =>
      [laid.status, state.at && eventsStatus(timeline, state.at)].filter(Boolean).join("\n"),
    numbers: () => timelineRows(timeline),
    files: [["Save for Perfetto", ".trace.json", () => timelineTrace(timeline), PERFETTO]],
    wheel: zoom.wheel,
    pan: zoom.pan,
    key: zoom.key,
    drag: zoom.drag,
  };
}

function timePlayer({ span, time, runs: [run] }, { zoomed }) {
  const moments = () => [...run.start, ...run.end], range = { min: 0, max: span, seconds: 8 };
  return { kind: "player", name: "at", label: "Time", ...range, show: time, zoomed, moments };
}

// What is true of the whole time, as far as it is shown.
function timelineStatus({ said, stacks, tick }, state) {
  const sentences = [
    state.bubble && said.bubble,
    state.path && said.path,
    stacks.length && peakStatus(stacks, tick),
    said.thin,
  ];
  return sentences.filter(Boolean).join("\n");
}

// What every rank does at a moment; ranks that do the same are named together.
function eventsStatus(timeline, moment) {
  const { ranks, runs: [run], lines, stacks, memory } = timeline, placesByText = new Map();
  const moving = (e) => (moment < run.start[e] + run.wait[e] ? "waiting" : "moving");
  ranks.forEach((rank, i) => {
    const computes = eventsAt(run, lines.get(2 * i), moment).slice(0, 1);
    const moves = eventsAt(run, lines.get(2 * i + 1), moment).reverse();
    const names = [
      ...computes.map((e) => eventName(run, e)),
      ...moves.map((e) => `${eventName(run, e)} ${moving(e)}`),
    ];
    const stack = stacks.find((one) => one.rank === rank);
    const bytes = stack && amount(totalBytes(aliveAt(stack, memory.kinds, moment)), "B");
    const text = [names.join(" and ") || "idle", bytes].filter(Boolean).join(", ");
    placesByText.set(text, [...(placesByText.get(text) || []), i]);
  });
  return [...placesByText]
    .map(([text, places]) => `${placesInWords(timeline, places)}: ${text}`)
    .join("; ");
}

// Names rows: "ranks 0 to 3", or by program: "GPipe, rank 0, rank 1 and 1F1B, rank 0".
function placesInWords({ isNamed, names, labels, groups, programs, ranks }, places) {
  if (!isNamed) return ranksInWords(places.map((i) => ranks[i]));
  if (!groups) return places.map((i) => names[i]).join(", ");
  const own = programs.map((all) => all.filter((i) => places.includes(i)));
  return own
    .map((here, n) => here.length && [groups[n][0], ...here.map((i) => labels[i])].join(", "))
    .filter(Boolean)
    .join(" and ");
}
