// The events of a ledger, as lib/draw/timeline.py packs them: columns of whole numbers in ticks.

// A column is a list, or one number for all; a coded one is {of: values, at: column}.
export function columnOf(packed, n) {
  if (typeof packed === "number") return new Array(n).fill(packed);
  if (Array.isArray(packed)) return packed;
  return columnOf(packed.at, n).map((code) => packed.of[code]);
}

// {n, ops, place, lane, track, start, end, behind, wait, ...}: wait is counted from the start.
export function eventsOf(run) {
  const { n } = run, line = [];
  for (let i = 0; i < run.line.length; i += 2)
    for (let k = 0; k < run.line[i + 1]; k++) line.push(run.line[i]);
  const made = { n, ops: run.ops, groups: run.groups, notes: run.notes, source: run.source };
  made.place = line.map((l) => l >> 1);
  made.lane = line.map((l) => l & 1);
  const names = "behind wait op bytes stage microbatch number peer group note track count half";
  for (const name of names.split(" ")) made[name] = columnOf(run[name], n);
  const gap = columnOf(run.gap, n), length = columnOf(run.length, n);
  made.start = new Array(n);
  made.end = new Array(n);
  for (let i = 0; i < n; i++) {
    const before = i && line[i] === line[i - 1] ? made.end[i - 1] : 0;
    made.start[i] = before + gap[i];
    made.end[i] = made.start[i] + length[i];
    made.wait[i] += made.behind[i];
  }
  return made;
}

// For each line (place and lane): which events lie on it, and until when any of the first k lasts.
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

// The events of a line that are going on at a moment, the last begun first.
export function goingOn(events, line, moment) {
  if (!line) return [];
  let low = line.from, high = line.to; // the first that starts after the moment
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events.start[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let i = low - 1; i >= line.from && line.last[i - line.from] > moment; i--)
    if (events.end[i] > moment) found.push(i);
  return found;
}

// "F3", "forward 3": an operation with its microbatch.
export function named(events, i) {
  const op = events.ops[events.op[i]], many = events.count[i];
  if (many > 1) return `${op} × ${commas(many)}`;
  return events.microbatch[i] < 0 ? op : `${op}${op.length > 1 ? " " : ""}${events.microbatch[i]}`;
}

// All that is known of an event, in lines.
export function tellEvent(events, i, ranks, tick) {
  const time = (ticks) => amount(ticks * tick, "s");
  const op = events.ops[events.op[i]], comm = events.lane[i] === 1, many = events.count[i];
  const lines = [`rank ${ranks[events.place[i]]}: ${op}${many > 1 ? ` × ${commas(many)}` : ""}`];
  const where = [];
  if (events.stage[i] >= 0) where.push(`stage ${events.stage[i]}`);
  if (events.microbatch[i] >= 0) where.push(`microbatch ${events.microbatch[i]}`);
  if (comm && events.peer[i] >= 0) {
    const way = { send: "to", recv: "from" }[op];
    where.push(way ? `${way} rank ${events.peer[i]}` : `root is rank ${events.peer[i]}`);
  }
  if (comm && events.groups[events.group[i]]) where.push(`group ${events.groups[events.group[i]]}`);
  if (comm && events.number[i] >= 0) where.push(`number ${events.number[i]}`);
  if (where.length) lines.push(where.join(", "));
  if (events.bytes[i]) lines.push(plural(events.bytes[i], "byte"));
  const long = events.end[i] - events.start[i];
  lines.push(`from ${time(events.start[i])}, takes ${time(long)}`);
  if (comm && long) {
    const parts = [["behind others", events.behind[i]], ["waiting", events.wait[i] - events.behind[i]],
      ["moving", long - events.wait[i]]]; // prettier-ignore
    lines.push(parts.filter(([, t]) => t > 0).map(([word, t]) => `${word} ${time(t)}`).join(", "));
  }
  if (many > 1) lines.push("short ones put together");
  const note = events.notes[events.note[i]];
  if (note) lines.push(note);
  return lines.join("\n");
}

// [0, 1, 2] is "ranks 0 to 2", [1, 3] is "ranks 1, 3".
export function ranksInWords(ranks) {
  if (ranks.length > 2 && ranks.every((rank, i) => rank === ranks[0] + i))
    return `ranks ${ranks[0]} to ${ranks.at(-1)}`;
  return `rank${ranks.length > 1 ? "s" : ""} ${ranks.join(", ")}`;
}
