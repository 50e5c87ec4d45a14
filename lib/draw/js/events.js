// The events of a ledger, as lib/draw/timelines/timeline_data.py packs them: columns of whole
// numbers, times in ticks.
import { amount, commas, plural } from "./numbers.js";

// Gives a packed column as a list: one number stands for all, and {of: values, at: column} is
// coded.
export function columnOf(packed, n) {
  if (typeof packed === "number") return new Array(n).fill(packed);
  if (Array.isArray(packed)) return packed;
  return columnOf(packed.at, n).map((code) => packed.of[code]);
}

// Unpacks the events of a run: {n, ops, place, lane, track, start, end, behind, wait, ...}; `wait`
// is counted from the start.
export function eventsOf(run) {
  const { n } = run, line = [];
  for (let i = 0; i < run.line.length; i += 2) {
    for (let k = 0; k < run.line[i + 1]; k++) line.push(run.line[i]);
  }
  const events = { n, ops: run.ops, groups: run.groups, notes: run.notes, source: run.source };
  events.place = line.map((l) => l >> 1);
  events.lane = line.map((l) => l & 1);
  const names = "behind wait op bytes stage microbatch number peer group note track count half";
  for (const name of names.split(" ")) events[name] = columnOf(run[name], n);
  const gap = columnOf(run.gap, n), length = columnOf(run.length, n);
  events.start = new Array(n);
  events.end = new Array(n);
  for (let i = 0; i < n; i++) {
    const before = i && line[i] === line[i - 1] ? events.end[i - 1] : 0;
    events.start[i] = before + gap[i];
    events.end[i] = events.start[i] + length[i];
    events.wait[i] += events.behind[i];
  }
  return events;
}

// Tells for each line (place and lane) which events lie on it, and until when any of its first k
// lasts.
export function lanesOf(events) {
  const lines = new Map();
  for (let i = 0; i < events.n; i++) {
    const key = events.place[i] * 2 + events.lane[i];
    if (!lines.has(key)) lines.set(key, { from: i, to: i, last: [] });
    const line = lines.get(key);
    line.to = i + 1;
    line.last.push(Math.max(events.end[i], line.last.at(-1) ?? -Infinity));
  }
  return lines;
}

// Gives the events of a line that are going on at a moment, the last begun first.
export function eventsAt(events, line, moment) {
  if (!line) return [];
  let low = line.from, high = line.to; // the first that starts after the moment
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events.start[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  const going = [];
  for (let i = low - 1; i >= line.from && line.last[i - line.from] > moment; i--) {
    if (events.end[i] > moment) going.push(i);
  }
  return going;
}

// Names an event by its operation and microbatch: "F3", "forward 3".
export function eventName(events, i) {
  const op = events.ops[events.op[i]], many = events.count[i];
  if (many > 1) return `${op} × ${commas(many)}`;
  return events.microbatch[i] < 0 ? op : `${op}${op.length > 1 ? " " : ""}${events.microbatch[i]}`;
}

// Tells all that is known of an event, in lines.
export function describeEvent(events, i, names, tick) {
  const time = (ticks) => amount(ticks * tick, "s");
  const op = events.ops[events.op[i]], isComm = events.lane[i] === 1, many = events.count[i];
  const long = events.end[i] - events.start[i], waiting = events.wait[i] - events.behind[i];
  const parts = [["behind others", events.behind[i]], ["waiting", waiting]];
  parts.push(["moving", long - events.wait[i]]);
  const spent = parts.filter(([, ticks]) => ticks > 0);
  return [
    `${names[events.place[i]]}: ${op}${many > 1 ? ` × ${commas(many)}` : ""}`,
    whereabouts(events, i, op, isComm).join(", "),
    events.bytes[i] ? plural(events.bytes[i], "byte") : "",
    `from ${time(events.start[i])}, takes ${time(long)}`,
    isComm && long ? spent.map(([what, ticks]) => `${what} ${time(ticks)}`).join(", ") : "",
    many > 1 ? "short ones put together" : "",
    events.notes[events.note[i]],
  ].filter(Boolean).join("\n");
}

// Where an event belongs: its stage, microbatch, peer, group and number, as far as it has them.
function whereabouts(events, i, op, isComm) {
  const where = [];
  if (events.stage[i] >= 0) where.push(`stage ${events.stage[i]}`);
  if (events.microbatch[i] >= 0) where.push(`microbatch ${events.microbatch[i]}`);
  if (!isComm) return where;
  if (events.peer[i] >= 0) {
    const way = { send: "to", recv: "from" }[op];
    where.push(`${way || "root is"} rank ${events.peer[i]}`);
  }
  if (events.groups[events.group[i]]) where.push(`group ${events.groups[events.group[i]]}`);
  if (events.number[i] >= 0) where.push(`number ${events.number[i]}`);
  return where;
}

// Names ranks: [0, 1, 2] is "ranks 0 to 2", [1, 3] is "ranks 1, 3".
export function ranksInWords(ranks) {
  if (ranks.length > 2 && ranks.every((rank, i) => rank === ranks[0] + i)) {
    return `ranks ${ranks[0]} to ${ranks.at(-1)}`;
  }
  return `rank${ranks.length > 1 ? "s" : ""} ${ranks.join(", ")}`;
}
