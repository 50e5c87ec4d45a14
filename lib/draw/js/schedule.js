// needs: schedules play schedule_rows
// The schedule explorer: every control, and every bar that is moved, changes all of it at once.
import { linesOf } from "./axes.js";
import { make } from "./controls.js";
import { RULES, cellText, cellsOf, generate, moved, readSchedule, scheduleText } from "./schedules.js";
import { gridOf, playSchedule, playStuck, refusal } from "./play.js";
import { LEFT, batches, figureOf, keptBy, layRun, meets, tellRun } from "./schedule_rows.js";

const HINT = "Drag a bar to another place in its row. Or go to it with the arrow keys, and move it with [ and ].";
const TIMES = { forward: "Forward F", backward_input: "Backward I", backward_weight: "Backward W", send: "Send" };

export function picture(data) {
  let makespan = 0; // of what is shown
  let held = null; // what the pointer drags: the play head, or {rank, from, centres, code}
  const state = {
    kind: data.kind, ranks: data.ranks, microbatches: data.microbatches, chunks: data.chunks,
    ...data.values, now: 0, edits: [], of: "", picked: null, said: "",
  }; // prettier-ignore
  const given = data.rows && readSchedule(data.rows, data.name);
  const goals = { unit: data.unit, par: data.par, limit: data.limit };

  // 1. from the controls to a schedule with times
  const signature = (s) => [s.kind, s.ranks, s.microbatches, s.chunks].join();
  const edits = (s) => (s.of === signature(s) ? s.edits : []);
  const plain = (s) => (s.kind === "given" ? given : generate(s.kind, s.ranks, s.microbatches, s.chunks));
  const ordered = (s) => edits(s).reduce(moved, plain(s));
  const run = (schedule, s) => {
    const costs = costsOf(data, s, schedule), refused = edits(s).length && refusal(gridOf(schedule));
    return refused ? playStuck(schedule, costs) : playSchedule(schedule, costs);
  };

  function layout(s, width) {
    let schedule;
    try {
      schedule = ordered(s);
    } catch (wrong) {
      return laySentence(wrong.message, width, s.ranks);
    }
    const played = run(schedule, s), laid = layRun(schedule, played, goals, width);
    makespan = played.makespan;
    const summary = tellRun(schedule, played, timesOf(data, s, schedule), data.unit);
    return { ...laid, schedule, run: played, summary, status: sayState(s, schedule, played) };
  }

  // 2. what the status says: the last thing done, whether the order is legal, what it is worth
  function sayState(s, schedule, played) {
    const said = [s.said && s.of === signature(s) ? s.said : ""], count = edits(s).length;
    const goal = [];
    if (played.refused) said.push(`Not legal. ${played.refused.sentence}`);
    else {
      const kept = keptBy(schedule, played.alive), top = Math.max(...kept);
      if (count) {
        const old = playSchedule(plain(s), costsOf(data, s, schedule));
        const was = Math.max(...keptBy(schedule, old.alive)), time = (run) => figureOf(run.makespan, data.unit);
        said.push(`Legal. Makespan ${change(time(old), time(played))}, ` +
          `peak memory ${change(figureOf(was, ""), batches(top))}.`); // prettier-ignore
      }
      if (data.par) goal.push(meets(played.makespan, data.par) ? "Par is met" : "Par is not met");
      if (data.limit) goal.push(meets(top, data.limit) ? "the limit is kept" : "the limit is not kept");
    }
    if (goal.length) said.push(`${goal.join(", ")}.`.replace(/^t/, "T"));
    return [...said, count ? "" : HINT].filter(Boolean).join(" ");
  }

  // 3. moving a bar: `cells` of its row, from one place to another
  function move(s, laid, rank, from, to) {
    const cells = cellsOf(laid.schedule.rows[rank], laid.schedule.paired), { stages } = laid.schedule;
    if (to < 0 || to >= cells.length || to === from) return null;
    const [what] = cells.splice(from, 1), before = cells[to], text = cellText(what, stages);
    const where = before ? `before ${cellText(before, stages)}` : "at the end";
    const said = `${text} now stands ${where} on rank ${rank}.`;
    return { edits: [...edits(s), [rank, from, to]], of: signature(s), said, picked: what[0] };
  }
  function find(laid, code) {
    if (!laid.run || !Number.isInteger(code)) return null;
    for (const [rank, row] of laid.schedule.rows.entries()) {
      const from = cellsOf(row, laid.schedule.paired).findIndex((cell) => cell.includes(code));
      if (from >= 0) return { rank, from };
    }
    return null;
  }
  const undo = (s) => ({ edits: edits(s).slice(0, -1), said: "Taken back." });

  return {
    title: `Schedule explorer, ${data.name}`,
    summary: data.summary,
    state,
    moving: ["now", "picked"],
    controls: [
      ...controlsOf(data),
      { kind: "button", label: "Undo", press: undo, off: (s) => !edits(s).length },
      { kind: "button", label: "Reset", press: () => ({ edits: [], said: "" }), off: (s) => !edits(s).length },
      { kind: "button", label: "Copy as text", press: (s) => ({ of: signature(s), edits: edits(s), said: copy(s) }) },
      { kind: "player", name: "now", label: "Time", min: 0, max: 1, step: 0.002, seconds: 12,
        show: (now) => figureOf(now * makespan, data.unit) }, // prettier-ignore
    ],
    layout,
    overlay: (s, width, laid) => (laid.run ? [...ring(s, laid), ...head(s, laid)] : []),
    words: (s, laid) => laid.run && `${laid.summary}\n\n${scheduleText(laid.schedule)}`,
    press: (mark, at, s, laid) => (find(laid, mark?.id) ? { picked: mark.id } : { picked: null }),
    key(key, s, laid, mark, shift) {
      const steps = { "[": -1, "]": 1, ...(shift ? { ArrowLeft: -1, ArrowRight: 1 } : {}) };
      if (key === "u" && edits(s).length) return undo(s);
      const found = key in steps && find(laid, mark ? mark.id : s.picked);
      return found ? move(s, laid, found.rank, found.from, found.from + steps[key]) || {} : null;
    },
    drag: {
      start(mark, at, s, laid) {
        held = null;
        if (!laid.run) return false;
        const { right, bottom } = laid.place;
        const found = find(laid, mark?.id);
        if (found) held = { ...found, x: at.x, before: { edits: edits(s), of: s.of }, centres: centresOf(laid, found) };
        else if (at.y > bottom - 4 && at.y < bottom + 24 && at.x < right + 10) held = { head: true };
        return Boolean(held);
      },
      move(at, s, laid) {
        if (held.head) return { now: nowAt(at, laid) };
        if (Math.abs(at.x - held.x) < 4 && !held.moved) return {};
        held.moved = true; // the row as it was when the drag began says where a place is
        const to = held.centres.filter((centre, i) => i !== held.from && centre < at.x).length;
        const base = { ...s, ...held.before }, there = { ...laid, schedule: ordered(base) };
        return move(base, there, held.rank, held.from, to) || { ...held.before, said: "" };
      },
      end: () => (held = null) || {},
    },
  };

  function copy(s) {
    const area = make("textarea", { style: "position:fixed;top:0;opacity:0", "aria-hidden": "true" });
    const focus = document.activeElement;
    area.value = scheduleText(ordered(s));
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy"); // works from a file as well, and where nothing is safe
    area.remove();
    focus?.focus();
    return done ? "Copied: Schedule.read(text) reads it in Python." : 'Not copied: its text stands under "In words".';
  }
}

