// Who sent how many bytes to whom: the same matrix as lib/draw/traffic.py, for all operations and
// groups or for one, with ranks in nodes or without.
import { colourOf, lettersOn, tint, amount, commas, plural } from "./axes.js";

const LEFT = 96, TOP = 2 * style.line + 8, TALL = 30; // px
const FAINTEST = 0.08; // what is little is not nothing

export function picture(data) {
  const { ranks, ops, groups } = data;
  const all = (names) => [[null, "all"], ...names.map((name) => [name, name || "no name"])];
  const nodes = nodeSizes(data);
  return {
    title: "Traffic by sender and receiver",
    summary: data.summary,
    state: { op: null, group: null, node: data.node },
    controls: [
      { kind: "choice", name: "op", label: "Operation", options: all(ops), hidden: ops.length < 2 },
      { kind: "choice", name: "group", label: "Group", options: all(groups), hidden: groups.length < 2 },
      { kind: "choice", name: "node", label: "Ranks a node", options: nodes, hidden: nodes.length < 2 },
    ],
    layout(state, width) {
      const moved = pairsOf(data, state);
      return { ...matrix(ranks, moved, state, width), moved };
    },
    says: (state, { moved }) => (moved ? told(data, moved, state) : ""),
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

function matrix(ranks, moved, { op, node }, width) {
  const n = ranks.length, sizes = [...moved.values()].map((pair) => pair.bytes);
  const distinct = [...new Set(sizes)].filter(Boolean), most = Math.max(0, ...distinct);
  const colour = op ? colourOf(op) : style.comm.message;
  const cell = Math.max(3, Math.min(84, Math.floor((width - 110) / n))), tall = Math.min(TALL, cell);
  const marks = [
    { kind: "text", x: LEFT, y: style.line / 2 + 4, fill: style.ink, text: "to rank" },
    { kind: "text", x: 8, y: TOP + tall / 2, fill: style.ink, text: "from" },
    ...names(ranks, cell, tall),
  ];
  const bare = cell < 10; // lines around the cells would be all there is to see
  if (bare) marks.push({ kind: "box", x: LEFT, y: TOP, w: n * cell, h: n * tall, edge: style.grid });
  const fits = distinct.every((bytes) => cell > amount(bytes, "B").length * style.letter);
  const shade = (bytes) => tint(colour, FAINTEST + (1 - FAINTEST) * (bytes / most));
  const shades = new Map(distinct.map((bytes) => [bytes, shade(bytes)])).set(0, style.paper);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      const pair = moved.get(`${i} ${j}`), bytes = pair ? pair.bytes : 0;
      if (bare && !bytes) continue;
      const fill = shades.get(bytes), x = LEFT + j * cell, y = TOP + i * tall;
      const about = () => aboutPair(ranks[i], ranks[j], pair);
      const edge = bare ? undefined : style.grid;
      marks.push({ kind: "box", x, y, w: cell, h: tall, fill, edge, about, id: `${i} ${j}` });
      if (!fits || !bytes) continue;
      const text = amount(bytes, "B"), ink = lettersOn(fill);
      marks.push({ kind: "text", x: x + cell / 2, y: y + tall / 2, fill: ink, text, align: "middle" });
    }
  let height = TOP + n * tall + 8;
  if (node) marks.push(...blocks(ranks, cell, tall, node));
  if (!fits) {
    marks.push(...scale(colour, most, height + 8));
    height += style.line + 10;
  }
  if (node) {
    const [inside, outside] = split(ranks, moved, node).map((bytes) => amount(bytes, "B"));
    const text = `inside a node ${inside} · between nodes ${outside}`;
    marks.push({ kind: "text", x: 8, y: height + 8, fill: style.ink, text });
    height += style.line + 6;
  }
  return { marks, height };
}

// The ranks' numbers, as many as have room.
function names(ranks, cell, tall) {
  const wide = Math.max(...ranks.map((rank) => String(rank).length)) * style.letter + 10;
  const every = (room, need) => [1, 2, 4, 8, 16, 32].find((s) => s * room >= need || s === 32);
  const across = every(cell, wide), down = every(tall, style.line - 1), marks = [];
  ranks.forEach((rank, i) => {
    const name = { kind: "text", fill: style.ink };
    if (i % across === 0)
      marks.push({ ...name, x: LEFT + (i + 0.5) * cell, y: TOP - 11, text: String(rank), align: "middle" });
    if (i % down === 0)
      marks.push({ ...name, x: LEFT - 8, y: TOP + (i + 0.5) * tall, text: `rank ${rank}`, align: "right" });
  });
  return marks;
}

// A frame around what stays inside each node.
function blocks(ranks, cell, tall, node) {
  const places = ranks.map((rank) => Math.floor(rank / node));
  return [...new Set(places)].map((here) => {
    const first = places.indexOf(here), size = places.filter((place) => place === here).length;
    const x = LEFT + first * cell, y = TOP + first * tall;
    return { kind: "box", x, y, w: size * cell, h: size * tall, edge: style.ink, thick: 1.6 };
  });
}

// What the shades mean, where the cells have no room for numbers.
function scale(colour, most, y) {
  const marks = [{ kind: "text", x: LEFT - 8, y: y + 6, fill: style.ink, text: "0 B", align: "right" }];
  for (let i = 0; i < 5; i++)
    marks.push({ kind: "box", x: LEFT + i * 16, y, w: 16, h: 12, fill: tint(colour, i / 4), edge: style.grid });
  return [...marks, { kind: "text", x: LEFT + 88, y: y + 6, fill: style.ink, text: amount(most, "B") }];
}

function split(ranks, moved, node) {
  const place = (i) => Math.floor(ranks[i] / node), sums = [0, 0];
  for (const { from, to, bytes } of moved.values()) sums[place(from) === place(to) ? 0 : 1] += bytes;
  return sums;
}

function aboutPair(from, to, pair) {
  const head = `rank ${from} to rank ${to}: ${plural(pair ? pair.bytes : 0, "byte")}`;
  if (!pair) return head;
  const parts = pair.parts.map(([op, group, bytes, messages, calls]) => {
    const what = `${op}${group ? ` in ${group}` : ""} × ${commas(calls)}`;
    return `${what}: ${plural(bytes, "byte")}, ${plural(messages, "message")}`;
  });
  return [`${head} in ${plural(pair.messages, "message")}`, ...parts].join("\n");
}

// The line below the matrix: what all that is shown comes to.
function told(data, moved, { op, group, node }) {
  const pairs = [...moved.values()], sum = (name) => pairs.reduce((total, pair) => total + pair[name], 0);
  const what = `${op ?? "all operations"}${group === null ? "" : ` in ${group || "no named group"}`}`;
  const lines = [`${what}: ${plural(sum("bytes"), "byte")} in ${plural(sum("messages"), "message")}`];
  if (node) {
    const [inside, outside] = split(data.ranks, moved, node);
    lines[0] += `; ${commas(inside)} inside nodes of ${node}, ${commas(outside)} between nodes`;
  }
  const about = (note) => note.split(": ")[0].split(", ").some((name) => !op || name === op);
  return [...lines, ...data.notes.filter(about)].join("\n");
}
