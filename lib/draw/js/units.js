// Units that are gathered, compute and are freed: what is exposed and what is held, as the prefetch
// limit is turned.
import { axisMarks, legendMarks, wrapText } from "./axes.js";
import { colourOf, lettersOn } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas, plural, roundHalfEven } from "./numbers.js";
import { layLimits } from "./unit_limits.js";
import { playUnits } from "./unit_play.js";

const UNITS = { left: 84, right: 14, top: 6, bar: 24, gap: 8, tall: 64 }; // px
UNITS.comm = UNITS.top + UNITS.bar + UNITS.gap;
UNITS.memory = UNITS.comm + UNITS.bar + 26;
UNITS.end = UNITS.memory + UNITS.tall + 4;

// Makes the picture of units from what lib/draw/units.py gathers.
export function picture(data) {
  const { start } = data, seconds = (value) => amount(value, "s");
  const slider = (name, label, values, show) => {
    const last = values.length - 1;
    return { kind: "slider", name, label, min: 0, max: last, show: (n) => show(values[n]) };
  };
  return {
    title: "Units: gather, compute, free",
    summary: data.summary,
    state: {
      prefetch: start.prefetch,
      resharded: start.resharded,
      ranks: data.ranks.indexOf(start.ranks),
      alpha: data.alphas.indexOf(start.alpha),
      bandwidth: data.bandwidths.indexOf(start.bandwidth),
    },
    controls: [
      { kind: "slider", name: "prefetch", label: "Prefetch", min: 0, max: data.most },
      { kind: "toggle", name: "resharded", label: "Reshard after forward" },
      slider("ranks", "Ranks", data.ranks, String),
      slider("bandwidth", "Bandwidth", data.bandwidths, (value) => amount(value, "B/s")),
      slider("alpha", "Latency", data.alphas, seconds),
    ],
    layout: (state, width) => layUnits(data, state, width),
  };
}

function layUnits(data, state, width) {
  const network = {
    ranks: data.ranks[state.ranks],
    alpha: data.alphas[state.alpha],
    bandwidth: data.bandwidths[state.bandwidth],
  };
  const limits = Array.from({ length: data.most + 1 }, (_, n) => n);
  const runs = limits.map((limit) => playUnits(data, limit, state.resharded, network));
  const run = runs[state.prefetch], most = Math.max(...runs.map(({ peak }) => peak));
  const { left, top, comm, memory, end } = UNITS, right = width - UNITS.right;
  const scale = (right - left) / run.end, x = (time) => left + time * scale;
  const name = (text, y) => textMark(left - 8, y, text, { align: "right" });
  const marks = [
    name("compute", top + UNITS.bar / 2),
    name("network", comm + UNITS.bar / 2),
    name("held", memory + UNITS.tall / 2),
    ...gapMarks(run, x),
    ...run.bars.map((bar) => unitMarks(data, bar, x)).flat(),
    ...heldMarks(run, x, most),
    ...axisMarks(left, right, end, 0, run.end),
  ];
  let y = end + 2 * style.line + 8;
  for (const line of unitsInWords(state, run).flatMap((text) => wrapText(text, right - left))) {
    marks.push(textMark(left, y, line));
    y += style.line;
  }
  const below = layLimits(runs, state.prefetch, most, left, right, y + 6);
  const keys = [
    ...["forward", "backward", "all_gather", "reduce_scatter"].map((op) => [op, colourOf(op)]),
    ["whole units", shadeOfKind("parameters")],
    ["whole gradients", shadeOfKind("gradients")],
    ["exposed", null, true],
  ];
  const legend = legendMarks(keys, left, below.y + 4, width);
  const summary = unitsSummary(data, state, network, run);
  const caption = unitsCaption(data, network);
  return { marks: [...marks, ...below.marks, ...legend.marks], height: legend.y, summary, caption };
}

// Where nothing is computed until the step ends: exposed.
function gapMarks(run, x) {
  const computed = run.bars.filter(({ kind }) => kind === "forward" || kind === "backward");
  const starts = [...computed.map(({ start }) => start), run.end];
  const ends = [0, ...computed.map(({ end }) => end)];
  return starts.flatMap((start, n) => {
    const w = x(start) - x(ends[n]);
    if (w < 0.5) return [];
    const about = `exposed: ${amount(start - ends[n], "s")}`;
    const more = { edge: style.faint, hatch: true, about, id: `gap ${n}` };
    return [boxMark(x(ends[n]), UNITS.top, w, UNITS.bar, more)];
  });
}

