// Gradients fill buckets, buckets travel while backward goes on. As lib/draw/_buckets.py draws it.
// needs: flight
import { amount, axis, commas, even, legend, lettersOn, linesOf, piece, plural, tint } from "./axes.js";
import { fly, best } from "./flight.js";

const room = { left: 84, right: 14, top: 8, bar: 24, fill: 60, gap: 12, fall: 20, curve: 56 }; // px
const fillTop = room.top + room.bar + room.gap, fillBase = fillTop + room.fill;
const laneTop = fillBase + room.fall, laneEnd = laneTop + room.bar + 8;

export function picture(data) {
  const { nbytes, seconds, stops, start } = data;
  const usual = stops.findIndex((limits) => limits.length > 1);
  const networkOf = (state) => ({
    ranks: data.ranks[state.ranks],
    alpha: data.alphas[state.alpha],
    bandwidth: data.bandwidths[state.bandwidth],
  });
  let known = "", curve = {};
  // What is exposed at each stop, and the best: the same until the network is another.
  const curveOf = (state) => {
    const net = networkOf(state), key = JSON.stringify(net);
    if (key !== known) {
      const heights = stops.map((limits) => fly(nbytes, seconds, limits, net).exposed);
      [known, curve] = [key, { heights, found: best(nbytes, seconds, stops, net) }];
    }
    return curve;
  };
  const slide = (name, label, values, show) => ({
    kind: "slider", name, label, min: 0, max: values.length - 1, show: (n) => show(values[n]),
  }); // prettier-ignore
  const pick = (laid, { x }) => {
    const far = (n) => Math.abs(laid.place(n) - x);
    return stops.reduce((near, _, n) => (far(n) < far(near) ? n : near), 0);
  };
  const move = (at, state, laid) =>
    holding === "size"
      ? { stop: pick(laid, at) }
      : { at: Math.min(1, Math.max(0, (at.x - room.left) / laid.wide)) };
  let holding = "";
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
    controls: [
      slide("stop", "Bucket size", stops, inSize),
      { kind: "button", name: "best", label: "Best size", press: (s) => ({ stop: curveOf(s).found }) },
      { kind: "button", name: "usual", label: "PyTorch's default", press: () => ({ stop: usual }) },
      slide("ranks", "Ranks", data.ranks, String),
      slide("bandwidth", "Bandwidth", data.bandwidths, (v) => amount(v, "B/s")),
      slide("alpha", "Latency", data.alphas, (v) => amount(v, "s")),
      {
        kind: "player", name: "at", label: "Time", min: 0, max: 1, seconds: 6,
        show: (at, state) => amount(at * fly(nbytes, seconds, stops[state.stop], networkOf(state)).end, "s"),
      },
      ...(data.asks ? [{ kind: "ask", name: "run", label: "Run on real ranks" }] : []),
    ], // prettier-ignore
    layout: (state, width) => layBuckets(data, state, width, networkOf(state), curveOf(state)),
    overlay: (state, width, laid) => playHead(state, laid),
    says: (state, laid) =>
      [state.at < 1 && sayMoment(data, laid.run, state.at * laid.run.end), laid.compared]
        .filter(Boolean).join("\n"), // prettier-ignore
    drag: {
      start(mark, at, state, laid) {
        holding = at.y > laid.curveTop && at.x > room.left - 6 ? "size" : "";
        if (at.y < laneEnd + 24 && at.x > room.left - 6) holding = "time";
        return Boolean(holding);
      },
      move,
      end: move,
    },
    press: (mark, at, state, laid) => holding && move(at, state, laid),
  };
}

function layBuckets(data, state, width, network, { heights, found }) {
  const right = width - room.right, wide = right - room.left;
  const run = fly(data.nbytes, data.seconds, data.stops[state.stop], network);
  const seen = data.measured ? Math.max(data.measured.backward, ...data.measured.bars.flat()) : 0;
  const span = Math.max(run.end, seen), pixels = wide / span;
  const marks = [...layLanes(data, run, pixels), ...layMeasured(data.measured, pixels)];
  marks.push(...axis(room.left, right, laneEnd, 0, span));
  let y = laneEnd + 2 * style.line + 8;
  for (const text of bucketNumbers(data.stops[state.stop], run, wide)) {
    marks.push({ kind: "text", x: room.left, y, fill: style.ink, text, align: "left" });
    y += style.line;
  }
  const curveTop = y + 8, place = placeOf(data, room.left, wide);
  if (data.nbytes.length > 1) {
    const more = layCurve(data, state.stop, heights, found, y + 16, right, place);
    marks.push(...more.marks);
    y = more.y;
  }
  const keys = run.exposed * pixels > 1 ? [["waiting for the last bucket", null, true]] : [];
  if (data.measured) keys.push([`measured, ${inSize(data.stops[data.measured.stop])}`, null, false]);
  const below = legend(keys, room.left, y + 4, width);
  return {
    marks: [...marks, ...below.marks],
    height: below.y,
    wide: pixels * run.end, run, place, curveTop,
    summary: sayBuckets(data, run, network),
    compared: data.measured ? sayMeasured(data.measured, data, run, network) : "",
  }; // prettier-ignore
}

