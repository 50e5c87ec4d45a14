// What each rank holds before and after a collective: the same boxes as lib/draw/collective.py, and
// the pieces on their way from one to the other.
import { colourOf, lettersOn, piece } from "./axes.js";

const ARROW = 116, DOWN = 34, TALL_RANK = 26, LEAST = 18; // px, as in Python
const CUT = ["all_reduce", "reduce_scatter", "all_to_all", "scatter"]; // these cut the buffer
const SECONDS = 1.8; // for one collective

// What every rank holds afterwards, from what every rank held; the root is rank 0.
const sumOf = (grid) => grid[0].map((label) => `Σ${label.replace(/^[A-PΣ]+/, "")}`);
const onRoot = (grid, held) => grid.map((_, r) => (r ? [] : held));
const COLLECTIVES = {
  all_reduce: [(grid) => grid.map(() => sumOf(grid)), "every rank gets the sum of everybody's pieces"],
  reduce: [(grid) => onRoot(grid, sumOf(grid)), "rank 0 gets the sum of everybody's pieces"],
  reduce_scatter: [(grid) => sumOf(grid).map((label) => [label]), "everybody's pieces are added, and each rank gets one piece of the sum"],
  all_gather: [(grid) => grid.map(() => grid.flat()), "every rank gets everybody's pieces"],
  gather: [(grid) => onRoot(grid, grid.flat()), "rank 0 gets everybody's pieces"],
  scatter: [(grid) => grid[0].map((label) => [label]), "each rank gets one piece of rank 0's"],
  all_to_all: [(grid) => grid.map((_, r) => grid.map((held) => held[r])), "each rank gets a piece from everybody: rows become columns"],
  broadcast: [(grid) => grid.map(() => grid[0]), "every rank gets what rank 0 has"],
}; // prettier-ignore

export function picture(data) {
  const first = data.ops.length === 1 ? data.ops[0] : "";
  const opsOf = ({ op }) => (op ? [op] : data.ops);
  const made = new Map(); // ops and ranks -> grids
  const grids = (state) => {
    const key = `${opsOf(state)} ${state.ranks}`;
    if (!made.has(key)) made.set(key, gridsOf(opsOf(state), state.ranks));
    return made.get(key);
  };
  const choice = {
    kind: "choice", name: "op", label: "Collective", hidden: !first,
    options: Object.keys(COLLECTIVES).map((op) => [op, op]),
  }; // prettier-ignore
  return {
    title: data.ops.join(" then "),
    summary: data.summary,
    state: { at: data.ops.length, op: first, ranks: data.ranks },
    controls: [
      { kind: "player", name: "at", label: "Step", min: 0, max: data.ops.length, jump: 1,
        seconds: SECONDS * data.ops.length, show: (at) => `${Math.floor(at)} of ${data.ops.length}` },
      choice,
      { kind: "slider", name: "ranks", label: "Ranks", min: 2, max: 8 },
    ], // prettier-ignore
    layout: (state, width) => ({
      ...layoutGrids(opsOf(state), grids(state), state.at, width),
      summary: inWords(opsOf(state), grids(state)),
    }),
    says: (state) => {
      const now = Math.min(data.ops.length - 1, Math.floor(state.at));
      const ops = state.at === data.ops.length ? opsOf(state) : [opsOf(state)[now]];
      return ops.map((op) => `${op}: ${COLLECTIVES[op][1]}.`).join("\n");
    },
  };
}

// What each rank holds before the first collective and after each one.
function gridsOf(ops, ranks) {
  const pieces = CUT.includes(ops[0]) ? Array.from({ length: ranks }, (_, i) => String(i)) : [""];
  const start = Array.from({ length: ranks }, (_, r) => pieces.map((i) => String.fromCharCode(65 + r) + i));
  const rooted = ["broadcast", "scatter"].includes(ops[0]);
  const grids = [rooted ? start.map((held, r) => (r ? [] : held)) : start];
  for (const op of ops) grids.push(COLLECTIVES[op][0](grids.at(-1)));
  return grids;
}

// The same in words: a line for each rank.
function inWords(ops, grids) {
  const lines = grids[0].map((_, r) => {
    const held = grids.map((grid) => grid[r].join("  ") || "nothing");
    return `  rank ${r}: ${held.join("  →  ")}`;
  });
  return [ops.join(" then "), ...lines].join("\n");
}

