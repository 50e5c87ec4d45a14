// The pieces of a plan: whose parts are in one, what it is called, and what it looks like.
import { lettersOn, pieceColour, tint } from "./colours.js";
import { boxMark, textMark } from "./marks.js";
import { plural } from "./numbers.js";

// Gives the ranks whose parts are in a piece: the bits of its mask, which is negative where it was
// handed on.
export function membersOf(data, mask) {
  return Array.from({ length: data.ranks }, (_, r) => r).filter((r) => (Math.abs(mask) >> r) & 1);
}

// Names a personal piece after who sends it and for whom (A2), and a whole buffer after its rank.
export function nameOf(data, number, rank) {
  return String.fromCharCode(65 + rank) + (data.personal ? number % data.ranks : "");
}

// Names several pieces, or one, by their numbers.
export function piecesText(first, count) {
  return count > 1 ? `pieces ${first} to ${first + count - 1}` : `piece ${first}`;
}

// Gives a piece: a frame, and a stripe for each rank whose part is in it; or all of it in one
// colour, with its name.
export function pieceMarks(data, places, [x, y], rank, number, mask, prefix = "") {
  const { w, h } = places, members = membersOf(data, mask), each = h / data.ranks;
  const about = () => prefix + describePiece(data, rank, number, mask, members);
  const look = { fill: style.paper, edge: style.grid, about, id: `${prefix}${rank} ${number}` };
  const frame = boxMark(x, y, w, h, look);
  if (data.whole || data.personal) {
    return [frame, ...members.flatMap((r) => namedMarks(nameOf(data, number, r), x, y, w, h, r))];
  }
  const stripe = (r) => boxMark(x, y + r * each, w, each, { fill: partShade(r, mask) });
  return [frame, ...members.map(stripe)];
}

function namedMarks(text, x, y, w, h, rank) {
  const fill = pieceColour(rank), box = boxMark(x, y, w, h, { fill });
  if (w <= text.length * style.letter + 2) return [box];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [box, textMark(x + w / 2, y + h / 2, text, letters)];
}

// Gives the stripe of a rank: pale where the piece was handed on.
export function partShade(rank, mask) {
  return mask < 0 ? tint(pieceColour(rank), 0.3) : pieceColour(rank);
}

function describePiece(data, rank, number, mask, members) {
  const size = plural(data.bytes[number], "byte"), count = members.length;
  if (data.whole || data.personal) {
    if (!count) return `rank ${rank} holds nothing here`;
    const target = data.personal ? ` for rank ${number % data.ranks}` : "", [source] = members;
    return `rank ${rank}: ${nameOf(data, number, source)}, from rank ${source}${target}, ${size}`;
  }
  const one = `the part of rank ${members[0]}`,
    several = `the parts of ranks ${members.join(", ")}`;
  const parts = count === data.ranks ? "the whole sum" : count > 1 ? several : one;
  const handed = mask < 0 ? "\nhanded on: nobody needs it any more" : "";
  return `rank ${rank}, piece ${number}, ${size}: ${parts}${handed}`;
}
