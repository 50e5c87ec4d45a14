// Every round of a plan in small: a row a rank, a column a piece.
import { wrapText } from "./axes.js";
import { pieceColour, tint } from "./colours.js";
import { boxMark, textMark } from "./marks.js";
import { shapeOf, spotOf } from "./plan_layout.js";
import { membersOf, partShade } from "./plan_pieces.js";

const STRIP_HEIGHT = 56; // px, the height of one round

// Lays the rounds out, with a frame around the one that is shown; gives {marks, y} with y below
// them.
export function layStrip(data, width, y, now) {
  const size = smallSize(data), { wide, tall } = size, pitch = Math.max(wide, 34) + 14;
  const title = wrapText(stripTitle(data, size), width - 16);
  const marks = title.map((text, n) => textMark(8, y + n * style.line, text));
  let x = 8;
  y += title.length * style.line;
  data.held.forEach((_, number) => {
    if (x > 8 && x + wide > width - 8) [x, y] = [8, y + tall + style.line + 12];
    marks.push(...roundMarks(data, number, x, y, size, number === now));
    const text = number ? String(number) : "start", low = y + tall + 11;
    if (wide > 30) marks.push(textMark(x + wide / 2, low, text, { align: "middle" }));
    else marks.push(textMark(x, low, text));
    x += pitch;
  });
  return { marks, y: y + tall + style.line + 10 };
}

// Pixels of a piece {w, h} and of a round {wide, tall}; `stripe` is the height of a rank's part, 0
// where there is no room for one a rank.
function smallSize(data) {
  const { ranks, whole, personal } = data, [across, down] = shapeOf(data);
  const stripe = whole || personal || ranks > 4 ? 0 : Math.floor(12 / ranks);
  const least = Math.min(10, Math.floor(STRIP_HEIGHT / (ranks * down)));
  const h = stripe ? stripe * ranks + 2 : Math.max(4, least);
  const plain = across === 1 ? 14 : across <= 4 ? 10 : 7, striped = across === 1 ? 28 : 14;
  const w = stripe ? striped : plain;
  return { w, h, stripe, wide: across * w, tall: ranks * down * h };
}

function stripTitle({ whole, personal }, { stripe }) {
  if (whole || personal) return "every round; colour: the rank it came from";
  if (stripe) return "every round; a stripe for each rank that is in it";
  return "every round; stronger: more added, purple: new";
}

// What all ranks hold after a round.
function roundMarks(data, number, x, y, size, isNow) {
  const about = number ? `after round ${number}` : "before the first round";
  const edge = isNow ? style.ink : style.grid, id = { frame: number };
  const look = { fill: style.paper, edge, about, id };
  const fill = size.stripe ? stripeMarks : shadeMarks;
  return [boxMark(x, y, size.wide, size.tall, look), ...fill(data, number, x, y, size)];
}

function stripeMarks(data, number, x, y, { w, h, stripe }) {
  const stripes = (rank, mask, p) =>
    membersOf(data, mask).map((r) => {
      const top = y + rank * h + 1 + r * stripe;
      return boxMark(x + p * w + 1, top, w - 2, stripe, { fill: partShade(r, mask) });
    });
  return data.held[number].flatMap((pieces, rank) =>
    pieces.flatMap((mask, p) => stripes(rank, mask, p))
  );
}

// Neighbours of one shade are one box.
function shadeMarks(data, number, x, y, { w, h }) {
  const [across, down] = shapeOf(data), marks = [];
  const fresh = new Set(data.fresh[number].map(([r, p]) => r * data.pieces + p));
  data.held[number].forEach((pieces, rank) => {
    const rows = Array.from({ length: down }, () => Array(across).fill(null));
    pieces.forEach((mask, p) => {
      const spot = mask && spotOf(data, rank, p), isFresh = fresh.has(rank * data.pieces + p);
      if (spot) rows[spot[1]][spot[0]] = smallShade(data, mask, isFresh);
    });
    rows.forEach((shades, row) => {
      const top = y + (rank * down + row) * h;
      for (const [from, to] of sameRuns(shades)) {
        if (!shades[from]) continue;
        marks.push(boxMark(x + from * w, top, (to - from) * w, h, { fill: shades[from] }));
      }
    });
  });
  return marks;
}

// [from, to] of the longest runs of equal shades.
function sameRuns(shades) {
  const runs = [];
  for (let from = 0, to; from < shades.length; from = to) {
    to = from + 1;
    while (to < shades.length && String(shades[to]) === String(shades[from])) to++;
    runs.push([from, to]);
  }
  return runs;
}

// A piece's colour: its rank's, or the stronger the more ranks are in it.
function smallShade(data, mask, fresh) {
  const members = membersOf(data, mask), share = members.length / data.ranks;
  if (data.whole || data.personal) return pieceColour(members[0]);
  if (fresh) return tint(style.comm.message, 0.35 + 0.65 * share);
  return mask < 0 ? tint(style.faint, 0.4 * share) : tint(style.ink, share);
}
