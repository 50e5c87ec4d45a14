// What each rank holds before and after a collective, and the pieces on their way from one to the
// other.
import { colourOf, lettersOn, pieceColour } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";

const ARROW_WIDTH = 116, ARROW_HEIGHT = 34, RANK_HEIGHT = 26, LEAST_CELL = 18; // px
const CUT = ["all_reduce", "reduce_scatter", "all_to_all", "scatter"]; // these cut the buffer
const STEP_SECONDS = 1.8; // for one collective

// By collective: what every rank holds afterwards, from what every rank held (the root is rank 0),
// and that in words.
const sumOf = (grid) => grid[0].map((label) => `Σ${label.replace(/^[A-PΣ]+/, "")}`);
const onRoot = (grid, held) => grid.map((_, r) => (r ? [] : held));
const COLLECTIVES = {
  all_reduce: [
    (grid) => grid.map(() => sumOf(grid)),
    "every rank gets the sum of everybody's pieces",
  ],
  reduce: [(grid) => onRoot(grid, sumOf(grid)), "rank 0 gets the sum of everybody's pieces"],
  reduce_scatter: [
    (grid) => sumOf(grid).map((label) => [label]),
    "everybody's pieces are added, and each rank gets one piece of the sum",
  ],
  all_gather: [(grid) => grid.map(() => grid.flat()), "every rank gets everybody's pieces"],
  gather: [(grid) => onRoot(grid, grid.flat()), "rank 0 gets everybody's pieces"],
  scatter: [(grid) => grid[0].map((label) => [label]), "each rank gets one piece of rank 0's"],
  all_to_all: [
    (grid) => grid.map((_, r) => grid.map((held) => held[r])),
    "each rank gets a piece from everybody: rows become columns",
  ],
  broadcast: [(grid) => grid.map(() => grid[0]), "every rank gets what rank 0 has"],
};

// Makes the picture of collectives from what lib/draw/collective.py gathers.
export function picture(data) {
  const steps = data.ops.length, opsOf = ({ op }) => (op ? [op] : data.ops);
  const gridsByKey = new Map(); // ops and ranks -> grids
  const grids = (state) => {
    const ops = opsOf(state), key = `${ops} ${state.ranks}`;
    if (!gridsByKey.has(key)) gridsByKey.set(key, gridsOf(ops, state.ranks));
    return gridsByKey.get(key);
  };
  return {
    title: data.ops.join(" then "),
    summary: data.summary,
    state: { at: steps, op: steps === 1 ? data.ops[0] : "", ranks: data.ranks },
    controls: collectiveControls(steps),
    layout: (state, width) => ({
      ...layGrids(opsOf(state), grids(state), state.at, width),
      summary: gridsSummary(opsOf(state), grids(state)),
    }),
    status(state) {
      const now = Math.min(steps - 1, Math.floor(state.at));
      const ops = state.at === steps ? opsOf(state) : [opsOf(state)[now]];
      return ops.map((op) => `${op}: ${COLLECTIVES[op][1]}.`).join("\n");
    },
  };
}

function collectiveControls(steps) {
  const show = (at) => `${Math.floor(at)} of ${steps}`, seconds = STEP_SECONDS * steps;
  const options = Object.keys(COLLECTIVES).map((op) => [op, op]);
  return [
    { kind: "player", name: "at", label: "Step", min: 0, max: steps, jump: 1, seconds, show },
    { kind: "choice", name: "op", label: "Collective", hidden: steps !== 1, options },
    { kind: "slider", name: "ranks", label: "Ranks", min: 2, max: 8 },
  ];
}

// What each rank holds before the first collective and after each one.
function gridsOf(ops, ranks) {
  const pieces = CUT.includes(ops[0]) ? Array.from({ length: ranks }, (_, i) => String(i)) : [""];
  const letters = Array.from({ length: ranks }, (_, r) => String.fromCharCode(65 + r));
  const start = letters.map((letter) => pieces.map((i) => letter + i));
  const isRooted = ["broadcast", "scatter"].includes(ops[0]);
  const grids = [isRooted ? start.map((held, r) => (r ? [] : held)) : start];
  for (const op of ops) grids.push(COLLECTIVES[op][0](grids.at(-1)));
  return grids;
}

// The same in words: a line for each rank.
function gridsSummary(ops, grids) {
  const lines = grids[0].map((_, r) => {
    const held = grids.map((grid) => grid[r].join("  ") || "nothing");
    return `  rank ${r}: ${held.join("  →  ")}`;
  });
  return [ops.join(" then "), ...lines].join("\n");
}

