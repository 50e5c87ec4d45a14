// The events of a timeline for other programs: as rows of a table, and as trace events, which
// ui.perfetto.dev opens. They are those of Ledger.to_trace, as far as the picture knows the rows.

const TRACE_LANES = ["compute", "comm"], TRACE_THREADS = [1, 201]; // the first thread of each
const OTHER_RUN = 1000; // what the ranks of a second run are numbered from

// Gives a row for each bar, times in seconds from the first start.
export function timelineRows({ runs, names, tick }) {
  const header = ["run", "rank", "lane", "operation", "stage", "microbatch", "group", "number"];
  header.push("peer", "bytes", "start (s)", "end (s)", "waiting (s)", "rows");
  const known = (number) => (number < 0 ? "" : number);
  const rows = runs.flatMap((run) =>
    run.place.map((place, i) => [
      run.source,
      names[place],
      TRACE_LANES[run.lane[i]],
      run.ops[run.op[i]],
      ...[run.stage, run.microbatch].map((column) => known(column[i])),
      run.groups[run.group[i]],
      ...[run.number, run.peer].map((column) => known(column[i])),
      run.bytes[i],
      ...[run.start, run.end, run.wait].map((column) => seconds(column[i], tick)),
      run.count[i],
    ])
  );
  return [header, ...rows];
}

// Gives the text of a trace: a process for each rank and a thread for each lane, or several where
// its rows overlap; what a comm row waits is a slice inside it, and memory is a counter.
export function timelineTrace({ runs, ranks, isNamed, names, memory, stacks, tick }) {
  const events = [], about = new Map();
  runs.forEach((run, n) => {
    const pids = ranks.map((rank) => rank + n * OTHER_RUN), threads = threadsOf(run);
    for (let i = 0; i < run.n; i++) {
      const place = run.place[i], key = `${n} ${place} ${threads[i]}`;
      events.push(...slicesOf(run, i, pids[place], threads[i], tick));
      const [own, other] = [isNamed ? names[place] : `rank ${ranks[place]}`, `, ${run.source}`];
      const more = { ph: "M", pid: pids[place], tid: threads[i] };
      about.set(key, [
        { ...more, name: "process_name", args: { name: own + (n ? other : "") } },
        { ...more, name: "thread_name", args: { name: TRACE_LANES[run.lane[i]] } },
      ]);
    }
  });
  for (const stack of stacks) events.push(...counterEvents(stack, memory.kinds, tick));
  events.push(...[...about.values()].flat());
  const otherData = { source: runs.map((run) => run.source).join(", ") };
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms", otherData });
}

// The slice of an event, and inside it that of its waiting.
function slicesOf(run, i, pid, tid, tick) {
  const op = run.ops[run.op[i]], cat = TRACE_LANES[run.lane[i]], args = {};
  for (const name of ["stage", "microbatch", "number", "peer"]) {
    if (run[name][i] >= 0) args[name] = run[name][i];
  }
  if (run.bytes[i]) args.bytes = run.bytes[i];
  if (run.groups[run.group[i]]) args.group = run.groups[run.group[i]];
  if (run.notes[run.note[i]]) args.note = run.notes[run.note[i]];
  if (run.count[i] > 1) args.rows = run.count[i];
  const slice = { name: op, cat, pid, ts: micro(run.start[i], tick), ph: "X", tid };
  const whole = { ...slice, dur: micro(run.end[i] - run.start[i], tick), args };
  if (!run.wait[i]) return [whole];
  return [whole, { ...slice, name: "waiting", dur: micro(run.wait[i], tick), args: {} }];
}

// The bytes of each kind of memory on a rank, where they change.
function counterEvents({ rank, n, time, sums }, kinds, tick) {
  const events = [], last = kinds.map(() => 0);
  for (let i = 0; i < n; i++) {
    kinds.forEach((name, k) => {
      const bytes = sums[k][i] - (k ? sums[k - 1][i] : 0);
      if (bytes === last[k]) return;
      last[k] = bytes;
      const more = { ts: micro(time[i], tick), ph: "C", args: { bytes } };
      events.push({ name, cat: "memory", pid: rank, ...more });
    });
  }
  return events;
}

// For each event the first thread of its lane where it lies after or inside the others; comm events
// only after one another, because each contains its own wait.
function threadsOf({ n, place, lane, start, end }) {
  const order = Array.from({ length: n }, (_, i) => i);
  order.sort((a, b) => start[a] - start[b] || end[b] - end[a]);
  const open = new Map(), threads = new Array(n);
  for (const i of order) {
    for (let thread = TRACE_THREADS[lane[i]];; thread++) {
      const key = `${place[i]} ${thread}`, ends = open.get(key) || [];
      while (ends.length && ends.at(-1) <= start[i]) ends.pop();
      if (ends.length && (lane[i] || end[i] > ends.at(-1))) continue;
      open.set(key, [...ends, end[i]]);
      threads[i] = thread;
      break;
    }
  }
  return threads;
}

function seconds(ticks, tick) {
  return Number((ticks * tick).toPrecision(9));
}

function micro(ticks, tick) {
  return Number((ticks * tick * 1e6).toPrecision(9));
}
