// How a model is cut into stages: a bar for each stage, made of its layers; all cuts on one scale.
import { axisMarks } from "./axes.js";
import { colourOf, lettersOn, tint } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { amount, roundHalfEven } from "./numbers.js";

const CUT_RIGHT = 24, STAGE_HEIGHT = 20, STAGE_GAP = 4, CUT_HEAD = 24; // px

// Makes the picture of cuts from what lib/draw/partition.py gathers.
export function picture(data) {
  return {
    title: "Stages and their layers",
    summary: data.summary,
    state: {},
    layout: (state, width) => layCuts(data, width),
  };
}

function layCuts({ cuts, unit }, width) {
  const all = cuts.flatMap((cut) => cut.stages), most = Math.max(...all.map(({ time }) => time));
  const left = 40 + Math.max(...all.map(({ name }) => name.length)) * style.letter;
  const right = width - CUT_RIGHT, scale = (right - left) / most, marks = [];
  let y = 0;
  for (const { name, stages } of cuts) {
    const slowest = Math.max(...stages.map(({ time }) => time)), top = y + CUT_HEAD;
    marks.push(textMark(8, y + CUT_HEAD / 2, `${name}: slowest stage ${amount(slowest, unit)}`));
    y = top;
    for (const stage of stages) {
      const more = { fill: style.faint, align: "right" };
      marks.push(textMark(left - 8, y + STAGE_HEIGHT / 2, stage.name, more));
      marks.push(...stageBar(stage, left, y, stage.time * scale));
      y += STAGE_HEIGHT + STAGE_GAP;
    }
    const x = left + slowest * scale;
    marks.push(lineMark([[x, top], [x, y - STAGE_GAP]], style.ink));
    y += 6;
  }
  marks.push(...axisMarks(left, right, y, 0, most, unit));
  return { marks, height: y + 2 * style.line };
}

// The layers of a stage side by side, each as long as its share of the stage's time.
function stageBar({ name, ranks, layers }, left, y, width) {
  const total = layers.reduce((sum, layer) => sum + layer.time, 0) || 1, marks = [];
  const full = colourOf("forward"), h = STAGE_HEIGHT;
  const where = ranks > 1 ? `, on ${ranks} ranks` : "";
  let x = left;
  layers.forEach(({ name: layer, time }, number) => {
    const w = (width * time) / total, fill = number % 2 ? tint(full, 0.72) : full;
    const about = `${layer}: ${roundHalfEven((100 * time) / total)}% of stage ${name}${where}`;
    marks.push(boxMark(x, y, w, h, { fill, edge: style.paper, about, id: `${y} ${number}` }));
    if (w > layer.length * style.letter + 6) {
      const more = { fill: lettersOn(fill), align: "middle" };
      marks.push(textMark(x + w / 2, y + h / 2, layer, more));
    }
    x += w;
  });
  return marks;
}