// Backward, the buckets it fills, and their way to the other ranks.
function layLanes(data, run, pixels) {
  const { left, top, bar, fill } = room;
  const names = [["backward", top + bar / 2], ["buckets", fillTop + fill / 2], ["all-reduce", laneTop + bar / 2]];
  const marks = names.map(([text, y]) =>
    ({ kind: "text", x: left - 8, y, fill: style.ink, text, align: "right" })); // prettier-ignore
  const most = run.flights.reduce((m, flight) => Math.max(m, flight.bytes), 0);
  run.flights.forEach((flight, n) => {
    const shade = piece(n), first = flight.inside[0];
    const points = [[left + (first ? run.ready[first - 1] : 0) * pixels, fillBase]];
    let held = 0;
    for (const i of flight.inside) {
      const before = i ? run.ready[i - 1] : 0, x = left + before * pixels, w = data.seconds[i] * pixels;
      marks.push(...layBar(x, top, w, shade, [data.names[i]], () =>
        `${data.names[i]}: ${plural(data.nbytes[i], "byte")}\nready at ${amount(run.ready[i], "s")}, into bucket ${n}`,
        `g${i}`)); // prettier-ignore
      held += data.nbytes[i];
      points.push([x + w, fillBase - (held / most) * fill]);
    }
    const x = left + flight.full * pixels, start = left + flight.start * pixels;
    points.push([x, fillBase]);
    const about = () => sayBucket(flight, n);
    marks.push({ kind: "area", fill: tint(shade, 0.3), alpha: 1, points, about, id: `f${n}` });
    marks.push({ kind: "line", edge: shade, points });
    if (flight.end > flight.start) {
      marks.push({ kind: "line", edge: shade, points: [[x, fillBase], [start, laneTop]] });
      const words = [`${n}: ${inBytes(flight.bytes)}`, String(n)];
      marks.push(...layBar(start, laneTop, (flight.end - flight.start) * pixels, shade, words, about, `b${n}`));
    }
  });
  const x = left + run.backward * pixels, w = run.exposed * pixels;
  const about = () => `backward is over, ${amount(run.exposed, "s")} of communication is not: exposed`;
  if (w > 1) marks.push({ kind: "box", x, y: top, w, h: bar, edge: style.faint, hatch: true, about, id: "exposed" });
  marks.push({ kind: "line", edge: style.faint, dash: true, points: [[x, top], [x, laneTop + bar + 4]] });
  return marks;
}

function layBar(x, y, w, shade, words, about, id) {
  const marks = [{ kind: "box", x, y, w, h: room.bar, fill: shade, edge: w > 3 ? style.paper : undefined, about, id }];
  const text = words.find((t) => w > t.length * style.letter + 4);
  if (text)
    marks.push({ kind: "text", x: x + w / 2, y: y + room.bar / 2, fill: lettersOn(shade), text, align: "middle" });
  return marks;
}

// What real ranks recorded, dashed over what was predicted.
function layMeasured(measured, pixels) {
  if (!measured) return [];
  const box = (y, [from, to], what) => ({
    kind: "box", x: room.left + from * pixels, y, w: (to - from) * pixels, h: room.bar,
    edge: style.ink, dash: true, about: `measured: ${what}, ${amount(from, "s")} to ${amount(to, "s")}`,
  }); // prettier-ignore
  const bars = measured.bars.map((bar, n) => box(laneTop, bar, `bucket ${n}`));
  return [box(room.top, [0, measured.backward], "backward"), ...bars];
}

function placeOf(data, left, wide) {
  const low = Math.min(...data.nbytes), high = data.nbytes.reduce((a, b) => a + b);
  const of = (size) => left + (Math.log(size / low) / Math.log(high / low)) * wide;
  const place = (n) => of(Math.min(Math.max(data.stops[n].at(-1), low), high));
  return Object.assign(place, { of, low, high });
}