// The controls above the picture; those that mean nothing now are hidden.
function controlsOf(data) {
  const kinds = Object.entries(RULES).map(([value, [words]]) => [value, words]);
  const options = data.rows ? [["given", data.name], ...kinds] : kinds;
  const several = ({ kind, chunks }) =>
    kind === "given" ? data.several : (RULES[kind][1] || chunks) > 1;
  const slider = (name, label, min, max, more) => ({ kind: "slider", name, label, min, max, ...more });
  const time = (name) => {
    const { max, step } = data.scale[name], min = name === "forward" || name === "backward_input" ? step : 0;
    const show = (value, s) => figureOf(value, data.unit) + (name !== "send" && several(s) ? " a rank" : "");
    return slider(name, TIMES[name], min, max, { step, show });
  };
  return [
    { kind: "choice", name: "kind", label: "Schedule", options },
    (s) => slider("ranks", several(s) || s.kind === "interleaved" ? "Ranks" : "Stages", 1, data.most.ranks, { hidden: s.kind === "given" }),
    (s) => slider("microbatches", "Microbatches", 1, data.most.microbatches, { hidden: s.kind === "given" }),
    (s) => slider("chunks", "Stages a rank", 1, data.most.chunks, { hidden: s.kind !== "interleaved" }),
    ...Object.keys(TIMES).map(time),
  ];
}

