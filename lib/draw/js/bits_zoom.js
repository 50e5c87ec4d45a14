// The number line near a number, with the points of two formats on it.
import { boxMark, lineMark, textMark } from "./marks.js";
import { codeAt, codeOf, gapPower, nearestFinite, orderOf, valueOf } from "./number_format.js";
import { numberText } from "./number_text.js";
import { commas } from "./numbers.js";

const ZOOM_GAPS = 1.75; // of the coarser format, on each side of the number
const LEAST_APART = 3; // px between two points that are drawn one by one
const ZOOM = { label: 8, high: 20, line: 38, low: 56, under: 66 }; // px below the title

// Gives a format's colour, in which its points and its precision are drawn.
export const formatColour = (isOther) => isOther ? style.comm.all_reduce : style.compute.forward;

// Lays the number line out: {marks, y}. `points` are [{format, code}], the second below the line.
export function layZoom(number, points, left, y, right) {
  const { from, to, isInside } = zoomWindow(number, points), middle = { align: "middle" };
  const names = points.map(({ format }, n) =>
    points.length > 1 ? `${format.name} ${n ? "below" : "above"}` : format.name,
  );
  const marks = [
      textMark(left, y + 6, `${isInside ? "near it" : "at the end"}: ${names.join(", ")}`),
    ],
    top = y + 18;
  const height = top + (points.length > 1 ? ZOOM.under + 10 : ZOOM.low);
  marks.push(lineMark([[left, top + ZOOM.line], [right, top + ZOOM.line]], style.faint));
  if (from === undefined) {
    const text = "NaN lies nowhere on it.";
    marks.push(textMark((left + right) / 2, top + ZOOM.label, text, middle));
    return { marks, y: height };
  }
  const x = (value) => left + ((value - from) / (to - from)) * (right - left);
  points.forEach((one, n) =>
    marks.push(...zoomPointMarks(one, { from, to, x, left, right, top }, n))
  );
  if (number >= from && number <= to) {
    const at = x(number), look = { fill: style.ink, about: `the number: ${numberText(number)}` };
    const line = [[at, top + ZOOM.high], [at, top + (points.length > 1 ? ZOOM.low : ZOOM.line)]];
    marks.push(lineMark(line, style.ink, { thick: 1.2 }));
    marks.push(boxMark(at - 4, top + ZOOM.line - 4, 8, 8, { ...look, id: "number" }));
  }
  return { marks, y: height };
}

// From where to where the line goes: around the number, or around the end of the first format where
// the number is beyond it; NaN has none.
function zoomWindow(number, points) {
  if (Number.isNaN(number)) return { isInside: true };
  const end = nearestFinite(points[0].format, number);
  const gaps = points.map(({ format }) =>
    2 ** gapPower(format, codeOf(format, nearestFinite(format, end)))
  );
  const far = ZOOM_GAPS * Math.max(...gaps), isInside = Math.abs(number - end) < far;
  const middle = isInside ? number : end;
  return { from: middle - far, to: middle + far, isInside };
}

// The points of a format between two numbers, as ticks; as a bar where they lie too close. The one
// that the number becomes is thick and has its value.
function zoomPointMarks({ format, code }, { from, to, x, left, right, top }, n) {
  const shade = formatColour(n), [near, far] = [ZOOM.line, n ? ZOOM.low : ZOOM.high];
  const orders = [from, to].map((edge) =>
    orderOf(format, codeOf(format, nearestFinite(format, edge)))
  );
  const at = (order) => valueOf(format, codeAt(format, order)), marks = [];
  const isIn = (value) => value >= from && value <= to;
  const [first, last] = orders, many = last - first + 1;
  const tick = (value, more) => {
    marks.push(lineMark([[x(value), top + near], [x(value), top + far]], shade, more));
  };
  if (many > (right - left) / LEAST_APART) {
    const ends = [first, last].map((order) => x(Math.min(to, Math.max(from, at(order)))));
    const about = `${format.name}: about ${commas(many)} numbers lie here`;
    const y = top + Math.min(near, far) + 4, tall = Math.abs(far - near) - 4;
    const look = { fill: shade, about, id: `dense ${n}` };
    marks.push(boxMark(ends[0], y - (n ? 4 : 0), ends[1] - ends[0], tall, look));
  } else {
    for (let order = first; order <= last; order++) if (isIn(at(order))) tick(at(order));
  }
  const value = valueOf(format, code);
  if (!isIn(value)) return marks;
  tick(value, { thick: 4 });
  const text = numberText(value), half = (text.length * style.letter) / 2;
  const middle = Math.min(Math.max(x(value), left + half), right - half);
  return [
    ...marks,
    textMark(middle, top + (n ? ZOOM.under : ZOOM.label), text, { align: "middle" }),
  ];
}
