// The schedule explorer: every control, and every bar that is moved, changes all of it at once.
import { wrapText } from "./axes.js";
import { copyText } from "./controls.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { playSchedule } from "./play_schedule.js";
import { layRun } from "./schedule_layout.js";
import {
  findCell,
  isZoomed,
  moveByKey,
  redoMove,
  scheduleDrag,
  undoMove,
  WHOLE_TIME,
} from "./schedule_moves.js";
import {
  chosenSchedule,
  costsOf,
  editedSchedule,
  editsOf,
  playWith,
  signatureOf,
  timesOf,
} from "./schedule_settings.js";
import {
  figureText,
  inMicrobatches,
  keptBy,
  meetsGoal,
  scheduleCaption,
  scheduleRows,
  scheduleSummary,
} from "./schedule_words.js";
import { readSchedule, RULES, scheduleText } from "./schedules.js";
import { zoomable } from "./zoom.js";

const READ = "Tap a bar, or point at it, to read which microbatch it is and when.";
const DRAG = "Drag it to another place in its row.";
const PAN = "Drag a gap or the axis, or turn the wheel with Shift, to move along.";
const SWIPE = "Swipe to move along; press and hold a bar to move it.";
const KEYS =
  "By keyboard: Left and Right go along the row of a rank, Up and Down to what the next " +
  "rank does at that time, and Down from the last rank to the peak memory. [ and ] move a bar. " +
  "Control+Z takes a move back, and Control+Shift+Z makes it again.";
const FINGERS = 400; // px: narrower pictures are on phones; screen readers hear of the keys
const LINKS = [["", "pass each other"], ["pair", "queue, by pair"], ["device", "queue, by device"]];
const TIMES = {
  forward: "Forward F",
  backward_input: "Backward I",
  backward_weight: "Backward W",
  send: "Send",
};

// Makes the picture of a schedule from what lib/draw/schedule.py gathers.
export function picture(gathered) {
  const given = gathered.rows && readSchedule(gathered.rows, gathered.name);
  const begun = gathered.start && readSchedule(gathered.start, "the start");
  const data = { ...gathered, given, begun };
  const shown = { run: { makespan: 0, starts: [], ends: [] }, end: 0 }; // what, and until when
  const { kind, ranks, microbatches, chunks, values, link } = data;
  const settings = { kind, ranks, microbatches, chunks, ...values, link };
  const zoom = zoomable(WHOLE_TIME), drag = scheduleDrag(data, zoom.drag);
  return {
    title: `Schedule explorer, ${data.name}`,
    summary: data.summary,
    state: {
      ...settings,
      ...zoom.state,
      now: 0,
      edits: [],
      undone: [],
      of: "",
      picked: null,
      isLifted: false, // whether a finger holds the bar that was picked
      isTouch: false, // whether it was a finger that came last
      message: "",
    },
    moving: ["now", "picked", "isLifted", "isTouch"],
    keys: KEYS,
    fold: ({ kind }) => `${kind === "interleaved" ? "Stages, times" : "Times"}, zoom, copy`,
    controls: [
      ...(data.isExercise ? [] : settingControls(data)),
      ...editControls(data),
      headControl(data, shown, zoom.zoomed),
      ...zoom.controls.map((one) => ({ ...one, isFolded: !data.isExercise })),
    ],
    moved: (s) => movedTexts(data, s),
    layout(s, width) {
      const laid = laySchedule(data, s, width);
      if (laid.run) {
        const end = (WHOLE_TIME * laid.run.makespan) / laid.place.span;
        Object.assign(shown, { run: laid.run, end });
      }
      return laid;
    },
    numbers: (s, laid) => laid.run && scheduleRows(laid, data.unit),
    overlay: (s, width, laid) => (laid.run ? [...ringMarks(s, laid), ...headMarks(s, laid)] : []),
    fullSummary: (s, laid) => laid.run && `${laid.summary}\n\n${scheduleText(laid.schedule)}`,
    press: (mark, at, s, laid, isTouch) => {
      return { picked: findCell(laid, mark?.id) ? mark.id : null, isTouch };
    },
    key: (key, s, ...more) => moveByKey(key, s, ...more) || zoom.key(key, s, ...more),
    undo: (s) => editsOf(s).length && undoMove(s),
    redo: redoMove,
    wheel: (by, at, s, laid) => laid.run && zoom.wheel(by, at, s, laid),
    pan: (by, s, laid) => laid.run && zoom.pan(by, s, laid),
    drag,
  };
}

