// A product of two split matrices on ranks: the whole matrices, what each rank holds, and the steps
// with what they move.
import { wrapText } from "./axes.js";
import { colourOf, pieceColour } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { amount, plural } from "./numbers.js";
import { layRanks } from "./shard_ranks.js";

const STEP_SHOWN = 2.2; // seconds for a step
const WHOLE = { top: 8, least: 60, most: 116, sign: 24 }; // px, of the whole matrices

// Makes the picture of shards from what lib/draw/shards.py gathers.
export function picture(data) {
  const choice = (name, label) => (state) => {
    const own = data.splits[state.way] || [], key = splitKey(own, state[name]);
    const options = own.map(([one, text]) => [one === key ? state[name] : one, text]);
    return { kind: "choice", name, label, options, hidden: !options.length };
  };
  const player = (state) => {
    const most = productOf(data, state).steps.length;
    const show = (at) => `${shownStep(at, most)} of ${most}`;
    const moving = { min: 0, max: most, jump: 1, seconds: STEP_SHOWN * most, show };
    return { kind: "player", name: "at", label: "Step", hidden: !most, ...moving };
  };
  return {
    title: "A product of two split matrices",
    summary: data.summary,
    state: { ...data.start },
    controls: [
      { kind: "choice", name: "way", label: "Ranks", options: data.ways },
      choice("a", `Split ${data.names[0]}`),
      choice("b", `Split ${data.names[1]}`),
      player,
    ],
    layout: (state, width) => layShards(productOf(data, state), state.at, width),
    status: (state) => stepStatus(productOf(data, state), state.at),
    press: (mark) => goToStep(mark),
    key: (key, state, laid, mark) => (key === "Enter" ? goToStep(mark) : null),
  };
}

// What was chosen, with the names of its three matrices and of the dim over which it sums.
function productOf({ products, splits, names, inner }, { way, a, b }) {
  const keys = splits[way] ? [a, b].map((key) => splitKey(splits[way], key)) : ["", ""];
  return { ...products[way][keys.join("|")], names, inner };
}

// A split that was chosen on another mesh stands for no split on this one.
function splitKey(options, key) {
  return options.some(([one]) => one === key) ? key : " ";
}

function shownStep(at, most) {
  return Math.min(most, Math.floor(at));
}

// A step of the list takes the picture to where it begins.
function goToStep(mark) {
  return mark?.id?.step >= 0 ? { at: mark.id.step } : null;
}

function layShards(product, at, width) {
  const whole = layWhole(product, width), most = product.steps.length;
  const number = shownStep(at, most), part = number === most ? 0 : at - number;
  const held = layRanks(product, number, part, width, whole.y);
  const steps = layStepList(product, number, width, held.y);
  const marks = [...whole.marks, ...held.marks, ...steps.marks];
  const { summary, verdict } = product;
  return { marks, height: Math.round(steps.y), summary, heading: verdict };
}

// The three matrices with the ranks that hold each tile, and their sharding lines below.
function layWhole({ lines, grids, names }, width) {
  const all = new Set(grids.flat(3)).size; // also of what is impossible, which has no panels
  const longest = Math.max(...lines.map((line) => line.length)) * style.letter;
  const pitch = Math.min(width / 3, Math.max(longest + 10, WHOLE.most + 2 * WHOLE.sign));
  const side = Math.max(WHOLE.least, Math.min(WHOLE.most, pitch - WHOLE.sign));
  const below = longest + 6 > pitch, left = (width - 3 * pitch) / 2, marks = [];
  let y = WHOLE.top + side + style.line;
  grids.forEach((grid, n) => {
    const middle = left + (n + 0.5) * pitch, x = middle - side / 2;
    marks.push(...wholeMarks(names[n], grid, all, x, WHOLE.top, side));
    if (n) {
      const sign = n === 1 ? "×" : "=", y = WHOLE.top + side / 2;
      marks.push(textMark(left + n * pitch, y, sign, { align: "middle" }));
    }
    if (!below) marks.push(textMark(middle, y, lines[n], { align: "middle" }));
  });
  if (below) {
    marks.push(...lines.map((line, n) => textMark(8, y + n * style.line, line)));
    y += 2 * style.line;
  }
  const legend = stripeWords(grids, all, width, y + style.line + 4);
  return { marks: [...marks, ...legend.marks], y: legend.y };
}

