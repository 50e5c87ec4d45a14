// Gradients in buckets, in words.
import { wrapText } from "./axes.js";
import { amount, commas, plural, roundHalfEven } from "./numbers.js";

// Tells in a sentence what has happened until the moment `now`.
export function momentStatus(data, run, now) {
  const readyCount = run.ready.filter((time) => time <= now).length;
  const which = (test) => run.flights.flatMap((flight, n) => (test(flight) ? [n] : []));
  const moving = which((f) => f.start <= now && now < f.end);
  const queued = which((f) => f.full <= now && now < f.start), done = which((f) => f.end <= now);
  return [
    `At ${amount(now, "s")}: ${readyCount} of ${plural(data.nbytes.length, "gradient")} ready`,
    moving.length && `bucket ${moving[0]} is moving`,
    queued.length && `${plural(queued.length, "bucket")} waiting for the lane`,
    `${done.length} of ${run.flights.length} averaged`,
  ].filter(Boolean).join("; ") + ".";
}

// Describes a bucket and its way, in lines.
export function describeBucket(flight, n) {
  const late = flight.start - flight.full;
  return [
    `bucket ${n}: ${plural(flight.inside.length, "gradient")}, ${plural(flight.bytes, "byte")}`,
    `full at ${amount(flight.full, "s")}${late ? `, waits ${amount(late, "s")} for the lane` : ""}`,
    `moving until ${amount(flight.end, "s")}`,
  ].join("\n");
}

// Describes all buckets in words, without times.
export function bucketsSummary(data, run, { ranks }) {
  const all = commas(data.nbytes.reduce((a, b) => a + b));
  const gradients = plural(data.nbytes.length, "gradient"), group = plural(ranks, "rank");
  const lines = [
    `buckets: ${gradients}, ${all} bytes, on ${group}; the last layer's come first`,
  ];
  run.flights.slice(0, 8).forEach(({ inside, bytes }, n) =>
    lines.push(`  bucket ${n}: ${plural(inside.length, "gradient")}, ${commas(bytes)} bytes`)
  );
  if (run.flights.length > 8) lines.push(`  and ${plural(run.flights.length - 8, "bucket")} more`);
  return lines.join("\n");
}

// Tells what real ranks measured beside what is predicted here.
export function measuredStatus(measured, data, run, network) {
  const end = Math.max(measured.backward, ...measured.bars.map(([, to]) => to));
  const exposed = amount(end - measured.backward, "s");
  const source = measured.source.replace(/^./, (first) => first.toUpperCase());
  return `${source} on ${plural(measured.ranks, "rank")}, ${inSize(data.stops[measured.stop])}: ` +
    `${plural(measured.bars.length, "all-reduce")}, exposed ${exposed}. ` +
    `Predicted here, on ${plural(network.ranks, "rank")}: exposed ${amount(run.exposed, "s")}.` +
    (measured.delay ? ` ${measured.delay} Press again.` : "");
}

// Says what the numbers of the picture are; a link that was turned by hand is an invented one.
export function bucketsCaption({ start, link, more, measured }, { alpha, bandwidth }) {
  const isStart = alpha === start.alpha && bandwidth === start.bandwidth;
  const turned = `latency ${amount(alpha, "s")}, ${amount(bandwidth, "B/s")} one way`;
  return [
    "Predicted: backward takes the time given for each gradient, and the all-reduce of a bucket " +
    "on n ranks 2(n − 1) latencies plus 2(n − 1)/n of its bytes ÷ bandwidth, over " +
    (isStart ? link : `an invented link (${turned})`) + ".",
    measured && `The outlines are ${measured.caption}.`,
    more,
  ].filter(Boolean).join(" ");
}

// Gives the numbers below the lanes, in lines that fit.
export function bucketNumbers(limits, { flights, exposed, moving }, wide) {
  const share = roundHalfEven(100 * (exposed / (moving || 1)));
  const times = `exposed ${amount(exposed, "s")} of ${amount(moving, "s")} communication`;
  return [
    ...wrapText(`${plural(flights.length, "bucket")}; ${inLimits(limits)}`, wide),
    ...wrapText(`${times} (${share} %)`, wide),
  ];
}

// Names every stretch of sizes that leaves least exposed, with its number of buckets.
export function leastInWords(stops, { heights, counts, least }) {
  const stretches = least.map(([first, last]) => {
    const [from, to] = [first, last].map((n) => inBytes(stops[n].at(-1)));
    const few = counts.slice(first, last + 1).filter((_, n) => stops[first + n].length === 1);
    const [fewest, most] = [Math.min(...few), Math.max(...few)];
    const buckets = fewest < most ? `${fewest} to ${most} buckets` : plural(fewest, "bucket");
    return `${from === to ? from : `${from} to ${to}`} (${buckets})`;
  });
  const shown = stretches.length > 3 ? [...stretches.slice(0, 3), "and more"] : stretches;
  return `least exposed, ${amount(heights[least[0][0]], "s")}: ${shown.join(", ")}`;
}

const binarySteps = [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];

// Writes a bucket's size in three digits, with the binary prefixes of PyTorch's option: 3.02 MiB.
export function inBytes(size) {
  const [scale, prefix] = binarySteps.find(([step]) => size >= 0.9995 * step);
  return `${Number((size / scale).toPrecision(3))} ${prefix}B`;
}

// Writes the size of buckets as a control shows it.
export function inSize(limits) {
  return inBytes(limits.at(-1)) + (limits.length > 1 ? ", first 1 MiB" : "");
}

// Tells when buckets are full, as a part of a sentence.
export function inLimits(limits) {
  const [first, later] = limits.map(inBytes);
  return `full at ${first}` + (later ? `, later ones at ${later}` : "");
}
