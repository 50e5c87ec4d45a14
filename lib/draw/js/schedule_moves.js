// Moving the bars of a schedule, by keys and by dragging. `laid` is what the layout gave, with the
// schedule and its run; `s` is the state of the controls.
import { describe } from "./mark_rows.js";
import { editedSchedule, editsOf, signatureOf } from "./schedule_settings.js";
import { cellsOf, cellText } from "./schedules.js";

// The whole time of a schedule, where a part of it is shown: `s.from` and `s.to` are of these.
export const WHOLE_TIME = 1000;

const STAYS = "Bars stay in the row of their rank.";

// Tells where the cell with an action stands: {rank, from}, its place in its row; null where it is
// none.
export function findCell(laid, code) {
  if (!laid.run || !Number.isInteger(code)) return null;
  for (const [rank, row] of laid.schedule.rows.entries()) {
    const from = cellsOf(row, laid.schedule.paired).findIndex((cell) => cell.includes(code));
    if (from >= 0) return { rank, from };
  }
  return null;
}

// What a move of one cell of a rank changes; null where it stays.
function moveCell(s, { schedule }, rank, from, to) {
  const { stages, paired } = schedule, cells = cellsOf(schedule.rows[rank], paired);
  if (to < 0 || to >= cells.length || to === from) return null;
  const [moved] = cells.splice(from, 1), before = cells[to];
  const where = before ? `before ${cellText(before, stages)}` : "at the end";
  const message = `${cellText(moved, stages)} now stands ${where} on rank ${rank}.`;
  const edits = [...editsOf(s), [rank, from, to]];
  return { edits, undone: [], of: signatureOf(s), message, picked: moved[0] };
}

// Tells what taking back the last move changes.
export function undoMove(s) {
  const edits = editsOf(s), undone = [...s.undone, edits.at(-1)];
  return { edits: edits.slice(0, -1), undone, message: "Taken back." };
}

// Tells what making the move again that was taken back last changes; null where there is none.
export function redoMove(s) {
  const isOfThis = s.of === signatureOf(s) && s.undone.length > 0;
  if (!isOfThis) return null;
  const edits = [...s.edits, s.undone.at(-1)];
  return { edits, undone: s.undone.slice(0, -1), message: "Made again." };
}

// Tells who would move what is no bar what is there instead.
function refusedMove(s, mark) {
  const there = mark ? `${describe(mark)}. ` : "";
  const message = `${there}Only bars move: go to one with the arrow keys first.`;
  return { edits: editsOf(s), of: signatureOf(s), message };
}

// Gives what a key changes: [ and ] move the bar that the keyboard is at, or that was picked; u
// takes the last move back.
export function moveByKey(key, s, laid, mark, isShift) {
  const steps = { "[": -1, "]": 1, ...(isShift ? { ArrowLeft: -1, ArrowRight: 1 } : {}) };
  if (key === "u" && editsOf(s).length) return undoMove(s);
  if (!(key in steps)) return null;
  const cell = findCell(laid, mark ? mark.id : s.picked);
  if (!cell) return key.length === 1 && laid.run ? refusedMove(s, mark) : null;
  return moveCell(s, laid, cell.rank, cell.from, cell.from + steps[key]) || {};
}

// Tells whether a part of the time is shown.
export function isZoomed(s) {
  return s.to - s.from < WHOLE_TIME;
}

// Dragging moves a bar within its row, and the play head along its axis. Of a schedule that is
// zoomed it moves by `pan` the time that is shown, but from a bar; a finger does so from a bar too,
// and moves the bar where it held it first.
export function scheduleDrag(data, pan) {
  let held = null; // what the pointer holds: the play head, or a cell and what was there before
  return {
    start(mark, at, s, laid, isTouch) {
      const isPan = laid.run && isZoomed(s) && (isTouch || !findCell(laid, mark?.id));
      if (isPan) held = pan.start(mark, at, s, laid) ? { pan } : null;
      else held = laid.run ? gripOf(mark, at, s, laid) : null;
      return Boolean(held);
    },
    hold(mark, at, s, laid) {
      if (!held?.pan || !findCell(laid, mark?.id)) return null;
      held = gripOf(mark, at, s, laid);
      return { picked: mark.id, isLifted: true };
    },
    move(at, s, laid) {
      if (held.pan) return panned(pan.move(at, s, laid));
      if (held.isHead) return { now: shareAt(at, laid) };
      if (Math.abs(at.x - held.x) < 4 && !held.hasMoved) return {};
      held.hasMoved = true; // the row as it was when the drag began says where a place is
      const to = held.centres.filter((centre, i) => i !== held.from && centre < at.x).length;
      const base = { ...s, ...held.before }, schedule = editedSchedule(data, base);
      const changes = moveCell(base, { schedule }, held.rank, held.from, to);
      return changes || { ...held.before, message: "" };
    },
    end(at, s, laid, isCancelled) {
      const changes = isCancelled ? putBack(held) : strayed(held, at, s, laid);
      held = null;
      return { ...changes, isLifted: false };
    },
  };
}

// What was before the pointer moved anything.
function putBack({ before, hasMoved, isHead }) {
  return hasMoved || isHead ? before : {};
}

// Tells who lets go of a bar over the row of another rank that it does not go there.
function strayed({ rank, hasMoved }, at, s, { place: { top, bottom, step } }) {
  const isOverRows = at.y >= top && at.y < bottom, over = Math.floor((at.y - top) / step);
  if (rank === undefined || !isOverRows || over === rank) return {};
  const message = [hasMoved ? s.message : "", STAYS].filter(Boolean).join(" ");
  return { edits: editsOf(s), of: signatureOf(s), message };
}

// A finger that moves the time that is shown picked no bar where it began.
function panned(changes) {
  return "from" in changes ? { ...changes, picked: null } : {};
}

function gripOf(mark, at, s, laid) {
  const { right, bottom } = laid.place, cell = findCell(laid, mark?.id);
  if (cell) {
    const before = { edits: s.edits, undone: s.undone, of: s.of, message: s.message };
    return { ...cell, x: at.x, before, centres: centresOf(laid, cell) };
  }
  const isOnAxis = at.y > bottom - 4 && at.y < bottom + 24 && at.x < right + 10;
  return isOnAxis ? { isHead: true, before: { now: s.now } } : null;
}

// Where the middles of a row's cells lie.
function centresOf(laid, { rank }) {
  const { grid, starts, ends } = laid.run, { rows, paired } = laid.schedule;
  let at = grid.first[rank];
  return cellsOf(rows[rank], paired).map((cell) => {
    const [one, last] = [at, at + cell.length - 1];
    at += cell.length;
    return laid.place.zero + ((starts[one] + ends[last]) / 2) * laid.place.pixels;
  });
}

// The share of the makespan at a point.
function shareAt({ x }, { place, run }) {
  return Math.min(1, Math.max(0, (x - place.zero) / place.pixels / (run.makespan || 1)));
}