// What each stage takes. A slider's time is that of all stages of a rank together, so that cutting a
// rank's work into more stages leaves its work as it was; different stages keep their proportions.
function costsOf(data, s, { stages, rows }) {
  const spread = (name, count, value) => {
    const shape = data.shapes[name];
    if (shape?.length !== count) return new Array(count).fill(value);
    const mean = shape.reduce((sum, one) => sum + one, 0) / count;
    return shape.map((one) => (value * one) / mean);
  };
  const each = (name) => spread(name, stages, (s[name] * rows.length) / stages);
  const [forward, inputs, weights] = ["forward", "backward_input", "backward_weight"].map(each);
  const ratio = (name, i) => (data.ratios[name]?.length === stages ? data.ratios[name][i] : 1);
  const whole = inputs.map((time, i) => (time + weights[i]) * ratio("backward", i));
  const both = data.ratios.overlap?.length === stages;
  return {
    table: [forward, whole, inputs, weights],
    send: spread("send", stages - 1, s.send),
    overlap: both ? forward.map((time, i) => (time + whole[i]) * data.ratios.overlap[i]) : null,
    block: data.block,
  };
}

function timesOf(data, s, schedule) {
  const { table, send } = costsOf(data, s, schedule);
  const whole = data.ratios.backward ? { B: table[1] } : {};
  return { F: table[0], I: table[2], W: table[3], ...whole, send: send.length ? send : [0] };
}

function change(old, now) {
  return parseFloat(old) === parseFloat(now) ? `${now} as before` : `${now} instead of ${old}`;
}

function laySentence(sentence, width, ranks) {
  const lines = linesOf(sentence, width - 20), marks = lines.map((text, i) =>
    ({ kind: "text", x: 0, y: (i + 1) * style.line, fill: style.ink, text, align: "left" })); // prettier-ignore
  return { marks, height: Math.max(ranks * 23 + 90, (lines.length + 2) * style.line), status: sentence };
}

// Where the middles of a row's cells lie.
function centresOf(laid, { rank }) {
  const { grid, starts, ends } = laid.run, { rows, paired } = laid.schedule;
  let at = grid.first[rank];
  return cellsOf(rows[rank], paired).map((cell) => {
    const [one, last] = [at, at + cell.length - 1];
    at += cell.length;
    return LEFT + ((starts[one] + ends[last]) / 2) * laid.place.pixels;
  });
}

function nowAt({ x }, { place, run }) {
  return Math.min(1, Math.max(0, (x - LEFT) / place.pixels / (run.makespan || 1)));
}

// A ring around the bar that was picked or is dragged.
function ring(s, laid) {
  const bar = Number.isInteger(s.picked) && laid.marks.find((mark) => mark.id === s.picked);
  return bar ? [{ kind: "box", x: bar.x, y: bar.y, w: bar.w, h: bar.h, edge: style.ink, thick: 2.5 }] : [];
}

// The play head, and what each rank keeps at that moment.
function head(s, { place, run, schedule, marks: drawn }) {
  const time = s.now * run.makespan, { top, bottom } = place, x = LEFT + time * place.pixels;
  const marks = [{ kind: "line", points: [[x, top - 4], [x, bottom]], edge: style.ink, thick: 1.6 }];
  marks.push({ kind: "box", x: x - 4, y: top - 8, w: 8, h: 5, fill: style.ink });
  if (run.refused || !s.now) return marks;
  const alive = schedule.rows.map((row, rank) => {
    let held = 0;
    row.forEach((code, i) => {
      const at = run.grid.first[rank] + i, kind = code & 3;
      if (kind === 0 && run.starts[at] <= time) held++;
      if ((kind === 1 || kind === 3) && run.ends[at] <= time) held--;
    });
    return held;
  });
  keptBy(schedule, alive).forEach((kept, rank) => {
    const bar = drawn.find((mark) => mark.id === `memory ${rank}`), most = keptBy(schedule, run.alive)[rank];
    const w = (bar.w * kept) / Math.min(most, place.limit || most);
    if (kept) marks.push({ kind: "box", x: bar.x, y: bar.y, w, h: bar.h, fill: style.compute.forward });
  });
  return marks;
}
