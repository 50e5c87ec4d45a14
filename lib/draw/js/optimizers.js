// Bytes that a device keeps with each optimizer, and beside them the losses of a few seeds.
import { axisMarks, legendMarks, wrapText } from "./axes.js";
import { layLosses, lossesInWords } from "./losses.js";
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

const BESIDE = 560, GUTTER = 24, BARS_SHARE = 0.6; // px, from where losses stand beside the bars
const KEPT_KINDS = ["optimizer", "parameters", "gradients", "copy"]; // from the left
const KIND_NAMES = { copy: "fp32 copy of the weights", optimizer: "optimizer's states" };
const IN_PRECISION = { fp32: "in fp32", mixed: "in mixed precision", bf16: "in bf16" };

// Makes the picture of optimizers from what lib/draw/optimizers.py gathers.
export function picture(data) {
  return {
    title: "Bytes and losses, by optimizer",
    summary: data.summary,
    state: { ...data.start },
    controls: optimizerControls(data),
    layout: (state, width) => layOptimizers(data, state, width),
    fullSummary: (state, laid) => [laid.summary, ...lossesInWords(data)].join("\n"),
  };
}

function optimizerControls({ models, precisions, gpus }) {
  const options = (list, text) => list.map((one, n) => [n, text(one)]);
  const sized = ({ name, numel }) => `${name}, ${countInWords(numel)}`;
  return [
    { kind: "choice", name: "model", label: "Model", options: options(models, sized) },
    {
      kind: "choice",
      name: "precision",
      label: "Precision",
      options: options(precisions, ({ name }) => name),
    },
    { kind: "choice", name: "gpu", label: "Device", options: options(gpus, deviceInWords) },
  ];
}

// What is chosen, and the bytes by kind with each optimizer.
function optimizersOf(data, state) {
  const { name, numel, kept } = data.models[state.model], gpu = data.gpus[state.gpu];
  const precision = data.precisions[state.precision];
  const rows = data.names.map((optimizer, n) => {
    const bytes = { optimizer: kept[state.precision][n] };
    for (const kind of ["parameters", "gradients", "copy"]) bytes[kind] = precision[kind] * numel;
    const total = KEPT_KINDS.reduce((sum, kind) => sum + bytes[kind], 0);
    return { optimizer, bytes, total, numel, fits: total <= gpu.memory };
  });
  return { name, numel, gpu, precision, rows };
}

function layOptimizers(data, state, width) {
  const chosen = optimizersOf(data, state), { rows, gpu, precision } = chosen;
  const left = STATES_EDGE, right = width - STATES_EDGE;
  const hasLosses = data.losses.some((own) => own.length), isWide = width >= BESIDE;
  const end = hasLosses && isWide ? left + Math.round(BARS_SHARE * (right - left)) : right;
  const scale = byteScale(rows.map(({ total }) => total), gpu.memory, left, end, true);
  const told = keptTexts(chosen, (end - left) / style.letter);
  const marks = rows.flatMap((row, n) =>
    optimizerMarks(row, told[n], STATES_TOP + n * STATES_ROW, scale, end)
  );
  marks.push(...limitMarks(gpu, scale.x(gpu.memory), rows.length, end));
  const bottom = STATES_TOP + rows.length * STATES_ROW;
  marks.push(...axisMarks(left, end, bottom, 0, scale.end, "B"));
  let y = bottom + 2 * style.line;
  if (hasLosses && isWide) {
    const losses = layLosses(data, { left: end + GUTTER, right, y: 0, isBeside: true });
    marks.push(...losses.marks);
    y = Math.max(y, losses.y - 4);
  }
  const kinds = KEPT_KINDS.filter((kind) => kind === "optimizer" || precision[kind]);
  const keys = kinds.map((kind) => [KIND_NAMES[kind] || kind, shadeOfKind(kind), false]);
  const below = legendMarks(keys, left, y + 4, width);
  marks.push(...below.marks);
  y = below.y + style.line / 2;
  for (const line of wrapText(fittingInWords(chosen), right - left)) {
    marks.push(textMark(left, y, line));
    y += style.line;
  }
  if (hasLosses && !isWide) {
    const losses = layLosses(data, { left, right, y: y + style.line, isBeside: false });
    marks.push(...losses.marks);
    y = losses.y;
  }
  return { marks, height: Math.round(y), summary: optimizersSummary(data, chosen) };
}

// What each optimizer keeps, in words that have room for so many letters beside its name.
function keptTexts({ rows, numel }, room) {
  const long = rows.map(({ bytes }) =>
    `${amount(bytes.optimizer, "B")}, ${eachInWords(bytes.optimizer, numel)} each`
  );
  const isRoom = rows.every(({ optimizer }, n) => optimizer.length + 2 + long[n].length <= room);
  return isRoom ? long : rows.map(({ bytes }) => amount(bytes.optimizer, "B"));
}

const eachInWords = (bytes, numel) => `${Number((bytes / numel).toPrecision(3))} B`;

// An optimizer: its name and what it keeps in a line, and below it a bar of all that is kept.
function optimizerMarks({ optimizer, bytes, total, numel, fits }, text, y, scale, right) {
  const marks = [textMark(scale.x(0), y + 8, optimizer)];
  marks.push(textMark(right, y + 8, text, { align: "right", fill: style.faint }));
  const parts = KEPT_KINDS.map((kind) => {
    const name = KIND_NAMES[kind] || kind, each = eachInWords(bytes[kind], numel);
    const told = `${optimizer}: ${name} ${commas(bytes[kind])} bytes, ${each} a parameter\n` +
      `all ${amount(total, "B")}, ${fits ? "fits" : "does not fit"}`;
    return [kind, bytes[kind], told, `${optimizer} ${kind}`];
  });
  return [...marks, ...kindBar(parts, y + 18, scale)];
}

// Tells in a sentence with which optimizers the model fits.
function fittingInWords({ name, gpu, precision, rows }) {
  const fit = rows.filter(({ fits }) => fits).map(({ optimizer }) => optimizer);
  const which = fit.length === rows.length
    ? "fits with every optimizer"
    : fit.length
    ? `fits with ${fit.join(", ")}`
    : "fits with none of these optimizers";
  const subject = `${name[0].toUpperCase()}${name.slice(1)} ${IN_PRECISION[precision.name]}`;
  return `${subject} ${which} on one device with ${amount(gpu.memory, "B")}.`;
}

// Describes all optimizers in words, to the byte, as lib/draw/optimizers.py does.
function optimizersSummary(data, { name, numel, gpu, precision, rows }) {
  const head = `bytes kept with each optimizer: ${name}, ${commas(numel)} parameters, ` +
    `${precision.name}, ${deviceInWords(gpu)}`;
  const lines = rows.map(({ optimizer, bytes, total, fits }, n) => {
    const seeds = data.losses[n].length;
    const measured = seeds ? `, losses of ${plural(seeds, "seed")}` : "";
    return `  ${optimizer}: optimizer ${commas(bytes.optimizer)}, all ${commas(total)} bytes, ` +
      `${fits ? "fits" : "does not fit"}${measured}`;
  });
  return [head, ...lines].join("\n");
}
