// One moment of a plan: the ranks with their pieces, and the pieces on their way between them.
import { wrapText } from "./axes.js";
import { pieceColour } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { amount, plural } from "./numbers.js";
import { arrowOf, cornerOf, isNumbered, offsetFromLine, spotOf } from "./plan_layout.js";
import { nameOf, pieceMarks, piecesText } from "./plan_pieces.js";

// Gives the ranks with what they hold after `number` rounds, and what is `part` of its way in the
// next.
export function stageMarks(data, places, number, part, width) {
  const moves = data.moves[number] || [], isGone = new Set();
  if (data.personal && part) { for (const [, , first] of moves) isGone.add(first); }
  const marks = [
    ...headLines(data, number, width).map((text, n) => textMark(8, 12 + n * style.line, text)),
    ...numberMarks(data, places),
  ];
  data.held[number].forEach((pieces, rank) => {
    marks.push(...rankMarks(places, rank, data.sent[number][rank]));
    pieces.forEach((mask, p) => {
      if (!spotOf(data, rank, p)) return;
      const corner = cornerOf(data, places, rank, p);
      marks.push(...pieceMarks(data, places, corner, rank, p, isGone.has(p) ? 0 : mask));
    });
  });
  const travelling = [];
  moves.forEach((move, i) => {
    const points = arrowOf(data, places, moves, i);
    const tokens = tokenMarks(data, places, data.held[number], move, points, part);
    marks.push(...arrowMarks(data, move, points), ...(part ? [] : tokens));
    if (part) travelling.push(...tokens);
  });
  return [...marks, ...travelling];
}

// Gives the height of the lines above the ranks, in px, which is the same in all rounds.
export function headHeight(data, width) {
  const lines = data.held.map((_, number) => headLines(data, number, width).length);
  return 14 + Math.max(...lines) * style.line;
}

// What the picture shows, and which round.
function headLines(data, number, width) {
  return [data.title, roundTitle(data, number)].flatMap((text) => wrapText(text, width - 16));
}

// What happens in a round to what arrives.
function roundTitle(data, number) {
  const all = data.moves.length, isWhole = data.personal || data.whole;
  if (number === all) {
    const sum = data.whole ? "each rank adds what it holds" : "every rank has the sum";
    return `after ${all} rounds: ${data.personal ? "every piece is where it belongs" : sum}`;
  }
  if (!data.moves[number].length) return `round ${number + 1} of ${all}: nobody sends`;
  const adds = data.moves[number][0][4], phase = data.phases[adds ? 0 : 1];
  const sum = adds ? "what arrives is added" : "the sum takes the place";
  const effect = isWhole ? "what arrives is kept" : sum;
  return `round ${number + 1} of ${all}: ${effect}${phase ? ` (${phase})` : ""}`;
}

// The pieces of a move, `part` of their way; they leave and arrive slowly.
function tokenMarks(data, places, held, move, points, part) {
  const [from, to, first, count] = move, way = part * part * (3 - 2 * part), marks = [];
  const [dx, dy] = offsetFromLine(data, places, move, points, way);
  for (let p = first; p < first + count; p++) {
    const [ax, ay] = cornerOf(data, places, from, p), [bx, by] = cornerOf(data, places, to, p);
    const x = ax + (bx - ax) * way + dx, y = ay + (by - ay) * way + dy;
    const look = { fill: style.ink, id: { token: [from, p] } };
    marks.push(boxMark(x - 2, y - 2, places.w + 4, places.h + 4, look));
    marks.push(...pieceMarks(data, places, [x, y], from, p, held[from][p], "on its way: "));
  }
  return marks;
}

// The numbers of the pieces, over their columns.
function numberMarks(data, places) {
  if (places.ring || !isNumbered(data)) return [];
  const [left, top] = places.corners[0], y = top - 10, fill = style.faint;
  const numbers = Array.from({ length: data.pieces }, (_, p) => {
    const middle = left + p * places.pitch + places.w / 2;
    return textMark(middle, y, String(p), { fill, align: "middle" });
  });
  return [textMark(left - 12, y, "piece", { fill, align: "right" }), ...numbers];
}

// A rank's name and the bytes it has sent: around its pieces in a ring, else before them.
function rankMarks(places, rank, sent) {
  const [x, y] = places.corners[rank], swatch = { fill: pieceColour(rank) };
  const name = `rank ${rank}`, bytes = `${amount(sent, "B")} sent`, fill = style.faint;
  if (places.ring) {
    const middle = x + places.wide / 2, low = y + places.tall + 12;
    return [
      boxMark(middle - 31, y - 16, 10, 10, swatch),
      textMark(middle - 17, y - 11, name),
      textMark(middle, low, bytes, { fill, align: "middle" }),
    ];
  }
  const middle = y + places.tall / 2;
  return [
    boxMark(x - 72, middle - 13, 10, 10, swatch),
    textMark(x - 12, middle - 8, name, { align: "right" }),
    textMark(x - 12, middle + 9, bytes, { fill, align: "right" }),
  ];
}

function arrowMarks(data, [from, to, first, count], points) {
  const [[ax, ay], [bx, by]] = points.slice(-2), far = Math.hypot(bx - ax, by - ay);
  const dx = ((bx - ax) / far) * 7, dy = ((by - ay) / far) * 7, x = bx - dx, y = by - dy;
  const tip = [[x - dy * 0.6, y + dx * 0.6], [bx, by], [x + dy * 0.6, y - dx * 0.6]];
  const bytes = data.bytes.slice(first, first + count).reduce((a, b) => a + b, 0);
  const pieces = count > 1 || data.pieces > 1 ? piecesText(first, count) : "all";
  const name = data.personal || data.whole ? nameOf(data, first, from) : pieces;
  const about = `rank ${from} to rank ${to}: ${name}, ${plural(bytes, "byte")}`;
  return [lineMark(points, style.ink, { about }), lineMark(tip, style.ink)];
}
