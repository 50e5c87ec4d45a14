// Attention's scores as blocks of queries and keys, coloured by the rank that computes them, and
// the time that each rank takes for its blocks.
import { legendMarks } from "./axes.js";
import { lettersOn, pieceColour, tint } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { commas, plural } from "./numbers.js";

const RING_STEP = 1.6; // seconds for a step
const SCORE_MATRIX = { top: 30, left: 8, least: 150, most: 300, gap: 12 }; // px, of the matrix
const RING_LANES = { tall: 18, gap: 6, left: 58, edge: 14 }; // px, of the time of each rank
const NOT_YET = 0.22; // share of the colour of what is not computed yet

// Makes the picture of blocks from what lib/draw/attention_blocks.py gathers.
export function picture(data) {
  const player = (state) => {
    const most = ringPlanOf(data, state).steps.length;
    const show = (at) => `${Math.min(most, Math.floor(at))} of ${most}`;
    const moving = { min: 0, max: most, jump: 1, seconds: RING_STEP * most, show };
    return { kind: "player", name: "at", label: "Step", ...moving };
  };
  const packings = data.packings.length ? data.packings : [["one", "one document"]];
  return {
    title: "Who computes which block of attention",
    summary: data.summary,
    state: { ...data.start },
    controls: [
      { kind: "choice", name: "layout", label: "Layout", options: data.layouts },
      { kind: "choice", name: "ranks", label: "Ranks", options: [2, 4, 8].map((n) => [n, `${n}`]) },
      {
        kind: "choice",
        name: "packed",
        label: "Sequence",
        options: packings,
        hidden: !data.packings.length,
      },
      player,
    ],
    layout: (state, width) => layAttention(data, state, width),
    status: (state) => ringStatus(ringPlanOf(data, state), state.at),
  };
}

function ringPlanOf({ plans }, { layout, ranks, packed }) {
  return plans[`${layout} ${ranks} ${packed}`];
}

function layAttention(data, state, width) {
  const plan = ringPlanOf(data, state), most = plan.steps.length, at = Math.min(state.at, most);
  const lay = plan.heads ? layHeadScores : layScores, scores = lay(plan, data, width, at);
  const lanes = layRankLanes(plan, width, scores.y, at);
  const keys = Array.from({ length: plan.ranks }, (_, rank) => [`rank ${rank}`, pieceColour(rank)]);
  if (most > 1) keys.push(["to come", tint(pieceColour(0), NOT_YET)]);
  keys.push(["waiting", null, true]);
  const legend = legendMarks(keys, 8, lanes.y, width - 8);
  const marks = [...scores.marks, ...lanes.marks, ...legend.marks];
  const { summary, verdict } = plan;
  return { marks, height: Math.round(legend.y), summary, heading: verdict };
}

// The matrix of all heads, in the order of the sequence; the number of a block is its step.
function layScores(plan, { length }, width, at) {
  const room = width - 2 * SCORE_MATRIX.left;
  const side = Math.max(SCORE_MATRIX.least, Math.min(SCORE_MATRIX.most, room));
  const left = SCORE_MATRIX.left + Math.max(0, (room - side) / 2);
  const frame = { left, top: SCORE_MATRIX.top, side, length };
  const marks = scoreFrameMarks(frame, "keys →   queries ↓");
  plan.steps.forEach((step, number) =>
    step.forEach((own, rank) =>
      own.forEach((block, n) => {
        const id = `${number} ${rank} ${n}`;
        marks.push(...scoreMarks(frame, block, { rank, number, at, id }));
      })
    )
  );
  return { marks, y: SCORE_MATRIX.top + side + SCORE_MATRIX.gap };
}

// A matrix for each rank, which has all tokens of its heads.
function layHeadScores(plan, { length }, width, at) {
  const across = width / plan.ranks < 110 ? Math.ceil(plan.ranks / 2) : plan.ranks;
  const pitch = (width - 16) / across, side = Math.min(150, pitch - 10), marks = [];
  const tall = side + 24, down = Math.ceil(plan.ranks / across);
  for (let rank = 0; rank < plan.ranks; rank++) {
    const left = 8 + (rank % across) * pitch + (pitch - side) / 2;
    const top = SCORE_MATRIX.top + Math.floor(rank / across) * tall;
    const frame = { left, top, side, length };
    marks.push(...scoreFrameMarks(frame, `heads of rank ${rank}`));
    plan.steps[0][0].forEach((block, n) =>
      marks.push(...scoreMarks(frame, block, {
        rank,
        number: 0,
        at,
        id: `heads ${rank} ${n}`,
        isOnlyStep: true,
      }))
    );
  }
  return { marks, y: SCORE_MATRIX.top + down * tall };
}

function scoreFrameMarks({ left, top, side }, above) {
  const short = above.length * style.letter > side + 8 ? above.replace("heads of ", "") : above;
  return [
    boxMark(left, top, side, side, { edge: style.faint }),
    textMark(left + side / 2, top - 10, short, { align: "middle", fill: style.faint }),
  ];
}

