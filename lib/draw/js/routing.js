// Tokens on their way from ranks to experts, what a capacity drops of them, and the share of each
// expert at every recorded step.
import { legendMarks } from "./axes.js";
import { colourOf, lettersOn, pieceColour, tint } from "./colours.js";
import { areaMark, boxMark, lineMark, textMark } from "./marks.js";
import { commas, plural, roundHalfEven } from "./numbers.js";

const ROUTE_TOP = 26, EXPERT_ROW = 26, EXPERT_BAR = 18; // px
const RANK_BLOCK = { left: 8, wide: 56, gap: 4 }; // px
const ROUTE_EDGE = 12, COUNT_ROOM = 44; // px, right of the bars
const SHARE_ROW = 14, LEAST_SHARE = 0.04; // px, and the colour of a share of 0
const LEAST_QUARTERED = 12; // recorded steps from which columns between the ends have labels

// Makes the picture of routing from what lib/draw/routing.py gathers.
export function picture(data) {
  const runs = Object.keys(data.frames), seeds = Object.keys(data.frames[runs[0]]);
  const pairs = (names) => names.map((name) => [name, name]);
  const factors = [[null, "none"], ...data.factors.map((f) => [f, `factor ${f}`])];
  const most = Math.max(...runs.flatMap((run) => seeds.map((seed) => lastFrame(data, run, seed))));
  const player = (state) => {
    const show = (at) => String(routingSteps(data, state)[at]?.[0] ?? "");
    const max = lastFrame(data, state.run, state.seed);
    const moving = { min: 0, max, step: 1, seconds: 8, show };
    return { kind: "player", name: "at", label: "Step", hidden: !most, ...moving };
  };
  const choice = (name, label, options, isNeeded) => {
    return { kind: "choice", name, label, options, hidden: !isNeeded };
  };
  return {
    title: "Which experts the tokens of each rank choose",
    summary: data.summary,
    state: { ...data.start },
    controls: [
      choice("run", data.label, pairs(runs), runs.length > 1),
      choice("seed", "Seed", pairs(seeds), seeds.length > 1),
      choice("factor", "Capacity", factors, true),
      player,
    ],
    layout: (state, width) => layRouting(data, state, width),
    status: (state) => routingStatus(routingOf(data, state)),
    press: (mark) => (mark?.id?.frame === undefined ? null : { at: mark.id.frame }),
  };
}

function routingSteps({ frames }, { run, seed }) {
  return frames[run][seed] || [];
}

function lastFrame(data, run, seed) {
  return routingSteps(data, { run, seed }).length - 1;
}

// What is shown: the table of a step, what each expert keeps of it, and sums.
function routingOf(data, state) {
  const steps = routingSteps(data, state), at = Math.min(state.at, steps.length - 1);
  const [step, table] = steps[at], experts = table[0].length;
  const total = table.flat().reduce((sum, count) => sum + count, 0);
  const limit = state.factor === null ? null : Math.ceil((state.factor * total) / experts);
  const room = table[0].map(() => limit ?? Infinity);
  const kept = table.map((row) =>
    row.map((count, expert) => {
      const taken = Math.min(count, room[expert]);
      room[expert] -= taken;
      return taken;
    })
  );
  const of = (counts, expert) => counts.reduce((sum, row) => sum + row[expert], 0);
  const arrived = table[0].map((_, expert) => of(table, expert));
  const left = table[0].map((_, expert) => of(kept, expert));
  const dropped = total - left.reduce((sum, count) => sum + count, 0);
  return { steps, at, step, table, kept, arrived, left, dropped, total, limit, state };
}