// The schedule as it is chosen and edited, or the sentence why there is none.
function laySchedule(data, s, width) {
  let schedule;
  try {
    schedule = editedSchedule(data, s);
  } catch (wrong) {
    return laySentence(wrong.message, width, s.ranks);
  }
  const run = playWith(data, s, schedule), { unit, par, limit } = data;
  const shares = [s.from / WHOLE_TIME, s.to / WHOLE_TIME];
  const laid = layRun(schedule, run, { unit, par, limit }, width, shares);
  const times = timesOf(data, s, schedule), link = !data.block && s.link;
  const summary = scheduleSummary(schedule, run, times, unit, link);
  const few = laid.hasAll ? "" : "Bars that are too small have no number.";
  const caption = scheduleCaption(times, unit, link, [few, data.more].filter(Boolean).join(" "));
  const status = scheduleStatus(data, s, schedule, run, width);
  return { ...laid, schedule, run, summary, caption, status };
}

function laySentence(sentence, width, ranks) {
  const lines = wrapText(sentence, width - 20);
  const marks = lines.map((text, i) => textMark(0, (i + 1) * style.line, text));
  const height = Math.max(ranks * 23 + 90, (lines.length + 2) * style.line);
  return { marks, height, status: sentence };
}

// The last thing that was done, whether the order is legal, and what it is worth.
function scheduleStatus(data, s, schedule, run, width) {
  const isEdited = editsOf(s).length > 0;
  const sentences = [data.unread, s.of === signatureOf(s) ? s.message : ""];
  if (run.refused) sentences.push(`Not legal. ${run.refused.sentence}`);
  else {
    if (isEdited) sentences.push(worthOfEdits(data, s, schedule, run));
    sentences.push(goalsStatus(data, schedule, run));
  }
  return [...sentences, ...hintsOf(s, width, isEdited)].filter(Boolean).join(" ");
}

// How the picture is used: all of that before anything was moved, and how to move along as long as
// a part of the time is shown.
function hintsOf(s, width, isEdited) {
  const isSmall = width < FINGERS, isByFinger = isSmall || s.isTouch;
  const along = isZoomed(s) ? [isByFinger ? SWIPE : PAN] : [];
  if (isEdited) return along;
  const drag = along.includes(SWIPE) ? [] : [DRAG];
  return [READ, ...drag, ...along, ...(isSmall ? [] : [KEYS])];
}

function worthOfEdits(data, s, schedule, run) {
  const chosen = chosenSchedule(data, s), before = playSchedule(chosen, costsOf(data, s, schedule));
  const peak = ({ alive }) => Math.max(...keptBy(schedule, alive));
  const time = ({ makespan }) => figureText(makespan, data.unit);
  const memory = comparison(figureText(peak(before), ""), inMicrobatches(peak(run)));
  return `Legal. Makespan ${comparison(time(before), time(run))}, peak memory ${memory}.`;
}

function comparison(old, now) {
  return parseFloat(old) === parseFloat(now) ? `${now} as before` : `${now} instead of ${old}`;
}

function goalsStatus({ par, limit }, schedule, run) {
  const parts = [], top = Math.max(...keptBy(schedule, run.alive));
  if (par) {
    parts.push(`The goal for the makespan is ${meetsGoal(run.makespan, par) ? "met" : "not met"}`);
  }
  if (limit) parts.push(meetsGoal(top, limit) ? "the limit is kept" : "the limit is not kept");
  return parts.length ? `${parts.join(", ")}.`.replace(/^t/, "T") : "";
}

// Which schedule it is and what it costs; controls that mean nothing now are hidden.
function settingControls(data) {
  const kinds = Object.entries(RULES).map(([value, [name]]) => [value, name]);
  const isTwice = kinds.some(([, name]) => name === data.name); // that has its own numbers
  const given = ["given", isTwice ? `${data.name}, as given` : data.name];
  const options = data.rows ? [given, ...kinds] : kinds;
  const isSeveral = ({ kind, chunks }) =>
    kind === "given" ? data.several : (RULES[kind][1] || chunks) > 1;
  const count = (name, label, hidden) => {
    return { kind: "slider", name, label, min: 1, max: data.most[name], hidden };
  };
  const time = (name) => {
    const { max, step } = data.scale[name], isNeeded = ["forward", "backward_input"].includes(name);
    const each = (s) => (name !== "send" && isSeveral(s) ? " a rank" : "");
    const show = (value, s) => figureText(value, data.unit) + each(s);
    const range = { min: isNeeded ? step : 0, max, step };
    return { kind: "slider", name, label: TIMES[name], ...range, show, isFolded: true };
  };
  const link = { kind: "choice", name: "link", label: "Messages", options: LINKS, isFolded: true };
  const rankLabel = (s) => (isSeveral(s) || s.kind === "interleaved" ? "Ranks" : "Stages");
  return [
    { kind: "choice", name: "kind", label: "Schedule", options },
    (s) => count("ranks", rankLabel(s), s.kind === "given"),
    (s) => count("microbatches", "Microbatches", s.kind === "given"),
    (s) => ({ ...count("chunks", "Stages a rank", s.kind !== "interleaved"), isFolded: true }),
    ...Object.keys(TIMES).map(time),
    (s) => ({ ...link, hidden: data.block || !s.send }),
  ];
}

