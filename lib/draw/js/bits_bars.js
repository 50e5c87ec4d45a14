// Counted numbers as bars over a logarithmic axis, by what becomes of them in a format.
import { countFates, fateColour, fateName, fateOf } from "./bits_counts.js";
import { boxMark, lineMark, textMark } from "./marks.js";
import { exponentsOf, largestCode, valueOf } from "./number_format.js";
import { numberText, powerText, shareText } from "./number_text.js";
import { plural } from "./numbers.js";

const COUNTS = { title: 8, top: 22, tall: 78 }; // px
const LEAST_PARTED = 4; // px, the width from which bars have gaps

// Lays out the bars of the counts times 2 ** scale: {marks, y}; `chart` is the height of the
// chart above, which the lines at the ends of the format cross too.
export function layCounts({ counts, what }, format, scale, place, { left, y, chart }) {
  const { x, wide, start, right } = place, base = y + COUNTS.top + COUNTS.tall;
  const { total } = countFates(format, counts, scale);
  const most = Math.max(...counts.map(([, count]) => count));
  const height = (count) => (count / most) * COUNTS.tall, side = { align: "right" };
  const times = scale ? ` × ${powerText(scale)}` : "";
  const marks = [
    textMark(left, y + COUNTS.title, `share of the ${what}${times}`),
    textMark(start - 6, y + COUNTS.top + 6, shareText(most, total), side),
    textMark(start - 6, base - 6, "0 %", side),
    lineMark([[start, base], [right, base]], style.faint, { thick: 1 }),
  ];
  for (const [power, count] of counts) {
    const at = power + scale, fate = fateOf(format, at), fill = fateColour(fate);
    const share = `${plural(count, "number")}, ${shareText(count, total)}`;
    const about = () =>
      `${powerText(at)} to ${powerText(at + 1)}: ${share}\n${fateWords(format, at, fate)}`;
    const w = wide - (wide >= LEAST_PARTED ? 1 : 0), tall = height(count);
    const look = fill ? { fill } : { edge: style.faint, hatch: true };
    marks.push(boxMark(x(at), base - tall, w, tall, { ...look, about, id: `power ${power}` }));
  }
  return {
    marks: [...formatEndMarks(format, x, [chart, [y + COUNTS.top, base]]), ...marks],
    y: base,
  };
}

// What becomes of the numbers of one power of two; some of the largest ones may be too large.
function fateWords(format, power, fate) {
  const { top } = exponentsOf(format), largest = valueOf(format, largestCode(format));
  const limit = largest + 2 ** (top - format.mantissa - 1); // half a step above the largest
  if (fate !== "normal" || power !== top) return fateName(format, fate);
  return `normal up to ${numberText(limit)}, above which it ${fateName(format, "overflow")}`;
}

// Lines at the ends of a format: where numbers become 0, lose bits, and overflow.
function formatEndMarks(format, x, spans) {
  const { least, normal } = exponentsOf(format), largest = valueOf(format, largestCode(format));
  const lowest = `half of the smallest number of ${format.name}, ${powerText(least - 1)}`;
  const ends = [
    [least - 1, lowest],
    [normal, `the smallest normal number of ${format.name}, ${powerText(normal)}`],
    [Math.log2(largest), `the largest number of ${format.name}, ${numberText(largest)}`],
  ];
  return spans.flatMap((span) =>
    ends.map(([power, about]) => {
      const points = span.map((y) => [x(power), y]);
      return lineMark(points, style.faint, { thick: 1.2, about });
    })
  );
}
