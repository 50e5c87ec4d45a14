// Gradients fill buckets, and buckets travel while backward goes on.
import { axisMarks, legendMarks } from "./axes.js";
import { layCurve, sizeScale } from "./bucket_curve.js";
import { laneHeadMarks, LANES, layLanes, layMeasured } from "./bucket_lanes.js";
import { best, fly } from "./bucket_overlap.js";
import {
  bucketNumbers,
  bucketsCaption,
  bucketsSummary,
  inSize,
  measuredStatus,
  momentStatus,
} from "./bucket_words.js";
import { textMark } from "./marks.js";
import { amount } from "./numbers.js";

// Makes the picture of buckets from what lib/draw/buckets.py gathers.
export function picture(data) {
  const curveOf = exposedBySize(data), { start } = data;
  return {
    title: "Buckets in flight",
    summary: data.summary,
    state: {
      at: 1,
      stop: start.stop,
      ranks: data.ranks.indexOf(start.ranks),
      alpha: data.alphas.indexOf(start.alpha),
      bandwidth: data.bandwidths.indexOf(start.bandwidth),
    },
    moving: ["at"],
    controls: bucketControls(data, curveOf),
    layout: (state, width) => layBuckets(data, state, width, curveOf(state)),
    overlay: (state, width, laid) => laneHeadMarks(state.at, laid.wide),
    status: (state, { run, compared }) =>
      [state.at < 1 && momentStatus(data, run, state.at * run.end), compared]
        .filter(Boolean).join("\n"),
    ...bucketPointer(data),
  };
}

function networkOf(data, state) {
  return {
    ranks: data.ranks[state.ranks],
    alpha: data.alphas[state.alpha],
    bandwidth: data.bandwidths[state.bandwidth],
  };
}

// A function of the state: what is exposed at each stop, in how many buckets, and where least is;
// computed anew only for another network.
function exposedBySize(data) {
  const { nbytes, seconds, stops } = data;
  let key = "", curve = {};
  return (state) => {
    const network = networkOf(data, state), asked = JSON.stringify(network);
    if (asked !== key) {
      const runs = stops.map((limits) => fly(nbytes, seconds, limits, network));
      const heights = runs.map((run) => run.exposed);
      const counts = runs.map((run) => run.flights.length);
      const bestStop = best(nbytes, seconds, stops, network), least = leastExposed(stops, runs);
      [key, curve] = [asked, { heights, counts, bestStop, least }];
    }
    return curve;
  };
}

// The stretches [first, last] of stops that end soonest together, of those with one limit.
function leastExposed(stops, runs) {
  const plain = stops.map((_, n) => n).filter((n) => stops[n].length === 1), stretches = [];
  const good = Math.min(...plain.map((n) => runs[n].end)) * (1 + 1e-9);
  plain.forEach((n, i) => {
    if (runs[n].end > good) return;
    const isNext = stretches.length && plain[i - 1] === stretches.at(-1)[1];
    if (isNext) stretches.at(-1)[1] = n;
    else stretches.push([n, n]);
  });
  return stretches;
}

function bucketControls(data, curveOf) {
  const { nbytes, seconds, stops } = data, usual = stops.findIndex((limits) => limits.length > 1);
  const slider = (name, label, values, text) => {
    const show = (n) => text(values[n]);
    return { kind: "slider", name, label, min: 0, max: values.length - 1, show };
  };
  const button = (name, label, press) => ({ kind: "button", name, label, press });
  const show = (at, state) => {
    const run = fly(nbytes, seconds, stops[state.stop], networkOf(data, state));
    return amount(at * run.end, "s");
  };
  return [
    slider("ranks", "Ranks", data.ranks, String),
    slider("bandwidth", "Bandwidth", data.bandwidths, (value) => amount(value, "B/s")),
    slider("alpha", "Latency", data.alphas, (value) => amount(value, "s")),
    slider("stop", "Bucket size", stops, inSize),
    button("best", "Least exposed", (state) => ({ stop: curveOf(state).bestStop })),
    button("usual", "PyTorch's default", () => ({ stop: usual })),
    { kind: "player", name: "at", label: "Time", min: 0, max: 1, seconds: 6, show },
    ...(data.asks ? [{ kind: "ask", name: "run", label: "Run on real ranks" }] : []),
  ];
}

// The pointer moves the size on the curve, and the time on the lanes.
function bucketPointer({ stops }) {
  let holding = ""; // what the pointer moves: "size", "time" or nothing
  const nearestStop = ({ scale }, { x }) => {
    const far = (n) => Math.abs(scale.ofStop(n) - x);
    return stops.reduce((near, _, n) => (far(n) < far(near) ? n : near), 0);
  };
  const move = (at, state, laid) => {
    if (holding === "size") return { stop: nearestStop(laid, at) };
    return { at: Math.min(1, Math.max(0, (at.x - LANES.left) / laid.wide)) };
  };
  const start = (mark, at, state, laid) => {
    const isInside = at.x > LANES.left - 6;
    holding = at.y > laid.curveTop && isInside ? "size" : "";
    if (at.y < LANES.end + 24 && isInside) holding = "time";
    return Boolean(holding);
  };
  const press = (mark, at, state, laid) => holding && move(at, state, laid);
  return { drag: { start, move, end: move }, press };
}

function layBuckets(data, state, width, curve) {
  const { nbytes, seconds, stops, measured } = data, network = networkOf(data, state);
  const outlined = measured?.stop === state.stop ? measured : null; // others say nothing
  const { left } = LANES, right = width - LANES.right, wide = right - left;
  const run = fly(nbytes, seconds, stops[state.stop], network);
  const seen = outlined ? Math.max(measured.backward, ...measured.bars.flat()) : 0;
  const span = Math.max(run.end, seen), pixels = wide / span;
  const marks = layLanes(data, run, pixels);
  if (outlined) marks.push(...layMeasured(measured, pixels));
  marks.push(...axisMarks(left, right, LANES.end, 0, span));
  let y = LANES.end + 2 * style.line + 8;
  for (const text of bucketNumbers(stops[state.stop], run, wide)) {
    marks.push(textMark(left, y, text));
    y += style.line;
  }
  const curveTop = y + 8, scale = sizeScale(data, left, wide);
  if (nbytes.length > 1) {
    const below = layCurve(data, state.stop, curve, scale, y + 16);
    marks.push(...below.marks);
    y = below.y;
  }
  const keys = legendMarks(keysOfBuckets(outlined, stops, run, pixels), left, y + 4, width);
  const compared = outlined ? measuredStatus(outlined, data, run, network) : "";
  const summary = bucketsSummary(data, run, network);
  const caption = bucketsCaption({ ...data, measured: outlined }, network);
  const places = { wide: pixels * run.end, run, scale, curveTop, caption };
  return { marks: [...marks, ...keys.marks], height: keys.y, ...places, summary, compared };
}

function keysOfBuckets(measured, stops, run, pixels) {
  const keys = run.exposed * pixels > 1 ? [["waiting for the last bucket", null, true]] : [];
  if (measured) keys.push([`${measured.source}, ${inSize(stops[measured.stop])}`, null, false]);
  return keys;
}
