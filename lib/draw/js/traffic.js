// Who sent how many bytes to whom: a matrix, for all operations and groups or for one, with ranks
// in nodes or without.
import { wrapText } from "./axes.js";
import { colourOf, lettersOn, tint } from "./colours.js";
import { boxMark, textMark } from "./marks.js";
import { amount, commas, plural } from "./numbers.js";

const MATRIX_LEFT = 72, MATRIX_TOP = 2 * style.line + 8, CELL_HEIGHT = 30; // px
const FAINTEST = 0.08; // what is little is not nothing

// Makes the picture of traffic from what lib/draw/traffic.py gathers.
export function picture(data) {
  const { ranks, ops, groups } = data, nodes = nodeSizes(data);
  const orAll = (names) => [[null, "all"], ...names.map((name) => [name, name || "no name"])];
  const choice = (name, label, options, isNeeded) => {
    return { kind: "choice", name, label, options, hidden: !isNeeded };
  };
  return {
    title: "Traffic by sender and receiver",
    summary: data.summary,
    state: { op: null, group: null, node: data.node },
    controls: [
      choice("op", "Operation", orAll(ops), ops.length > 1),
      choice("group", "Group", orAll(groups), groups.length > 1),
      choice("node", "Ranks a node", nodes, nodes.length > 1),
    ],
    layout(state, width) {
      const moved = pairsOf(data, state);
      return { ...layMatrix(ranks, moved, state, width), moved };
    },
    status: (state, { moved }) => (moved ? trafficStatus(data, moved, state) : ""),
  };
}

// How many ranks a node may have: those that divide 0, 1, 2, ... evenly, and the one given.
function nodeSizes({ ranks, node }) {
  const plain = ranks.every((rank, i) => rank === i);
  const sizes = plain ? ranks.slice(2).filter((size) => ranks.length % size === 0) : [];
  if (node && !sizes.includes(node)) sizes.push(node);
  return [[0, "no nodes"], ...sizes.sort((a, b) => a - b).map((size) => [size, String(size)])];
}

// "from to" (places in ranks) -> {bytes, messages, parts}, of what is chosen.
function pairsOf(data, { op, group }) {
  const moved = new Map();
  for (const [o, g, from, to, bytes, messages, calls] of data.routes) {
    if (![null, data.ops[o]].includes(op) || ![null, data.groups[g]].includes(group)) continue;
    const key = `${from} ${to}`;
    if (!moved.has(key)) moved.set(key, { from, to, bytes: 0, messages: 0, parts: [] });
    const pair = moved.get(key);
    pair.bytes += bytes;
    pair.messages += messages;
    pair.parts.push([data.ops[o], data.groups[g], bytes, messages, calls]);
  }
  return moved;
}

function layMatrix(ranks, moved, { op, node }, width) {
  const n = ranks.length, sizes = [...moved.values()].map((pair) => pair.bytes);
  const distinct = [...new Set(sizes)].filter(Boolean), most = Math.max(0, ...distinct);
  const colour = op ? colourOf(op) : style.comm.message;
  const cell = Math.max(3, Math.min(84, Math.floor((width - MATRIX_LEFT - 14) / n)));
  const tall = Math.min(CELL_HEIGHT, cell);
  const hasNumbers = distinct.every((size) => cell > amount(size, "B").length * style.letter);
  const shade = (size) => tint(colour, FAINTEST + (1 - FAINTEST) * (size / most));
  const shades = new Map(distinct.map((size) => [size, shade(size)])).set(0, style.paper);
  const marks = [
    textMark(MATRIX_LEFT, style.line / 2 + 4, "to rank"),
    textMark(MATRIX_LEFT - 8, MATRIX_TOP - 11, "from", { align: "right" }),
    ...rankNames(ranks, cell, tall),
    ...cellMarks(ranks, moved, cell, tall, shades, hasNumbers),
  ];
  let height = MATRIX_TOP + n * tall + 8, used = MATRIX_LEFT + n * cell + 12;
  if (node) marks.push(...nodeFrames(ranks, cell, tall, node));
  if (!hasNumbers) {
    marks.push(...shadeScale(colour, most, height + 8));
    height += style.line + 10;
    used = Math.max(used, MATRIX_LEFT + 190);
  }
  if (node) {
    const sums = insideAndBetween(ranks, moved, node).map((size) => amount(size, "B"));
    const text = `inside a node ${sums[0]} · between nodes ${sums[1]}`;
    const lines = wrapText(text, width - 16);
    lines.forEach((line, n) => marks.push(textMark(8, height + 8 + n * style.line, line)));
    height += lines.length * style.line + 6;
    used = Math.max(used, ...lines.map((line) => 16 + line.length * style.letter));
  }
  return { marks, height, width: used };
}