// A unit that computes or moves, with its name where there is room.
function unitMarks({ names, nbytes }, { kind, unit, start, end }, x) {
  const isCompute = kind === "forward" || kind === "backward", w = x(end) - x(start);
  const y = isCompute ? UNITS.top : UNITS.comm, fill = colourOf(kind);
  const about = () =>
    `${kind} of ${names[unit]}${isCompute ? "" : `: ${commas(nbytes[unit])} bytes`}\n` +
    `${amount(start, "s")} to ${amount(end, "s")}`;
  const edge = w > 3 ? style.paper : undefined, text = names[unit];
  const bar = boxMark(x(start), y, w, UNITS.bar, { fill, edge, about, id: `${kind} ${unit}` });
  if (w <= text.length * style.letter + 4) return [bar];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [bar, textMark(x(start) + w / 2, y + UNITS.bar / 2, text, letters)];
}

// What is held beside the shards: whole units, and on them whole gradients, in steps.
function heldMarks({ held, end, peak }, x, most) {
  const base = UNITS.memory + UNITS.tall, height = (bytes) => base - (bytes / most) * UNITS.tall;
  const area = (of, kind) => {
    const points = [[x(0), base]];
    for (const one of held) {
      points.push([x(one[0]), points.at(-1)[1]], [x(one[0]), height(of(one))]);
    }
    points.push([x(end), points.at(-1)[1]], [x(end), base]);
    return areaMark(points, shadeOfKind(kind), { alpha: 1, about: kind, id: kind });
  };
  const at = held.find(([, whole, gradients]) => whole + gradients === peak)[0];
  const text = amount(peak, "B"), half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(x(at), x(0) + half), x(end) - half);
  const about = `${commas(peak)} bytes`;
  return [
    area(([, whole, gradients]) => whole + gradients, "gradients"),
    area(([, whole]) => whole, "parameters"),
    lineMark([[x(0), base], [x(end), base]], style.faint, { thick: 1 }),
    boxMark(x(at) - 3, height(peak) - 3, 6, 6, { fill: style.ink, about }),
    textMark(middle, height(peak) - 12, text, { align: "middle" }),
  ];
}

function unitsInWords({ prefetch, resharded }, { end, exposed, peak }) {
  const share = roundHalfEven((100 * exposed) / end), mode = resharded ? "" : ", not resharded";
  const time = `exposed ${amount(exposed, "s")} (${share} %)`;
  return [
    `prefetch ${prefetch}${mode}: ${amount(end, "s")}, ${time}`,
    `held beside the shards: at most ${amount(peak, "B")}`,
  ];
}

// Describes the step in words, without times.
function unitsSummary({ nbytes, names }, { prefetch, resharded }, { ranks }, run) {
  const all = commas(nbytes.reduce((a, b) => a + b)), mode = resharded ? "" : ", not resharded";
  const order = run.bars.map(({ kind, unit }) => `${kind} ${names[unit]}`);
  const shown = order.slice(0, 12).join(", ") + (order.length > 12 ? ", …" : "");
  return [
    `units: ${plural(nbytes.length, "unit")}, ${all} bytes, on ${plural(ranks, "rank")}, ` +
    `prefetch ${prefetch}${mode}`,
    `  in order: ${shown}`,
    `  held beside the shards: at most ${commas(run.peak)} bytes`,
  ].join("\n");
}

// Says what the numbers are; a link that was turned by hand is an invented one.
function unitsCaption({ start, link, more }, { alpha, bandwidth }) {
  const isStart = alpha === start.alpha && bandwidth === start.bandwidth;
  const turned = `latency ${amount(alpha, "s")}, ${amount(bandwidth, "B/s")} one way`;
  return [
    "Predicted: units compute for the time given, and the collective of a unit takes n − 1 " +
    "latencies plus (n − 1)/n of its bytes ÷ bandwidth, over " +
    (isStart ? link : `an invented link (${turned})`) + ".",
    more,
  ].filter(Boolean).join(" ");
}
