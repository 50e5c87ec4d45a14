// How a picture is touched: pointer, wheel and keys on its upper canvas, and the tooltip.
import { markAt } from "./paint.js";

// What is known of a mark, in lines; `at` is where the pointer is, where one asks.
function describe(mark, at) {
  return typeof mark.about === "function" ? mark.about(at) : mark.about;
}

// Gives the outline around the mark that the keyboard is at.
export function outlineOf(mark) {
  if (mark.kind !== "box") {
    return { ...mark, kind: "line", fill: undefined, edge: style.ink, thick: 3.5 };
  }
  const place = { x: mark.x - 1, y: mark.y - 1, w: Math.max(mark.w, 2) + 2, h: mark.h + 2 };
  const look = { fill: undefined, hatch: false, edge: style.ink, dash: false, thick: 2.5 };
  return { ...mark, ...place, ...look };
}

// Lets the pointer hover, press and drag, and the wheel zoom while ctrl is held.
export function connectPointer(view) {
  const { shape, state, set, nodes: { above, tip } } = view;
  let isDragging = false, pressed = { x: 0, y: 0 };
  above.addEventListener("pointerdown", (event) => {
    const at = pressed = pointOf(view, event), mark = markUnder(view, at);
    isDragging = Boolean(shape.drag?.start(mark, at, state, view.laid));
    if (isDragging) {
      above.setPointerCapture(event.pointerId);
      tip.hidden = true;
    }
    const changes = shape.press?.(mark, at, state, view.laid);
    if (changes) set(changes);
  });
  above.addEventListener("pointermove", (event) => {
    const at = pointOf(view, event);
    if (isDragging) set(shape.drag.move(at, state, view.laid) || {});
    else showTip(view, markUnder(view, at), at);
  });
  const stop = (event) => {
    if (isDragging) set(shape.drag.end?.(pointOf(view, event), state, view.laid) || {});
    isDragging = false;
  };
  above.addEventListener("pointerup", (event) => {
    const at = pointOf(view, event), isTap = Math.hypot(at.x - pressed.x, at.y - pressed.y) < 4;
    stop(event);
    if (isTap) showTip(view, markUnder(view, at), at);
  });
  above.addEventListener("pointercancel", stop);
  above.addEventListener("pointerleave", (event) => { // a finger leaves at once; its tip stays
    if (event.pointerType !== "touch") tip.hidden = true;
  });
  const onwheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // a bare wheel scrolls the page
    const changes = shape.wheel?.(event.deltaY, pointOf(view, event), state, view.laid);
    if (!changes) return;
    event.preventDefault();
    set(changes);
  };
  above.addEventListener("wheel", onwheel, { passive: false });
}

// Lets keys do what the picture says, and the arrow keys go from mark to mark.
export function connectKeys(view) {
  const { shape, state, set, announce, nodes: { above, tip } } = view;
  above.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const changes = shape.key?.(event.key, state, view.laid, view.chosen, event.shiftKey);
    const next = changes ? null : nextMark(view.laid, view.chosen, event.key);
    if (!changes && !next) return;
    event.preventDefault();
    if (next) {
      view.chosen = next;
      announce(describe(next));
    }
    set(changes || {});
    if (next) showTip(view, next, { x: next.x + next.w / 2 || 0, y: next.y + next.h || 0 });
  });
  above.addEventListener("blur", () => {
    view.chosen = null;
    tip.hidden = true;
    set({});
  });
}

function pointOf({ nodes }, event) {
  const box = nodes.above.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function markUnder({ over, laid }, { x, y }) {
  return markAt(over, x, y, laid.clip) || markAt(laid.marks, x, y, laid.clip);
}

function showTip({ nodes: { tip, stage } }, mark, { x, y }) {
  tip.hidden = !mark;
  if (!mark) return;
  const text = describe(mark, { x, y });
  if (tip.textContent !== text) tip.textContent = text;
  const room = stage.clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(0, Math.min(x + 14, room))}px`;
  tip.style.top = `${y + 16}px`;
}

// The next box that can be described, in the direction of an arrow key.
function nextMark({ marks, clip }, from, key) {
  const isSeen = (m) => !m.inside || !clip || (m.x + m.w > clip.x && m.x < clip.x + clip.w);
  const boxes = marks.filter((m) => m.about && m.kind === "box" && isSeen(m));
  if (!boxes.length || !/^(Arrow|Home|End)/.test(key)) return null;
  const order = (a, b) => a.y - b.y || a.x - b.x;
  if (key === "End") return boxes.sort(order).at(-1);
  if (!from || key === "Home") return boxes.sort(order)[0];
  const way = /Right|Down/.test(key) ? 1 : -1;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const row = boxes.filter((m) => m.y === from.y && (m.x - from.x) * way > 0);
    return row.sort((a, b) => (a.x - b.x) * way)[0] || null;
  }
  const far = (m) => Math.abs(m.y - from.y) * 1e4 + Math.abs(m.x + m.w / 2 - from.x - from.w / 2);
  const beyond = boxes.filter((m) => (m.y - from.y) * way > 0);
  return beyond.sort((a, b) => far(a) - far(b))[0] || null;
}
