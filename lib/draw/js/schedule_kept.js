// What each rank of a schedule keeps in memory, as bars beside its rows or below them.
import { tint } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { figureText, inMicrobatches, keptBy, meetsGoal } from "./schedule_words.js";

const KEPT_HEIGHT = 14; // px of a bar
const KEPT_PANEL = 2; // after the numbers and the rows, for the keys

// Lays out the most microbatches alive at once; one counts whole where all the stages of its rank
// keep it.
export function layKept(schedule, run, { kept: place, limit, isNarrow, step }) {
  const { x, end, top, bottom } = place;
  const kept = keptBy(schedule, run.alive), most = Math.max(...kept, limit || 0);
  const scale = (end - x - 30) / most;
  const sign = kept.every((count) => meetsGoal(count, limit)) ? "✓" : "✗";
  const about = `limit ${figureText(limit || 0, "")}`, ofLimit = `${about} ${sign}`;
  const caption = (at, y, text) => textMark(at, y, text, { fill: style.faint });
  const title = `peak memory, microbatches${limit ? `: ${ofLimit}` : ""}`;
  const marks = isNarrow
    ? [caption(0, top - 10, title)]
    : [caption(x, top - 12, "peak memory"), caption(x, bottom + 14, "microbatches")];
  kept.forEach((count, rank) => {
    const y = top + rank * step + 3, middle = y + KEPT_HEIGHT / 2;
    if (isNarrow) marks.push(textMark(x - 5, middle, String(rank), { align: "right" }));
    marks.push(...keptMarks(schedule, run, rank, count, y, scale, x, limit));
  });
  if (!limit) return marks;
  const line = [[x + limit * scale, top], [x + limit * scale, bottom - 3]];
  marks.push(lineMark(line, style.ink, { about }));
  if (!isNarrow) marks.push(caption(x, bottom + 14 + style.line, ofLimit));
  return marks;
}

// The memory of one rank; what is over the limit is hatched.
function keptMarks({ rows, stages }, run, rank, count, y, scale, x, limit) {
  const h = KEPT_HEIGHT, inside = Math.min(count, limit || count), over = count - inside;
  const own = [...new Set(rows[rank].map((code) => (code >> 2) % stages))].sort((a, b) => a - b);
  const about = () =>
    `rank ${rank} keeps the activations of at most ${inMicrobatches(count)}; ` +
    own.map((stage) => `stage ${stage}: ${run.peaks[stage]}`).join(", ");
  const fill = tint(style.compute.forward, 0.45), id = `memory ${rank}`;
  const more = { fill, about, id, panel: KEPT_PANEL };
  const marks = [boxMark(x, y, inside * scale, h, more)];
  if (over * scale > 0) {
    const look = { edge: style.ink, hatch: true };
    marks.push(boxMark(x + inside * scale, y, over * scale, h, look));
  }
  const text = figureText(count, ""), line = (limit || 0) * scale; // of the limit, drawn over it
  const after = count * scale + 6;
  const isCrossed = after < line + 4 && after + text.length * style.letter > line - 2;
  marks.push(textMark(x + (isCrossed ? line + 6 : after), y + h / 2, text));
  return marks;
}
