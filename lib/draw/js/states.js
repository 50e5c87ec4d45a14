// Bytes that a rank keeps of a model under each stage of ZeRO, beside the memory of its device.
import { axisMarks, legendMarks, wrapText } from "./axes.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas, plural } from "./numbers.js";

const STATES_EDGE = 14, STATES_TOP = 26, STATES_BAR = 20, STATES_ROW = 46; // px
const STATES_FAR = 4; // the axis ends at so many times the device's memory
const STATE_KINDS = ["parameters", "gradients", "optimizer", "activations"];
const SHARDED = ["nothing", "optimizer", "optimizer, gradients", "everything"]; // by stage

// Makes the picture of states from what lib/draw/states.py gathers.
export function picture(data) {
  return {
    title: "Memory of a rank, by stage of ZeRO",
    summary: data.summary,
    state: { ...data.start },
    controls: stateControls(data),
    layout: (state, width) => layStates(data, state, width),
  };
}

function stateControls({ sizes, ranks, kept, gpus }) {
  const last = (list) => list.length - 1;
  const models = sizes.flatMap(({ name }, n) => (name ? [[n, name]] : []));
  return [
    { kind: "choice", name: "size", label: "Model", options: models },
    {
      kind: "slider",
      name: "size",
      label: "Parameters",
      min: 0,
      max: last(sizes),
      show: (n) => countInWords(sizes[n].numel),
    },
    {
      kind: "slider",
      name: "ranks",
      label: "Ranks",
      min: 0,
      max: last(ranks),
      show: (n) => String(ranks[n]),
    },
    {
      kind: "choice",
      name: "kept",
      label: "Optimizer and precision",
      options: kept.map(({ name }, n) => [n, name]),
    },
    {
      kind: "choice",
      name: "gpu",
      label: "Device",
      options: gpus.map((gpu, n) => [n, deviceInWords(gpu)]),
    },
  ];
}

// Writes a number of parameters with three digits: 8.03 billion.
function countInWords(numel) {
  const steps = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1, ""]];
  const [step, word] = steps.find(([least]) => numel >= 0.9995 * least) || steps.at(-1);
  return `${commas(Number((numel / step).toPrecision(3)))} ${word}`.trim();
}

const deviceInWords = ({ name, memory }) => `${name}, ${amount(memory, "B")}`;

// What is chosen, and the bytes by kind for each stage, as lib/predict/sharded/states.py has them.
function stagesOf(data, state) {
  const { name, numel } = data.sizes[state.size], ranks = data.ranks[state.ranks];
  const kept = data.kept[state.kept], gpu = data.gpus[state.gpu];
  const share = Math.ceil(numel / ranks);
  const stages = [0, 1, 2, 3].map((stage) => {
    const bytes = {
      parameters: kept.parameters * (stage >= 3 ? share : numel),
      gradients: kept.gradients * (stage >= 2 ? share : numel),
      optimizer: kept.optimizer * (stage >= 1 ? share : numel),
      activations: data.activations,
    };
    const total = STATE_KINDS.reduce((sum, kind) => sum + bytes[kind], 0);
    return { stage, bytes, total, fits: total <= gpu.memory };
  });
  return { name: name || "A model", numel, ranks, kept, gpu, stages };
}

function layStates(data, state, width) {
  const chosen = stagesOf(data, state), { stages, gpu } = chosen;
  const left = STATES_EDGE, right = width - STATES_EDGE;
  const most = Math.max(...stages.map(({ total }) => total));
  const end = Math.max(1.1 * gpu.memory, Math.min(most, STATES_FAR * gpu.memory));
  const x = (bytes) => left + (Math.min(bytes, end) / end) * (right - left);
  const bottom = STATES_TOP + stages.length * STATES_ROW;
  const marks = stages.flatMap((one, n) =>
    zeroMarks(one, STATES_TOP + n * STATES_ROW, x, end, right)
  );
  marks.push(...limitMarks(gpu, x(gpu.memory), stages.length, width));
  marks.push(...axisMarks(left, right, bottom, 0, end, "B"));
  const kinds = STATE_KINDS.filter((kind) => kind !== "activations" || data.activations);
  const keys = kinds.map((kind) => [kind, shadeOfKind(kind), false]);
  const below = legendMarks(keys, left, bottom + 2 * style.line + 4, width);
  marks.push(...below.marks);
  let y = below.y + style.line / 2;
  for (const line of wrapText(fitInWords(chosen), right - left)) {
    marks.push(textMark(left, y, line));
    y += style.line;
  }
  return { marks, height: Math.round(y), summary: statesSummary(chosen) };
}