// What stripes mean, where a tile has some.
function stripeWords(grids, all, width, top) {
  const isStriped = (grid) => grid.flat().some((ranks) => ranks.length > 1);
  if (!grids.some((grid) => isStriped(grid) && !isOnAll(grid, all))) return { marks: [], y: top };
  const lines = wrapText("stripes in a tile: each of these ranks has the whole tile", width - 16);
  const marks = lines.map((line, n) =>
    textMark(8, top + n * style.line, line, { fill: style.faint })
  );
  return { marks, y: top + lines.length * style.line + 4 };
}

// Whether each of `all` ranks holds the whole of a matrix.
function isOnAll(grid, all) {
  return grid.flat().every((ranks) => ranks.length === all);
}

// A matrix: a tile has a stripe for each rank that holds it, and is empty where nobody does. What
// all ranks hold whole is plain, because stripes of all colours look like columns that are split.
function wholeMarks(matrix, grid, all, left, top, side) {
  if (isOnAll(grid, all)) {
    const about = `${matrix}: whole on every rank`, x = left + side / 2;
    const lines = wrapText("whole on every rank", side - 8), room = style.line;
    const high = top + (side - (lines.length - 1) * room) / 2;
    return [
      boxMark(left, top, side, side, { edge: style.faint, about, id: matrix }),
      ...lines.map((line, n) => textMark(x, high + n * room, line, { align: "middle" })),
    ];
  }
  const tall = side / grid.length, wide = side / grid[0].length;
  const marks = grid.flatMap((row, i) =>
    row.flatMap((ranks, j) => {
      const x = left + j * wide, y = top + i * tall, stripe = wide / ranks.length;
      const holders = ranks.length > 1 ? `ranks ${ranks.join(", ")}` : `rank ${ranks[0]}`;
      const about = `${matrix}, tile ${i}, ${j}: on ${ranks.length ? holders : "no rank"}`;
      const stripes = ranks.map((rank, n) =>
        boxMark(x + n * stripe, y, stripe, tall, { fill: pieceColour(rank) })
      );
      const id = `${matrix} ${i} ${j}`, none = { edge: style.faint, about, id };
      if (!ranks.length) return [boxMark(x + 3, y + 3, wide - 6, tall - 6, none)];
      return [...stripes, boxMark(x, y, wide, tall, { edge: style.paper, thick: 2, about, id })];
    })
  );
  return [...marks, boxMark(left, top, side, side, { edge: style.faint })];
}

// The steps with the bytes that all ranks send; the next one stands on a ground.
function layStepList({ steps }, number, width, top) {
  const marks = [], left = 8, wide = 70;
  if (!steps.length) return { marks, y: top };
  const look = { fill: style.faint, align: "right" };
  marks.push(lineMark([[left - 4, top], [width - 4, top]], style.grid));
  marks.push(textMark(width - left - 2, top + 12, "sent by all ranks", look));
  let y = top + 24;
  steps.forEach(({ op, text, sent }, n) => {
    const lines = wrapText(`${n + 1}  ${text}`, width - left - 24 - (sent ? wide : 8));
    const tall = lines.length * style.line + 6, isNext = n === number;
    const ground = isNext ? { fill: style.grid } : {};
    const about = `step ${n + 1}: ${text}\n${plural(sent, "byte")} sent by all ranks`;
    const more = { ...ground, about, id: { step: n } };
    marks.push(boxMark(left - 4, y, width - 2 * (left - 4), tall, more));
    marks.push(boxMark(left + 2, y + 6, 12, 12, { fill: colourOf(op), edge: style.faint }));
    const fill = n < number ? style.faint : style.ink, middle = y + 3 + style.line / 2;
    lines.forEach((line, i) =>
      marks.push(textMark(left + 22, middle + i * style.line, line, { fill }))
    );
    if (sent) {
      marks.push(textMark(width - left - 2, middle, amount(sent, "B"), { fill, align: "right" }));
    }
    y += tall + 2;
  });
  return { marks, y: y + 4 };
}

// What was sent so far, and who sends what to whom now.
function stepStatus({ steps, names }, at) {
  if (!steps.length) return "";
  const number = shownStep(at, steps.length);
  const sent = steps.slice(0, number).reduce((sum, step) => sum + step.sent, 0);
  const so = `Sent so far: ${plural(sent, "byte")} by all ranks.`;
  if (number === steps.length) {
    return `${names[2]} is complete after ${plural(number, "step")}. ${so}`;
  }
  const { text, who } = steps[number];
  return [so, `Next: ${text}.`, who && `From → to: ${who}.`].filter(Boolean).join("\n");
}