function layRouting(data, state, width) {
  const now = routingOf(data, state), isWide = width >= 480;
  const labels = isWide ? 66 : 18, start = RANK_BLOCK.left + RANK_BLOCK.wide;
  const ribbons = Math.round((width - start) * (isWide ? 0.3 : 0.26));
  const bars = start + ribbons + labels, right = width - ROUTE_EDGE - COUNT_ROOM;
  const most = Math.max(data.most, now.limit || 0, 1);
  const x = (count) => bars + (count / most) * (right - bars);
  const marks = [
    textMark(RANK_BLOCK.left, 12, isWide ? "tokens of each rank" : "ranks"),
    textMark(isWide ? start + ribbons : bars, 12, isWide ? "tokens of each expert" : "experts"),
  ];
  marks.push(...routeMarks(now, start + ribbons));
  const places = { x, bars, isWide, end: width - ROUTE_EDGE };
  now.arrived.forEach((_, expert) => marks.push(...expertMarks(now, expert, places)));
  let y = ROUTE_TOP + now.arrived.length * EXPERT_ROW;
  if (now.limit !== null) {
    marks.push(lineMark([[x(now.limit), ROUTE_TOP - 2], [x(now.limit), y]], style.ink));
    const text = `capacity ${commas(now.limit)}`, half = (text.length * style.letter) / 2;
    const middle = Math.min(Math.max(x(now.limit), half + 8), width - half - 8);
    marks.push(textMark(middle, y + 8, text, { align: "middle" }));
    y += style.line;
  }
  const shares = now.steps.length > 1 ? shareMarks(now, width, y + 10) : { marks: [], y: y + 4 };
  const keys = now.limit === null ? [] : [["dropped", null, true]];
  const legend = legendMarks(keys, 8, shares.y, width - 8);
  return {
    marks: [...marks, ...shares.marks, ...legend.marks],
    height: Math.round(legend.y),
    heading: routingHeading(now),
    summary: routingSummary(now),
  };
}

// The tokens of each rank, and a ribbon to each expert: its ends are as wide as it has tokens, in a
// scale for each side.
function routeMarks({ table, total, arrived }, right) {
  const marks = [], ranks = table.length, left = RANK_BLOCK.left;
  const tall = arrived.length * EXPERT_ROW - RANK_BLOCK.gap * (ranks - 1) - 8;
  const unit = tall / Math.max(total, 1), part = EXPERT_BAR / Math.max(...arrived, 1);
  const filled = arrived.map((count) => (EXPERT_ROW - count * part) / 2); // of each row
  let y = ROUTE_TOP;
  table.forEach((row, rank) => {
    const count = row.reduce((sum, n) => sum + n, 0), high = count * unit, fill = pieceColour(rank);
    const about = `rank ${rank}: ${plural(count, "token")}`, id = `rank ${rank}`;
    marks.push(boxMark(left, y, RANK_BLOCK.wide, high, { fill, about, id }));
    if (high > style.size + 2) {
      const letters = { fill: lettersOn(fill), align: "middle" };
      marks.push(textMark(left + RANK_BLOCK.wide / 2, y + high / 2, `rank ${rank}`, letters));
    }
    let from = y;
    row.forEach((n, expert) => {
      if (!n) return;
      const to = ROUTE_TOP + expert * EXPERT_ROW + filled[expert];
      const ends = [to, to + n * part], begin = left + RANK_BLOCK.wide + 2, end = right - 4;
      const points = [[begin, from], [end, ends[0]], [end, ends[1]], [begin, from + n * unit]];
      const words = `rank ${rank} to expert ${expert}: ${plural(n, "token")}`;
      marks.push(areaMark(points, fill, { alpha: 0.4, about: words, id: `${rank} ${expert}` }));
      filled[expert] += n * part;
      from += n * unit;
    });
    y += high + RANK_BLOCK.gap;
  });
  return marks;
}

// An expert's bar: what it keeps of each rank, then what it drops.
function expertMarks({ table, kept, arrived, left }, expert, { x, bars, isWide, end }) {
  const middle = ROUTE_TOP + expert * EXPERT_ROW + EXPERT_ROW / 2, y = middle - EXPERT_BAR / 2;
  const name = isWide ? `expert ${expert}` : String(expert), marks = [];
  marks.push(textMark(bars - 6, middle, name, { align: "right" }));
  let at = 0;
  kept.forEach((row, rank) => {
    const n = row[expert], id = `expert ${expert} ${rank}`;
    if (!n) return;
    const dropped = table[rank][expert] - n, lost = dropped ? `, and drops ${commas(dropped)}` : "";
    const about = `expert ${expert} keeps ${plural(n, "token")} of rank ${rank}${lost}`;
    const w = x(at + n) - x(at);
    marks.push(boxMark(x(at), y, w, EXPERT_BAR, { fill: pieceColour(rank), about, id }));
    at += n;
  });
  const lost = arrived[expert] - left[expert];
  if (lost) {
    const about = `expert ${expert} drops ${plural(lost, "token")}`, id = `lost ${expert}`;
    const look = { edge: style.faint, hatch: true, about, id };
    marks.push(boxMark(x(at), y, x(arrived[expert]) - x(at), EXPERT_BAR, look));
  }
  return [...marks, textMark(end, middle, commas(arrived[expert]), { align: "right" })];
}

