// How a picture is used by keyboard: from mark to mark, what its own keys do, and moves taken back.
import { describe } from "./mark_rows.js";
import { pointTo } from "./pointer.js";

// Gives the outline around the mark that the keyboard is at.
export function outlineOf(mark) {
  if (mark.kind !== "box") {
    return { ...mark, kind: "line", fill: undefined, edge: style.ink, thick: 3.5 };
  }
  const place = { x: mark.x - 1, y: mark.y - 1, w: Math.max(mark.w, 2) + 2, h: mark.h + 2 };
  const look = {
    fill: undefined,
    hatch: false,
    dots: false,
    edge: style.ink,
    dash: false,
    thick: 2.5,
  };
  return { ...mark, ...place, ...look };
}

// Lets keys do what the picture says, and the arrow keys go from mark to mark; returns what ends
// it. Escape puts back what is dragged and closes the tooltip, wherever the keyboard is, and then
// leaves the mark.
export function connectKeys(view) {
  const { shape, state, set, nodes: { above, tip } } = view, ending = new AbortController();
  const { signal } = ending;
  above.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const changes = shape.key?.(event.key, state, view.laid, view.chosen, event.shiftKey);
    const next = changes ? null : nextMark(view.laid, view.chosen, event.key, columnOfKeys(view));
    // at the end of a row the frame does not scroll either
    const isAtEnd = view.chosen && /^Arrow(Left|Right)$/.test(event.key);
    if (!changes && !next && !isAtEnd) return;
    event.preventDefault();
    if (next) arriveAt(view, next, event.key);
    set(changes || {});
    if (next) pointTo(view, "key");
  });
  const leave = () => {
    view.chosen = null;
    set({});
  };
  above.addEventListener("blur", () => {
    leave();
    pointTo(view, null);
  });
  const onEscape = (event) => {
    if (event.key !== "Escape") return;
    const path = event.composedPath(), wasDragging = view.letGo();
    if (!tip.hidden) pointTo(view, null);
    else if (view.chosen && path.includes(above)) leave();
    else if (!wasDragging) return;
    // elsewhere it means something else too
    if (!wasDragging && !path.includes(view.figure)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  document.addEventListener("keydown", onEscape, { capture: true, signal });
  connectUndo(view, signal);
  return () => ending.abort();
}

// Control+Z (on a Mac Command+Z) takes the last move of a picture back; with Shift, or Control+Y,
// it is made again. In a line of text these keys mean the text.
function connectUndo({ shape, state, set, figure }, signal) {
  if (!shape.undo) return;
  const isText = (node) => node.matches?.("textarea, input[type=text]");
  const onkeydown = (event) => {
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !/^[zy]$/.test(key)) return;
    if (isText(event.composedPath()[0])) return;
    event.preventDefault();
    event.stopPropagation();
    const change = key === "y" || event.shiftKey ? shape.redo : shape.undo;
    set(change(state) || {});
  };
  figure.addEventListener("keydown", onkeydown, { signal });
}

// Goes to a mark, and says what it is; and where it stands, if that is another part of the picture.
function arriveAt(view, mark, key) {
  const { chosen, laid } = view, isUpOrDown = key === "ArrowUp" || key === "ArrowDown";
  const part = chosen && chosen.panel !== mark.panel && laid.panels?.[mark.panel];
  view.column = { x: isUpOrDown && chosen ? columnOfKeys(view) : middleOf(mark, laid.clip), laid };
  view.chosen = mark;
  rollTo(view, mark);
  view.announce(part ? `${part}: ${describe(mark)}` : describe(mark));
}

// Scrolls a picture that is wider than its frame to where the keyboard is.
function rollTo({ scale, nodes: { roll } }, { x, w }) {
  const [left, right] = [x * scale, (x + w) * scale], room = roll.clientWidth;
  const isSeen = left >= roll.scrollLeft && right <= roll.scrollLeft + room;
  if (!isSeen) roll.scrollLeft = left - Math.max(0, (room - (right - left)) / 2);
}

// Where Up and Down go through the rows: they keep to the moment from which they set out.
function columnOfKeys({ chosen, laid, column }) {
  return column?.laid === laid ? column.x : chosen && middleOf(chosen, laid.clip);
}

// The middle of a box, of one that is cut off the middle of what is seen.
function middleOf({ x, w, inside }, clip) {
  if (!inside || !clip) return x + w / 2;
  return (Math.max(x, clip.x) + Math.min(x + w, clip.x + clip.w)) / 2;
}

// The next box that can be described. Left and Right go along a row, Up and Down to the box of the
// next row that lies at `x`, or nearest to it; after the last row of a panel comes the next panel.
function nextMark({ marks, clip }, from, key, x) {
  if (!/^(Arrow|Home|End)/.test(key)) return null;
  const isSeen = (m) => !m.inside || !clip || (m.x + m.w > clip.x && m.x < clip.x + clip.w);
  const boxes = marks.filter((m) => m.about && m.kind === "box" && isSeen(m));
  const rows = rowsOfBoxes(!from || boxes.includes(from) ? boxes : [...boxes, from]);
  if (key === "End") return rows.flat().filter((m) => !m.isKey).at(-1) || null;
  if (!from || key === "Home") return rows[0]?.[0] || null;
  const at = rows.findIndex((row) => row.includes(from)), way = /Right|Down/.test(key) ? 1 : -1;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const row = way > 0 ? rows[at] : rows[at].toReversed();
    const rest = row.slice(row.indexOf(from) + 1);
    return rest.find((m) => m.x !== from.x || m.y !== from.y); // not what lies on the same place
  }
  const far = (m) => 1e4 * Math.max(m.x - x, x - m.x - m.w, 0) + Math.abs(m.x + m.w / 2 - x);
  return [...(rows[at + way] || [])].sort((a, b) => far(a) - far(b))[0];
}

// Boxes in rows, from the upper left on. A box says which row it belongs to where its place does
// not, and which panel, where one lies beside another.
function rowsOfBoxes(boxes) {
  const panelOf = (m) => (m.isKey ? Infinity : m.panel ?? 0), rows = new Map();
  for (const box of boxes) {
    const key = `${panelOf(box)} ${box.row ?? `at ${box.y}`}`;
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(box);
  }
  const order = (a, b) => panelOf(a) - panelOf(b) || a.y - b.y;
  for (const row of rows.values()) row.sort((a, b) => a.x - b.x || a.y - b.y);
  return [...rows.values()].sort(([a], [b]) => order(a, b));
}