// What is exposed at each bucket size; where we are, and where it is least.
function layCurve(data, stop, heights, found, y, right, place) {
  const top = y + style.line, base = top + room.curve, { left } = room;
  const most = Math.max(...heights);
  const tall = (n) => base - (heights[n] / (most || 1)) * room.curve;
  const marks = [{ kind: "text", x: left, y, fill: style.ink, text: "exposed, by bucket size", align: "left" }];
  for (const [text, at] of [[amount(most, "s"), top], ["0", base]].slice(most ? 0 : 1))
    marks.push({ kind: "text", x: left - 8, y: at, fill: style.ink, text, align: "right" });
  marks.push({ kind: "line", edge: style.faint, points: [[left, base], [right, base]] });
  const steps = place.high / place.low > 300 ? [1] : [1, 2, 5];
  const powers = [...Array(18).keys()].flatMap((n) => steps.map((m) => m * 10 ** n))
    .filter((v) => place.low <= v && v <= place.high); // prettier-ignore
  const every = Math.ceil((powers.length * 70) / Math.floor(right - left)) || 1;
  powers.filter((_, n) => n % every === 0).forEach((power) => {
    const x = place.of(power), end = x > right - 24, text = amount(power, "B");
    marks.push({ kind: "line", edge: style.faint, points: [[x, base], [x, base + 4]] });
    marks.push({ kind: "text", x: end ? right : x, y: base + 14, fill: style.ink, text, align: end ? "right" : "middle" });
  }); // prettier-ignore
  const line = data.stops.map((limits, n) => [limits, [place(n), tall(n)]]);
  const points = line.filter(([limits]) => limits.length === 1).map(([, point]) => point);
  marks.push({ kind: "line", edge: style.comm.all_reduce, points });
  const x = place(found), end = x > right - 130, text = `best: ${inBytes(data.stops[found].at(-1))}`;
  marks.push({ kind: "line", edge: style.ink, dash: true, points: [[x, top], [x, base]] });
  marks.push({ kind: "text", x: end ? x - 6 : x + 6, y: top, fill: style.ink, text, align: end ? "right" : "left" });
  const about = () => `${inLimits(data.stops[stop])}: ${amount(heights[stop], "s")} exposed`;
  marks.push({ kind: "box", x: place(stop) - 4, y: tall(stop) - 4, w: 8, h: 8, fill: style.ink, edge: style.paper, about, id: "size" });
  return { marks, y: base + 14 + style.line };
}

// The future is faint.
function playHead(state, laid) {
  if (state.at >= 1) return [];
  const x = room.left + state.at * laid.wide, end = room.left + laid.wide + 1, y = laneEnd - 2;
  const veil = [[x, room.top - 4], [end, room.top - 4], [end, y], [x, y]];
  return [
    { kind: "area", fill: style.paper, alpha: 0.8, points: veil },
    { kind: "line", edge: style.ink, points: [[x, room.top - 4], [x, laneEnd]], thick: 2 },
  ];
}

function sayMoment(data, run, now) {
  const there = run.ready.filter((time) => time <= now).length;
  const which = (test) => run.flights.flatMap((flight, n) => (test(flight) ? [n] : []));
  const moving = which((f) => f.start <= now && now < f.end);
  const queued = which((f) => f.full <= now && now < f.start), done = which((f) => f.end <= now);
  return [
    `At ${amount(now, "s")}: ${there} of ${plural(data.nbytes.length, "gradient")} ready`,
    moving.length && `bucket ${moving[0]} is moving`,
    queued.length && `${plural(queued.length, "bucket")} waiting for the lane`,
    `${done.length} of ${run.flights.length} averaged`,
  ].filter(Boolean).join("; ") + "."; // prettier-ignore
}

function sayBucket(flight, n) {
  const late = flight.start - flight.full;
  return [
    `bucket ${n}: ${plural(flight.inside.length, "gradient")}, ${plural(flight.bytes, "byte")}`,
    `full at ${amount(flight.full, "s")}${late ? `, waits ${amount(late, "s")} for the lane` : ""}`,
    `moving until ${amount(flight.end, "s")}`,
  ].join("\n");
}

// The same in words, without times: _story in buckets.py.
function sayBuckets(data, run, { ranks }) {
  const all = commas(data.nbytes.reduce((a, b) => a + b));
  const lines = [
    `buckets: ${plural(data.nbytes.length, "gradient")}, ${all} bytes, on ${plural(ranks, "rank")}; the last layer's come first`,
  ];
  run.flights.slice(0, 8).forEach(({ inside, bytes }, n) =>
    lines.push(`  bucket ${n}: ${plural(inside.length, "gradient")}, ${commas(bytes)} bytes`));
  if (run.flights.length > 8) lines.push(`  and ${plural(run.flights.length - 8, "bucket")} more`);
  return lines.join("\n");
} // prettier-ignore

function sayMeasured(measured, data, run, network) {
  const end = Math.max(measured.backward, ...measured.bars.map(([, to]) => to));
  const exposed = amount(end - measured.backward, "s");
  return `Measured on ${plural(measured.ranks, "rank")}, ${inSize(data.stops[measured.stop])}: ` +
    `${plural(measured.bars.length, "all-reduce")}, exposed ${exposed}. ` +
    `Predicted here, on ${plural(network.ranks, "rank")}: exposed ${amount(run.exposed, "s")}.`; // prettier-ignore
}

function bucketNumbers(limits, run, wide) {
  const share = run.exposed / (run.moving || 1);
  return [
    ...linesOf(`${plural(run.flights.length, "bucket")}; ${inLimits(limits)}`, wide),
    ...linesOf(`exposed ${amount(run.exposed, "s")} of ${amount(run.moving, "s")} communication ` +
      `(${even(100 * share)} %)`, wide),
  ]; // prettier-ignore
}

// 25 MiB where it is whole, else 26.3 MB.
function inBytes(size) {
  return size % 2 ** 20 === 0 ? `${size / 2 ** 20} MiB` : amount(size, "B");
}

function inSize(limits) {
  return inBytes(limits.at(-1)) + (limits.length > 1 ? ", first 1 MiB" : "");
}

function inLimits(limits) {
  const [first, later] = limits.map(inBytes);
  return `full at ${first}` + (later ? `, later ones at ${later}` : "");
}