// A row for each expert and a column for each recorded step, darker the larger the share.
function shareMarks({ steps, at, arrived }, width, y) {
  const experts = arrived.length, left = 26, pitch = (width - left - ROUTE_EDGE) / steps.length;
  const marks = [textMark(8, y + 6, "share of each expert, by step")], top = y + style.line + 4;
  const low = top + experts * SHARE_ROW;
  for (let e = 0; e < experts; e++) {
    marks.push(textMark(left - 6, top + (e + 0.5) * SHARE_ROW, String(e), { align: "right" }));
  }
  steps.forEach(([step, table], frame) => {
    const total = Math.max(1, table.flat().reduce((sum, n) => sum + n, 0));
    for (let e = 0; e < experts; e++) {
      const share = table.reduce((sum, row) => sum + row[e], 0) / total;
      const fill = tint(colourOf("forward"), LEAST_SHARE + (1 - LEAST_SHARE) * share);
      const about = `step ${step}, expert ${e}: ${percent(share)} of the tokens`;
      const more = { fill, about, id: { frame, expert: e } };
      marks.push(boxMark(left + frame * pitch, top + e * SHARE_ROW, pitch, SHARE_ROW, more));
    }
  });
  const frame = { edge: style.ink, thick: 2 };
  marks.push(boxMark(left + at * pitch, top - 1, pitch, experts * SHARE_ROW + 2, frame));
  const first = `step ${steps[0][0]}`, last = String(steps.at(-1)[0]);
  marks.push(textMark(left, low + 12, first));
  marks.push(textMark(width - ROUTE_EDGE, low + 12, last, { align: "right" }));
  // The recorded steps need not be evenly far apart, so columns in between are labelled too.
  const between = steps.length < LEAST_QUARTERED ? [] : [1, 2, 3];
  for (const quarter of between) {
    const frame = Math.round((quarter * steps.length) / 4), middle = left + (frame + 0.5) * pitch;
    marks.push(textMark(middle, low + 12, String(steps[frame][0]), { align: "middle" }));
  }
  return { marks, y: low + style.line + 12 };
}

function percent(share) {
  return `${roundHalfEven(share * 1000) / 10} %`;
}

function routingHeading({ arrived, total, limit, dropped }) {
  const most = Math.max(...arrived), expert = arrived.indexOf(most);
  const even = percent(1 / arrived.length), share = percent(most / Math.max(total, 1));
  const lost = limit === null
    ? ""
    : ` A capacity of ${commas(limit)} drops ${percent(dropped / Math.max(total, 1))}.`;
  return `Expert ${expert} has the most tokens, ${share}; an even share is ${even}.${lost}`;
}

function routingStatus({ arrived, step, steps }) {
  const idle = arrived.filter((count) => !count).length;
  const when = steps.length > 1 ? `Step ${step}: ` : "";
  return `${when}${idle} of ${plural(arrived.length, "expert")} ${idle === 1 ? "has" : "have"} ` +
    "no token.";
}

// The words of lib/draw/routing.py.
function routingSummary({ steps, step, table, arrived, left, dropped, total, limit, state }) {
  const lost = limit === null ? "" : `, capacity ${limit}: ${commas(dropped)} dropped`;
  const where = steps.length > 1 ? `${state.run}, seed ${state.seed}, step ${step}: ` : "";
  const lines = [`routing: ${where}${commas(total)} tokens of ${table.length} ranks${lost}`];
  arrived.forEach((count, expert) => {
    const gone = count - left[expert], words = gone ? `, ${commas(gone)} dropped` : "";
    const from = table.map((row) => commas(row[expert])).join(" ");
    lines.push(`  expert ${expert}: ${commas(count)} (${from})${words}`);
  });
  return lines.join("\n");
}
