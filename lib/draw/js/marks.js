// What a picture is drawn from: marks as in lib/draw/parts/marks.py, in CSS pixels from the
// upper left corner. A colour is a pair: on light paper, and on dark. More of a mark: `about` (a
// text, or a function that gives it: what the tooltip shows), `id` (the same mark in the next
// layout), `inside` (cut off at the clip of the layout), `isKey` (it only explains a legend).

// Makes a text, at the middle of its height; more: {fill, align: "left", "middle" or "right"}.
export function textMark(x, y, text, more) {
  return { kind: "text", x, y, text, fill: style.ink, align: "left", ...more };
}

// Makes a rectangle; more: {fill, edge, thick, dash, hatch, dots}; dots are
// for what only the living picture shows.
export function boxMark(x, y, w, h, more) {
  return { kind: "box", x, y, w, h, ...more };
}

// Makes a line through points; more: {thick, dash}.
export function lineMark(points, edge, more) {
  return { kind: "line", points, edge, ...more };
}

// Makes a filled polygon; more: {alpha}.
export function areaMark(points, fill, more) {
  return { kind: "area", points, fill, ...more };
}