function layoutGrids(ops, grids, at, width) {
  const ranks = grids[0].length, widest = grids.map((grid) => Math.max(1, ...grid.map((held) => held.length)));
  const sum = widest.reduce((a, b) => a + b, 0), most = Math.max(...widest);
  let cell = Math.min(40, (width - 72 - ARROW * ops.length) / sum);
  const beside = cell >= LEAST;
  if (!beside) cell = Math.min(40, (width - 72) / most);
  const marks = [], corners = [];
  let x = 62, y = 8;
  grids.forEach((grid, step) => {
    if (step && beside) {
      marks.push(...arrowAcross(ops[step - 1], x + 10, y + (ranks * TALL_RANK) / 2, x + ARROW - 10));
      x += ARROW;
    } else if (step) {
      marks.push(...arrowDown(ops[step - 1], x + cell / 2, y + 4));
      y += DOWN;
    }
    if (!step || !beside)
      grid.forEach((_, r) =>
        marks.push({ kind: "text", x: 54, y: y + (r + 0.5) * TALL_RANK, fill: style.ink, text: `rank ${r}`, align: "right" }),
      );
    corners.push([x, y]);
    marks.push(...gridMarks(grid, widest[step], x, y, cell, at >= step));
    if (beside) x += widest[step] * cell;
    else y += ranks * TALL_RANK;
  });
  marks.push(...flying(grids, corners, cell, at));
  return { marks, height: (beside ? y + ranks * TALL_RANK : y) + 8 };
}

// A row a rank, a box a piece; empty boxes for what has not come yet.
function gridMarks(grid, across, x, y, cell, come) {
  const marks = [];
  grid.forEach((held, r) => {
    for (let i = 0; i < across; i++) {
      const label = come ? held[i] || "" : "";
      marks.push(...labelMarks(label, x + i * cell, y + r * TALL_RANK + 2, cell, () => aboutLabel(r, label), `${x} ${y} ${r} ${i}`));
    }
  });
  return marks;
}

function labelMarks(label, x, y, cell, about, id) {
  const w = cell - 2, h = TALL_RANK - 4;
  if (!label) return [{ kind: "box", x, y, w, h, edge: style.grid, about, id }];
  const fill = label[0] === "Σ" ? style.compute.compute : piece(label.charCodeAt(0) - 65);
  const marks = [{ kind: "box", x, y, w, h, fill, about, id }];
  if (w >= label.length * style.letter)
    marks.push({ kind: "text", x: x + w / 2, y: y + h / 2, fill: lettersOn(fill), text: label, align: "middle" });
  return marks;
}

function aboutLabel(rank, label) {
  if (!label) return `rank ${rank}: nothing here`;
  const number = label.slice(1), which = number ? `piece ${number}` : "the piece";
  if (label[0] === "Σ") return `rank ${rank} holds ${label}: ${which} of everybody, added`;
  return `rank ${rank} holds ${label}: ${which} of rank ${label.charCodeAt(0) - 65}`;
}

// The pieces between two grids: a sum comes from everybody, a copy from its own rank or the first.
function flying(grids, corners, cell, at) {
  const step = Math.floor(at), part = at - step, way = part * part * (3 - 2 * part), marks = [];
  if (!part) return marks;
  const [[ax, ay], [bx, by]] = [corners[step], corners[step + 1]];
  grids[step + 1].forEach((held, r) =>
    held.forEach((label, i) => {
      for (const [from, j] of sourcesOf(grids[step], r, label)) {
        const x0 = ax + j * cell, y0 = ay + from * TALL_RANK + 2, x1 = bx + i * cell, y1 = by + r * TALL_RANK + 2;
        const x = x0 + (x1 - x0) * way, y = y0 + (y1 - y0) * way, w = cell + 2, h = TALL_RANK;
        marks.push({ kind: "box", x: x - 2, y: y - 2, w, h, fill: style.paper });
        marks.push(...labelMarks(grids[step][from][j], x, y, cell));
      }
    }),
  );
  return marks;
}

function sourcesOf(grid, rank, label) {
  const places = grid.flatMap((held, r) => held.map((name, j) => [r, j, name]));
  const same = places.filter(([, , name]) => name === label);
  if (same.length) return [same.find(([r]) => r === rank) || same[0]];
  return places.filter(([, , name]) => name.replace(/^[A-PΣ]+/, "") === label.slice(1));
}

function arrowAcross(op, left, y, right) {
  const edge = colourOf(op), tip = [[right - 7, y - 5], [right, y], [right - 7, y + 5]];
  return [
    { kind: "line", edge, points: [[left, y], [right, y]] },
    { kind: "line", edge, points: tip },
    { kind: "text", x: (left + right) / 2, y: y - 13, fill: style.ink, text: op, align: "middle" },
  ]; // prettier-ignore
}

function arrowDown(op, x, y) {
  const edge = colourOf(op), tip = [[x - 5, y + 17], [x, y + 24], [x + 5, y + 17]];
  return [
    { kind: "line", edge, points: [[x, y], [x, y + 24]] },
    { kind: "line", edge, points: tip },
    { kind: "text", x: x + 14, y: y + 12, fill: style.ink, text: op },
  ]; // prettier-ignore
}
