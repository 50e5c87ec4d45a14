// What each rank holds of three matrices after some steps of a product, and the tiles on their way.
import { legendMarks, wrapText } from "./axes.js";
import { lettersOn, pieceColour, tint } from "./colours.js";
import { boxMark, textMark } from "./marks.js";
import { amount, plural } from "./numbers.js";

const PANEL = { title: 20, gap: 12, name: 16, most: 84, inner: 10 }; // px

// Gives a panel for each rank after `number` steps, and what is `part` of its way in the next:
// {marks, y} with y below them.
export function layRanks(product, number, part, width, top) {
  const { ranks, states, steps } = product;
  if (!ranks.length) return { marks: [], y: top };
  const places = panelPlaces(product, width, top), marks = [];
  states[number].forEach((held, rank) => marks.push(...panelMarks(product, places, rank, held)));
  const moves = steps[number]?.moves || [];
  if (part) marks.push(...moves.flatMap((move) => flyingMarks(places, move, part)));
  else marks.push(...roomMarks(places, moves, product.names));
  const keys = [["a rank's own, and what it sends", pieceColour(0), false]];
  keys.push(["part of a sum", null, true], ["room for what comes next", null, false]);
  const legend = legendMarks(keys, 8, places.y + 4, width - 8);
  marks.push(...legend.marks);
  if (places.isRoomy || product.axes.length < 2) return { marks, y: legend.y + 8 };
  const brackets = `rank (${product.axes.join(", ")}): its place along each axis`;
  const lines = wrapText(brackets, width - 16), fill = style.faint;
  lines.forEach((line, n) =>
    marks.push(textMark(8, legend.y + 4 + n * style.line, line, { fill }))
  );
  return { marks, y: legend.y + lines.length * style.line + 8 };
}

// Where the panels lie: as many beside one another as there is room for, in the order of a mesh.
function panelPlaces({ ranks, grids, axes }, width, top) {
  const most = ranks.length > 4 ? 4 : 2;
  let across = most;
  while (across > 1 && width / across < 270) across /= 2;
  const wide = width / across, free = wide - 16 - 2 * PANEL.inner - 3 * PANEL.name;
  const side = Math.min(PANEL.most, Math.floor(free / 3));
  const tall = PANEL.title + Math.round(0.75 * side) + PANEL.gap;
  const corner = (n) => [(n % across) * wide + 8, top + Math.floor(n / across) * tall];
  const places = ranks.map((_, rank) => corner(rank));
  const cells = grids.map((grid) => [grid.length, grid[0].length]);
  const high = Math.round(0.75 * side), y = top + Math.ceil(ranks.length / across) * tall;
  const longest = `rank 0 (${axes.map((axis) => `${axis} 0`).join(", ")}) holds 99.9 MB`;
  const isRoomy = longest.length * style.letter <= wide - 28;
  return { places, cells, side, high, y, isRoomy };
}

// The place of a tile of a matrix (0, 1, 2) on a rank: [x, y, wide, tall].
function tilePlace({ places, cells, side, high }, rank, matrix, i, j) {
  const [x, y] = places[rank], [rows, columns] = cells[matrix];
  const left = x + matrix * (PANEL.name + side + PANEL.inner) + PANEL.name;
  const [wide, tall] = [side / columns, high / rows];
  return [left + j * wide, y + PANEL.title + i * tall, wide, tall];
}

// A rank's name, its place on the mesh, the bytes it holds, and its three matrices.
function panelMarks(product, places, rank, held) {
  const [x, y] = places.places[rank], { ranks, axes, names } = product;
  const place = axes.map((axis, n) => `${places.isRoomy ? `${axis} ` : ""}${ranks[rank][n]}`);
  const words = axes.length > 1 ? `rank ${rank} (${place.join(", ")})` : `rank ${rank}`;
  const marks = [
    boxMark(x, y + 3, 10, 10, { fill: pieceColour(rank) }),
    textMark(x + 16, y + 8, `${words} holds ${amount(held.bytes, "B")}`),
  ];
  for (let matrix = 0; matrix < 3; matrix++) {
    const [left, top] = tilePlace(places, rank, matrix, 0, 0), { side, high } = places;
    marks.push(textMark(left - 4, top + high / 2, names[matrix], { align: "right" }));
    marks.push(boxMark(left, top, side, high, { edge: style.grid }));
  }
  for (const tile of held.tiles) marks.push(...tileMarks(product, places, rank, tile));
  return marks;
}

