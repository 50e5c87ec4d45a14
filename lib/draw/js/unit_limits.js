// Exposed time and memory for each prefetch limit, side by side: they move against each other.
import { colourOf, tint } from "./colours.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { shadeOfKind } from "./memory_stacks.js";
import { amount } from "./numbers.js";

const LIMIT_HEIGHT = 34, LIMIT_WIDEST = 44; // px of a bar

// Lays out two rows of bars, one for each run, the chosen one in full colour: {marks, y} with y
// below them.
export function layLimits(runs, chosen, most, left, right, y) {
  const column = Math.min(LIMIT_WIDEST, (right - left) / runs.length), marks = [];
  const slowest = Math.max(...runs.map(({ exposed }) => exposed)) || 1;
  const row = (name, shade, part, text) => {
    const base = y + LIMIT_HEIGHT, more = { align: "right" };
    marks.push(textMark(left - 8, y + LIMIT_HEIGHT / 2, name, more));
    runs.forEach((run, limit) => {
      const h = part(run) * LIMIT_HEIGHT, x = left + limit * column;
      const fill = limit === chosen ? shade : tint(shade, 0.4);
      const about = `prefetch ${limit}: ${text(run)} ${name}`, id = `${name} ${limit}`;
      marks.push(boxMark(x + 2, base - h, column - 4, h, { fill, about, id }));
    });
    marks.push(lineMark([[left, base], [left + runs.length * column, base]], style.faint));
    y = base + 8;
  };
  const time = (run) => amount(run.exposed, "s"), bytes = (run) => amount(run.peak, "B");
  row("exposed", colourOf("all_gather"), ({ exposed }) => exposed / slowest, time);
  row("held", shadeOfKind("parameters"), ({ peak }) => peak / most, bytes);
  marks.push(textMark(left - 8, y + 8, "prefetch", { align: "right" }));
  runs.forEach((_, limit) => {
    const x = left + (limit + 0.5) * column;
    marks.push(textMark(x, y + 8, String(limit), { align: "middle" }));
  });
  return { marks, y: y + 8 + style.line };
}
