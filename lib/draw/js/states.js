// Bytes that a rank keeps of a model under each stage of ZeRO, beside the memory of its device.
import { axisMarks, legendMarks, wrapText } from "./axes.js";
import { textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount, commas, plural } from "./numbers.js";
import {
  byteScale,
  countInWords,
  deviceInWords,
  kindBar,
  limitMarks,
  STATES_EDGE,
  STATES_ROW,
  STATES_TOP,
} from "./state_bars.js";

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
  const scale = byteScale(stages.map(({ total }) => total), gpu.memory, left, right);
  const { x, end } = scale;
  const bottom = STATES_TOP + stages.length * STATES_ROW;
  const marks = stages.flatMap((one, n) =>
    zeroMarks(one, STATES_TOP + n * STATES_ROW, scale, right)
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
function zeroMarks({ stage, bytes, total, fits }, y, scale, right) {
  const text = `stage ${stage}: ${amount(total, "B")}, ${fits ? "fits" : "does not fit"}`;
  const left = scale.x(0), marks = [textMark(left, y + 8, text)];
  const about = `sharded: ${SHARDED[stage]}`;
  if (right - left > (text.length + about.length + 4) * style.letter) {
    marks.push(textMark(right, y + 8, about, { align: "right", fill: style.faint }));
  }
  const told = (kind) => `stage ${stage}: ${kind} ${commas(bytes[kind])} bytes`;
  const parts = STATE_KINDS.map((kind) => [kind, bytes[kind], told(kind), `${stage} ${kind}`]);
  return [...marks, ...kindBar(parts, y + 18, scale)];
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