// A tile: in the colour of the rank it came from; hatched where it is a part of a sum.
function tileMarks(product, places, rank, [matrix, i, j, value]) {
  const [x, y, w, h] = tilePlace(places, rank, matrix, i, j);
  const isPart = isPartial(product, matrix, value);
  const own = pieceColour(matrix < 2 ? value : rank), fill = isPart ? tint(own, 0.35) : own;
  const about = () => describeTile(product, rank, [matrix, i, j, value]);
  const more = { fill, hatch: isPart, edge: style.paper, about, id: `${rank} ${matrix} ${i} ${j}` };
  const box = boxMark(x, y, w, h, more), text = tileText(product, places, [matrix, i, j, value]);
  if (w < text.length * style.letter + 2 || h < style.size + 1) return [box];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [box, textMark(x + w / 2, y + h / 2, text, letters)];
}

function isPartial({ pieces }, matrix, value) {
  return matrix === 2 && value < pieces;
}

// The number of a tile along the dims that are cut; of a part of a sum, how much of it is there.
function tileText(product, { cells }, [matrix, i, j, value]) {
  if (isPartial(product, matrix, value)) return `${value}/${product.pieces}`;
  const [rows, columns] = cells[matrix];
  return [...(rows > 1 ? [i] : []), ...(columns > 1 ? [j] : [])].join(",");
}

function describeTile(product, rank, [matrix, i, j, value]) {
  const name = `rank ${rank}: ${product.names[matrix]}, tile ${i}, ${j}`;
  if (isPartial(product, matrix, value)) {
    const pieces = `${plural(product.pieces, "piece")} of ${product.inner}`;
    return `${name}, a pending sum: ${value} of ${pieces}`;
  }
  if (matrix === 2) return `${name}, complete`;
  return value === rank ? `${name}, its own` : `${name}, from rank ${value}`;
}

// The room for a tile that comes next, with a chip in the colour of the rank that sends it, or
// without room for a chip in that colour itself; several parts of one sum share a room.
function roomMarks(places, moves, names) {
  const rooms = new Map(); // rank and tile -> who sends it
  for (const [matrix, i, j, source, rank] of moves) {
    const key = [rank, matrix, i, j].join(" ");
    rooms.set(key, [...(rooms.get(key) || []), source]);
  }
  return [...rooms].flatMap(([key, sources]) => {
    const [rank, matrix, i, j] = key.split(" ").map(Number);
    const [x, y, w, h] = tilePlace(places, rank, matrix, i, j);
    const chip = Math.min(9, w / 2 - 3, h - 8), edge = style.paper;
    const from = `${sources.length > 1 ? "ranks" : "rank"} ${sources.join(", ")}`;
    const about = `comes next: ${names[matrix]}, tile ${i}, ${j}, from ${from} to rank ${rank}`;
    const look = { edge: style.ink, about, id: `next ${key}` };
    if (h < 13 && sources.length === 1) {
      return [boxMark(x + 1, y + 1, w - 2, h - 2, { ...look, edge: pieceColour(sources[0]) })];
    }
    const step = Math.min(chip + 2, (w - 8) / sources.length);
    return [
      boxMark(x + 2, y + 2, w - 4, h - 4, look),
      ...sources.map((source, n) => {
        const more = { fill: pieceColour(source), edge, thick: 1 };
        return boxMark(x + 4 + n * step, y + 4, chip, chip, more);
      }),
    ];
  });
}

// A tile on its way; it leaves and arrives slowly.
function flyingMarks(places, [matrix, i, j, source, destination], part) {
  const way = part * part * (3 - 2 * part);
  const [ax, ay, w, h] = tilePlace(places, source, matrix, i, j);
  const [bx, by] = tilePlace(places, destination, matrix, i, j), isSum = matrix === 2;
  const fill = isSum ? tint(pieceColour(source), 0.35) : pieceColour(source);
  const look = { fill, hatch: isSum, edge: style.ink };
  return [boxMark(ax + (bx - ax) * way, ay + (by - ay) * way, w, h, look)];
}