// A block: full where it is computed, pale before; framed while it is computed; half of a square
// on the diagonal.
function scoreMarks({ left, top, side, length }, [q0, q1, k0, k1, masked], which) {
  const { rank, number, at, id, isOnlyStep } = which, unit = side / length;
  const x = left + k0 * unit, y = top + q0 * unit, w = (k1 - k0) * unit, h = (q1 - q0) * unit;
  const isNow = at > number && at < number + 1, own = pieceColour(rank);
  const fill = at >= number + 1 || isNow ? own : tint(own, NOT_YET);
  const rows = q1 - q0, count = masked ? (rows * (rows + 1)) / 2 : rows * (k1 - k0);
  const rest = masked ? ", the rest masked" : "", tokens = (a, b) => `${commas(a)} to ${commas(b)}`;
  const about = `rank ${rank}, step ${number}: queries ${tokens(q0, q1 - 1)}, ` +
    `keys ${tokens(k0, k1 - 1)}\n${plural(count, "score")}${rest}`;
  const edge = isNow ? style.ink : style.paper, text = String(number), marks = [];
  const half = [[x, y], [x + w, y + h], [x, y + h]];
  if (masked) marks.push(areaMark(half, fill, { about, id, alpha: 1 }));
  else marks.push(boxMark(x, y, w, h, { fill, edge, thick: isNow ? 2 : 1, about, id }));
  const letters = { fill: lettersOn(fill), align: "middle" };
  if (masked && isNow) marks.push(lineMark([[x, y], [x + w, y + h]], style.ink, { thick: 2 }));
  const wide = masked ? w / 2 : w, needs = text.length * style.letter + 4;
  if (isOnlyStep || wide < needs || h < style.size + 3) return marks;
  const [along, down] = masked ? [w / 3, h * 0.7] : [w / 2, h / 2];
  return [...marks, textMark(x + along, y + down, text, letters)];
}

// The time of each rank, in scores: its steps, and where it waits until the last one has ended.
function layRankLanes({ ranks, scores, begins, ends, axis }, width, top, at) {
  const marks = [], span = Math.max(...ends.at(-1)), right = width - RING_LANES.edge;
  const x = (count) => RING_LANES.left + (count / axis) * (right - RING_LANES.left);
  const y = (rank) => top + rank * (RING_LANES.tall + RING_LANES.gap);
  for (let rank = 0; rank < ranks; rank++) {
    const middle = y(rank) + RING_LANES.tall / 2, name = `rank ${rank}`;
    marks.push(textMark(RING_LANES.left - 8, middle, name, { align: "right" }));
    let free = 0;
    scores.forEach((step, number) => {
      const [begin, count] = [begins[number][rank], step[rank]];
      if (!count) return;
      marks.push(...rankWaitMarks(x, y(rank), rank, free, begin));
      marks.push(...rankStepMarks(x, y(rank), { rank, number, begin, count, at }));
      free = ends[number][rank];
    });
    marks.push(...rankWaitMarks(x, y(rank), rank, free, span));
  }
  const below = y(ranks) + 8, text = `${commas(Math.round(span))} scores one after the other`;
  const half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(x(span), RING_LANES.left + half), right - half);
  marks.push(lineMark([[x(span), top - 4], [x(span), y(ranks)]], style.ink, { thick: 1 }));
  marks.push(textMark(middle, below, text, { align: "middle" }));
  return { marks, y: below + style.line };
}

function rankStepMarks(x, y, { rank, number, begin, count, at }) {
  const left = x(begin), w = x(begin + count) - left, own = pieceColour(rank);
  const fill = at > number ? own : tint(own, NOT_YET), text = String(number);
  const isNow = at > number && at < number + 1;
  const about = `rank ${rank}, step ${number}: ${plural(Math.round(count), "score")}`;
  const look = { edge: isNow ? style.ink : style.paper, thick: isNow ? 2 : 1 };
  const more = { fill, ...look, about, id: `lane ${rank} ${number}` };
  const bar = boxMark(left, y, w, RING_LANES.tall, more);
  if (w < text.length * style.letter + 4) return [bar];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [bar, textMark(left + w / 2, y + RING_LANES.tall / 2, text, letters)];
}

function rankWaitMarks(x, y, rank, from, to) {
  if (x(to) - x(from) < 1) return [];
  const about = `rank ${rank} waits for the time of ${plural(Math.round(to - from), "score")}`;
  const more = { edge: style.faint, hatch: true, about, id: `wait ${rank} ${from}` };
  return [boxMark(x(from), y, x(to) - x(from), RING_LANES.tall, more)];
}

function ringStatus(plan, at) {
  const most = plan.steps.length, number = Math.min(most, Math.floor(at));
  if (plan.heads) return "Each rank has all tokens of its heads, so there is one step.";
  if (number === most) {
    return `All blocks are computed, after ${plural(most - 1, "hop")} of the keys and values.`;
  }
  const from = (rank) => (rank - number + plan.ranks) % plan.ranks;
  const pair = (_, rank) => `${rank} with those of ${from(rank)}`;
  const pairs = Array.from({ length: plan.ranks }, pair);
  return `Step ${number}: keys and values have moved on ${plural(number, "rank")}. Ranks compute ` +
    `their queries: ${pairs.join(", ")}.`;
}