// The cells; where they are small, lines around them would be all there is to see.
function cellMarks(ranks, moved, w, h, shades, hasNumbers) {
  const n = ranks.length, isBare = w < 10, edge = isBare ? undefined : style.grid, marks = [];
  if (isBare) marks.push(boxMark(MATRIX_LEFT, MATRIX_TOP, n * w, n * h, { edge: style.grid }));
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const pair = moved.get(`${i} ${j}`), bytes = pair ? pair.bytes : 0;
      if (isBare && !bytes) continue;
      const fill = shades.get(bytes), x = MATRIX_LEFT + j * w, y = MATRIX_TOP + i * h;
      const about = () => describePair(ranks[i], ranks[j], pair);
      marks.push(boxMark(x, y, w, h, { fill, edge, about, id: `${i} ${j}` }));
      if (!hasNumbers || !bytes) continue;
      const letters = { fill: lettersOn(fill), align: "middle" };
      marks.push(textMark(x + w / 2, y + h / 2, amount(bytes, "B"), letters));
    }
  }
  return marks;
}

// The ranks' numbers, as many as have room.
function rankNames(ranks, cell, tall) {
  const wide = Math.max(...ranks.map((rank) => String(rank).length)) * style.letter + 10;
  const every = (room, need) => [1, 2, 4, 8, 16, 32].find((s) => s * room >= need || s === 32);
  const across = every(cell, wide), down = every(tall, style.line - 1), marks = [];
  ranks.forEach((rank, i) => {
    const x = MATRIX_LEFT + (i + 0.5) * cell, y = MATRIX_TOP + (i + 0.5) * tall;
    const left = MATRIX_LEFT - 8, right = { align: "right" };
    if (i % across === 0) {
      marks.push(textMark(x, MATRIX_TOP - 11, String(rank), { align: "middle" }));
    }
    if (i % down === 0) marks.push(textMark(left, y, `rank ${rank}`, right));
  });
  return marks;
}

// A frame around what stays inside each node.
function nodeFrames(ranks, cell, tall, node) {
  const places = ranks.map((rank) => Math.floor(rank / node));
  return [...new Set(places)].map((here) => {
    const first = places.indexOf(here), size = places.filter((place) => place === here).length;
    const x = MATRIX_LEFT + first * cell, y = MATRIX_TOP + first * tall;
    return boxMark(x, y, size * cell, size * tall, { edge: style.ink, thick: 1.6 });
  });
}

// What the shades mean, where the cells have no room for numbers.
function shadeScale(colour, most, y) {
  const marks = [textMark(MATRIX_LEFT - 8, y + 6, "0 B", { align: "right" })];
  for (let i = 0; i < 5; i++) {
    marks.push(
      boxMark(MATRIX_LEFT + i * 16, y, 16, 12, { fill: tint(colour, i / 4), edge: style.grid }),
    );
  }
  return [...marks, textMark(MATRIX_LEFT + 88, y + 6, amount(most, "B"))];
}

function insideAndBetween(ranks, moved, node) {
  const place = (i) => Math.floor(ranks[i] / node), sums = [0, 0];
  for (const { from, to, bytes } of moved.values()) {
    sums[place(from) === place(to) ? 0 : 1] += bytes;
  }
  return sums;
}

function describePair(from, to, pair) {
  const head = `rank ${from} to rank ${to}: ${plural(pair ? pair.bytes : 0, "byte")}`;
  if (!pair) return head;
  const parts = pair.parts.map(([op, group, bytes, messages, calls]) => {
    const what = `${op}${group ? ` in ${group}` : ""} × ${commas(calls)}`;
    return `${what}: ${plural(bytes, "byte")}, ${plural(messages, "message")}`;
  });
  return [`${head} in ${plural(pair.messages, "message")}`, ...parts].join("\n");
}

// The line below the matrix: what all that is shown comes to.
function trafficStatus(data, moved, { op, group, node }) {
  const pairs = [...moved.values()],
    sum = (name) => pairs.reduce((total, pair) => total + pair[name], 0);
  const what = `${op ?? "all operations"}${
    group === null ? "" : ` in ${group || "no named group"}`
  }`;
  const lines = [
    `${what}: ${plural(sum("bytes"), "byte")} in ${plural(sum("messages"), "message")}`,
  ];
  if (node) {
    const [inside, outside] = insideAndBetween(data.ranks, moved, node);
    lines[0] += `; ${commas(inside)} inside nodes of ${node}, ${commas(outside)} between nodes`;
  }
  const about = (note) => note.split(": ")[0].split(", ").some((name) => !op || name === op);
  return [...lines, ...data.notes.filter(about)].join("\n");
}