// A stage: its number and its bytes in a line, and below it a bar of its kinds.
function zeroMarks({ stage, bytes, total, fits }, y, x, end, right) {
  const text = `stage ${stage}: ${amount(total, "B")}, ${fits ? "fits" : "does not fit"}`;
  const marks = [textMark(x(0), y + 8, text)], about = `sharded: ${SHARDED[stage]}`;
  if (right - x(0) > (text.length + about.length + 4) * style.letter) {
    marks.push(textMark(right, y + 8, about, { align: "right", fill: style.faint }));
  }
  const top = y + 18;
  let below = 0;
  for (const kind of STATE_KINDS) {
    const from = x(below), w = x(below + bytes[kind]) - from;
    below += bytes[kind];
    if (!(w > 0)) continue;
    const told = `stage ${stage}: ${kind} ${commas(bytes[kind])} bytes`;
    const more = { fill: shadeOfKind(kind), about: told, id: `${stage} ${kind}` };
    marks.push(boxMark(from, top, w, STATES_BAR, more));
  }
  if (total > end) { // the bar goes on: it is torn at the edge
    const tear = [[right - 8, top + STATES_BAR], [right - 2, top]];
    marks.push(lineMark(tear, style.paper, { thick: 3 }));
  }
  return marks;
}

// The device's memory: its name above, and a line over each bar, which leaves the texts free.
function limitMarks(gpu, x, rows, width) {
  const text = deviceInWords(gpu), half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(x, half), width - half);
  const marks = [textMark(middle, 9, text, { align: "middle" })];
  for (let n = 0; n < rows; n++) {
    const top = STATES_TOP + n * STATES_ROW + 18, line = [[x, top - 3], [x, top + STATES_BAR + 3]];
    marks.push(lineMark(line, style.paper, { thick: 5 }), lineMark(line, style.ink, { thick: 2 }));
  }
  return marks;
}

// Tells in sentences which stages fit, and how large a model could be.
function fitInWords({ name, ranks, kept, gpu, stages }) {
  const fit = stages.filter(({ fits }) => fits).map(({ stage }) => stage);
  const where = `on ${plural(ranks, "rank")} with ${amount(gpu.memory, "B")} each`;
  const verdict = fit.length === 4
    ? "fits with every stage"
    : fit.length
    ? `fits with stage${fit.length > 1 ? "s" : ""} ${fit.join(", ")}`
    : "fits with no stage";
  const each = (kept.parameters + kept.gradients + kept.optimizer) / ranks;
  const most = countInWords(gpu.memory / each);
  return `${name} ${verdict} ${where}. With stage 3, up to ${most} parameters would fit.`;
}

// Describes all stages in words, to the byte.
function statesSummary({ name, numel, ranks, kept, gpu, stages }) {
  const head = `memory of a rank by stage of ZeRO: ${name}, ${commas(numel)} parameters on ` +
    `${plural(ranks, "rank")}, ${kept.name}, ${deviceInWords(gpu)}`;
  const lines = stages.map(({ stage, bytes, total, fits }) => {
    const parts = STATE_KINDS.filter((kind) => bytes[kind])
      .map((kind) => `${kind} ${commas(bytes[kind])}`);
    const verdict = fits ? "fits" : "does not fit";
    return `  stage ${stage}: ${parts.join(", ")}: ${commas(total)} bytes, ${verdict}`;
  });
  return [head, ...lines].join("\n");
}