function layGrids(ops, grids, at, width) {
  const widest = grids.map((grid) => Math.max(1, ...grid.map((held) => held.length)));
  const tall = grids[0].length * RANK_HEIGHT,
    sum = widest.reduce((a, b) => a + b, 0),
    most = Math.max(...widest);
  let cell = Math.min(40, (width - 72 - ARROW_WIDTH * ops.length) / sum);
  const beside = cell >= LEAST_CELL;
  if (!beside) cell = Math.min(40, (width - 72) / most);
  const marks = [], corners = [];
  let x = 62, y = 8;
  grids.forEach((grid, step) => {
    if (step && beside) {
      marks.push(...arrowAcross(ops[step - 1], x + 10, y + tall / 2, x + ARROW_WIDTH - 10));
      x += ARROW_WIDTH;
    } else if (step) {
      marks.push(...arrowDown(ops[step - 1], x + cell / 2, y + 4));
      y += ARROW_HEIGHT;
    }
    if (!step || !beside) {
      grid.forEach((_, r) =>
        marks.push(textMark(54, y + (r + 0.5) * RANK_HEIGHT, `rank ${r}`, { align: "right" }))
      );
    }
    corners.push([x, y]);
    marks.push(...gridMarks(grid, widest[step], x, y, cell, at >= step));
    if (beside) x += widest[step] * cell;
    else y += tall;
  });
  marks.push(...travellingMarks(grids, corners, cell, at));
  const used = beside ? x + 8 : 70 + most * cell;
  return { marks, height: (beside ? y + tall : y) + 8, width: used };
}

// A row a rank, a box a piece; empty boxes for what has not come yet.
function gridMarks(grid, across, x, y, cell, come) {
  const marks = [];
  grid.forEach((held, r) => {
    for (let i = 0; i < across; i++) {
      const label = come ? held[i] || "" : "";
      const more = { about: () => describeLabel(r, label), id: `${x} ${y} ${r} ${i}` };
      marks.push(...labelMarks(label, x + i * cell, y + r * RANK_HEIGHT + 2, cell, more));
    }
  });
  return marks;
}

// A box with the letter of its rank and the number of its piece; Σ is a sum.
function labelMarks(label, x, y, cell, more) {
  const w = cell - 2, h = RANK_HEIGHT - 4;
  if (!label) return [boxMark(x, y, w, h, { edge: style.grid, ...more })];
  const fill = label[0] === "Σ" ? style.compute.compute : pieceColour(label.charCodeAt(0) - 65);
  const marks = [boxMark(x, y, w, h, { fill, ...more })];
  if (w >= label.length * style.letter) {
    marks.push(textMark(x + w / 2, y + h / 2, label, { fill: lettersOn(fill), align: "middle" }));
  }
  return marks;
}

function describeLabel(rank, label) {
  if (!label) return `rank ${rank}: nothing here`;
  const number = label.slice(1), which = number ? `piece ${number}` : "the piece";
  if (label[0] === "Σ") return `rank ${rank} holds ${label}: ${which} of everybody, added`;
  return `rank ${rank} holds ${label}: ${which} of rank ${label.charCodeAt(0) - 65}`;
}

// The pieces between two grids: a sum comes from everybody, a copy from its own rank or the first.
function travellingMarks(grids, corners, cell, at) {
  const step = Math.floor(at), part = at - step, way = part * part * (3 - 2 * part), marks = [];
  if (!part) return marks;
  const [[ax, ay], [bx, by]] = [corners[step], corners[step + 1]];
  grids[step + 1].forEach((held, r) =>
    held.forEach((label, i) => {
      for (const [from, j] of sourcesOf(grids[step], r, label)) {
        const x0 = ax + j * cell, y0 = ay + from * RANK_HEIGHT + 2;
        const x1 = bx + i * cell, y1 = by + r * RANK_HEIGHT + 2;
        const x = x0 + (x1 - x0) * way, y = y0 + (y1 - y0) * way, w = cell + 2, h = RANK_HEIGHT;
        marks.push(boxMark(x - 2, y - 2, w, h, { fill: style.paper }));
        marks.push(...labelMarks(grids[step][from][j], x, y, cell));
      }
    })
  );
  return marks;
}

// Where the pieces of a label lie before: [rank, place] each.
function sourcesOf(grid, rank, label) {
  const places = grid.flatMap((held, r) => held.map((name, j) => [r, j, name]));
  const same = places.filter(([, , name]) => name === label);
  if (same.length) return [same.find(([r]) => r === rank) || same[0]];
  return places.filter(([, , name]) => name.replace(/^[A-PΣ]+/, "") === label.slice(1));
}

function arrowAcross(op, left, y, right) {
  const edge = colourOf(op), tip = [[right - 7, y - 5], [right, y], [right - 7, y + 5]];
  return [
    lineMark([[left, y], [right, y]], edge),
    lineMark(tip, edge),
    textMark((left + right) / 2, y - 13, op, { align: "middle" }),
  ];
}

function arrowDown(op, x, y) {
  const edge = colourOf(op), tip = [[x - 5, y + 17], [x, y + 24], [x + 5, y + 17]];
  return [
    lineMark([[x, y], [x, y + 24]], edge),
    lineMark(tip, edge),
    textMark(x + 14, y + 12, op),
  ];
}
