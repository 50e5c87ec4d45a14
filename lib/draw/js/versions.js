// Which version of the weights each microbatch sees on each stage: a row a stage, a column a
// microbatch.
import { colourOf, lettersOn, tint } from "./colours.js";
import { boxMark, textMark } from "./marks.js";

const GRID_LEFT = 92, GRID_TOP = 26, GRID_RIGHT = 14, LEAST_WIDTH = 300; // px
const STAGE_ROW = 26, MOST_BATCH = 44; // px

// Makes the picture of versions from what lib/draw/versions.py gathers.
export function picture(data) {
  return {
    title: "Versions of the weights, by stage and microbatch",
    summary: data.summary,
    state: {},
    layout: (state, width) => layVersions(data.seen, width),
  };
}

function layVersions(seen, width) {
  const columns = seen[0].length, newest = Math.max(1, ...seen.flat(2));
  const column = Math.min(MOST_BATCH, (width - GRID_LEFT - GRID_RIGHT) / columns);
  const names = { fill: style.faint, align: "right" }, every = column > 18 ? 1 : 5;
  const marks = [textMark(GRID_LEFT - 8, GRID_TOP / 2, "microbatch", names)];
  for (let j = 0; j < columns; j += every) {
    const x = GRID_LEFT + (j + 0.5) * column;
    marks.push(textMark(x, GRID_TOP / 2, String(j), { align: "middle" }));
  }
  seen.forEach((row, stage) => {
    const y = GRID_TOP + stage * STAGE_ROW, more = { align: "right" };
    marks.push(textMark(GRID_LEFT - 8, y + STAGE_ROW / 2, `stage ${stage}`, more));
    row.forEach((pair, j) => marks.push(...versionMarks(pair, stage, j, column, newest)));
  });
  const used = Math.max(GRID_LEFT + columns * column + GRID_RIGHT, LEAST_WIDTH);
  return { marks, height: GRID_TOP + seen.length * STAGE_ROW + 6, width: used };
}

// A cell: darker the newer its version; both versions in a frame where they differ.
function versionMarks([forward, backward], stage, j, column, newest) {
  const x = GRID_LEFT + j * column, y = GRID_TOP + stage * STAGE_ROW;
  const fill = tint(colourOf("forward"), 0.08 + (0.92 * forward) / newest);
  const differ = forward !== backward, text = differ ? `${forward}|${backward}` : String(forward);
  const about = `stage ${stage}, microbatch ${j}: forward sees version ${forward}, ` +
    `backward ${differ ? backward : "the same"}`;
  const more = { fill, edge: differ ? style.ink : undefined, about, id: `${stage} ${j}` };
  const cell = boxMark(x, y, column - 2, STAGE_ROW - 3, more);
  if (text.length * style.letter >= column) return [cell];
  const letters = { fill: lettersOn(fill), align: "middle" };
  return [cell, textMark(x + column / 2 - 1, y + STAGE_ROW / 2 - 1, text, letters)];
}