function editControls(data) {
  const isPlain = (s) => !editsOf(s).length, reset = () => ({ edits: [], undone: [], message: "" });
  const copy = (s) => ({ of: signatureOf(s), edits: editsOf(s), message: copySchedule(data, s) });
  return [
    { kind: "button", label: "Undo", press: undoMove, off: isPlain },
    { kind: "button", label: "Redo", press: redoMove, off: (s) => !redoMove(s) },
    { kind: "reset", label: "Reset", press: reset, off: isPlain },
    (s) => ({ ...startButton(s), hidden: !data.begun }),
    { kind: "button", label: "Copy as text", press: copy, isFolded: !data.isExercise },
  ];
}

// From the reader's own schedule to the one that the exercise begins with, and back.
function startButton({ kind }) {
  const [label, other] = kind === "begun" ? ["Your text", "given"] : ["Begin anew", "begun"];
  return {
    kind: "button",
    label,
    press: () => ({ kind: other, edits: [], undone: [], message: "" }),
  };
}

// The text before the reader's moves and the text with them; none where nothing was moved.
function movedTexts(data, s) {
  if (!editsOf(s).length) return null;
  return [chosenSchedule(data, s), editedSchedule(data, s)].map(scheduleText);
}

function copySchedule(data, s) {
  return copyText(scheduleText(editedSchedule(data, s)))
    ? "Copied: Schedule.read(text) reads it in Python."
    : 'Not copied: its text stands under "In words".';
}

function headControl({ unit }, shown, { share, follow }) {
  const show = (now) => figureText(now * shown.run.makespan, unit);
  const range = { min: 0, max: 1, step: 0.002, seconds: 12 };
  const zoomed = { share, follow: (s, now) => follow(s, now * shown.end) };
  const moments = () => [...shown.run.starts, ...shown.run.ends].map((t) => t / shown.run.makespan);
  return { kind: "player", name: "now", label: "Time", ...range, show, zoomed, moments };
}

// A ring around the bar that was picked or is dragged.
function ringMarks(s, laid) {
  const bar = Number.isInteger(s.picked) && laid.marks.find((mark) => mark.id === s.picked);
  const thick = s.isLifted ? 5 : 2.5;
  return bar
    ? [boxMark(bar.x, bar.y, bar.w, bar.h, { edge: style.ink, thick, inside: true })]
    : [];
}

// The play head, and what each rank keeps at that moment.
function headMarks(s, { place, run, schedule, marks: drawn }) {
  const time = s.now * run.makespan, { top, bottom, left, right } = place;
  const x = place.zero + time * place.pixels, marks = [];
  if (x > left - 1 && x < right + 1) {
    marks.push(lineMark([[x, top - 4], [x, bottom]], style.ink, { thick: 1.6 }));
    marks.push(boxMark(x - 4, top - 8, 8, 5, { fill: style.ink }));
  }
  if (run.refused || !s.now) return marks;
  keptBy(schedule, aliveAtTime(schedule, run, time)).forEach((kept, rank) => {
    const bar = drawn.find((mark) => mark.id === `memory ${rank}`);
    const most = keptBy(schedule, run.alive)[rank];
    const w = (bar.w * kept) / Math.min(most, place.limit || most);
    if (kept) marks.push(boxMark(bar.x, bar.y, w, bar.h, { fill: style.compute.forward }));
  });
  return marks;
}

// How many activations the stages of each rank keep at a time.
function aliveAtTime({ rows }, { grid, starts, ends }, time) {
  return rows.map((row, rank) => {
    let alive = 0;
    row.forEach((code, i) => {
      const at = grid.first[rank] + i, kind = code & 3;
      if (kind === 0 && starts[at] <= time) alive++;
      if ((kind === 1 || kind === 3) && ends[at] <= time) alive--;
    });
    return alive;
  });
}
