// How a picture is touched: pointer, fingers and wheel on its upper canvas, and the tooltip.
import { describe } from "./mark_rows.js";
import { markAt } from "./paint.js";

const TALLEST_ROW = 48, BESIDE_ROW = 5, UNDER_POINTER = 16; // px
const HOLD = 400, STILL = 8; // ms that a finger holds what it presses, and px that it may tremble
const LINE = 16; // px of a line, in which some browsers count what a wheel turns

// Lets the pointer hover, press and drag, and two fingers, or the wheel while ctrl is held, zoom.
export function connectPointer(view) {
  const { shape, state, set, nodes: { above } } = view, fingers = connectFingers(view);
  const hold = makeHold(view);
  let isDragging = false, pressed = { x: 0, y: 0 }, last = pressed;
  const drop = (at, isCancelled = false) => {
    hold.stop();
    if (isDragging) set(shape.drag.end?.(at, state, view.laid, isCancelled) || {});
    isDragging = false;
  };
  view.letGo = () => { // puts back what is dragged; tells whether anything was
    const wasDragging = isDragging;
    drop(last, true);
    return wasDragging;
  };
  const stop = (event) => {
    drop(pointOf(view, event), event.type === "pointercancel"); // then the page scrolls
    fingers.lift(event);
  };
  above.addEventListener("pointerdown", (event) => {
    const at = pressed = last = pointOf(view, event), mark = markUnder(view, at);
    const isTouch = event.pointerType === "touch";
    if (fingers.put(event, at) > 1) return drop(at, true);
    isDragging = Boolean(shape.drag?.start(mark, at, state, view.laid, isTouch));
    if (isDragging) {
      above.setPointerCapture(event.pointerId);
      pointTo(view, null);
      if (isTouch) hold.start(at);
    }
    const changes = shape.press?.(mark, at, state, view.laid, isTouch);
    if (changes) set(changes);
  });
  above.addEventListener("pointermove", (event) => {
    const at = pointOf(view, event);
    if (fingers.move(event, at)) return;
    hold.move(last = at);
    if (isDragging) set(shape.drag.move(at, state, view.laid) || {});
    else pointTo(view, at);
  });
  above.addEventListener("pointerup", (event) => {
    const at = pointOf(view, event), isTap = Math.hypot(at.x - pressed.x, at.y - pressed.y) < 4;
    stop(event);
    if (isTap) pointTo(view, at);
  });
  above.addEventListener("pointercancel", stop);
  const holdStill = (event) => { // what is dragged across does not scroll as well
    const isHeld = isDragging && (shape.drag.isHeld?.(state) ?? true), [touch] = event.touches;
    const at = pointOf(view, touch),
      isAcross = Math.abs(at.x - pressed.x) > Math.abs(at.y - pressed.y);
    const isMoved = isHeld && (isAcross || hold.isHolding());
    if (isMoved && event.cancelable) event.preventDefault();
  };
  above.addEventListener("touchmove", holdStill, { passive: false });
  above.addEventListener("pointerleave", (event) => { // a finger leaves at once; its tip stays
    if (event.pointerType !== "touch" && view.pointed !== "key") pointTo(view, null);
  });
  connectWheel(view);
}

// What a finger holds that stays where it pressed, where the picture has something to be held;
// what is held does not scroll the page, whichever way it is moved.
function makeHold(view) {
  const { shape, state, set, nodes: { above } } = view;
  let timer = 0, pressed = null, isHeld = false;
  const take = () => {
    const changes = shape.drag.hold(markUnder(view, pressed), pressed, state, view.laid);
    isHeld = Boolean(changes);
    if (changes) set(changes);
  };
  const stop = () => {
    clearTimeout(timer);
    [pressed, isHeld] = [null, false];
  };
  // a long press asks for a menu as well, which would take the finger over
  above.addEventListener("contextmenu", (event) => pressed && event.preventDefault());
  return {
    start(at) {
      stop();
      if (!shape.drag.hold) return;
      pressed = at;
      timer = setTimeout(take, HOLD);
    },
    move(at) {
      if (!pressed || isHeld) return;
      if (Math.hypot(at.x - pressed.x, at.y - pressed.y) > STILL) stop();
    },
    stop,
    isHolding: () => isHeld,
  };
}

// The wheel zooms while ctrl is held, and turned sideways, or with Shift, it moves what is zoomed;
// a bare wheel scrolls the page.
function connectWheel(view) {
  const { shape, state, set, nodes: { above } } = view;
  const onwheel = (event) => {
    const isZoom = event.ctrlKey || event.metaKey, aside = sidewaysOf(event) / view.scale;
    const changes = isZoom
      ? shape.wheel?.(event.deltaY, pointOf(view, event), state, view.laid)
      : aside && shape.pan?.(aside, state, view.laid);
    if (!changes) return;
    event.preventDefault();
    set(changes);
  };
  above.addEventListener("wheel", onwheel, { passive: false });
}

// How many px a wheel turns sideways; with Shift some browsers still say that it turns down.
function sidewaysOf({ deltaX, deltaY, deltaMode, shiftKey }) {
  const isAside = shiftKey || Math.abs(deltaX) > Math.abs(deltaY);
  return isAside ? (deltaX || deltaY) * (deltaMode ? LINE : 1) : 0;
}

// Two fingers on a picture that can be zoomed: what lies between them stays there. `put` and `move`
// tell of how many fingers there are, and whether they zoom.
function connectFingers(view) {
  const { shape, state, set, nodes: { above } } = view;
  const places = new Map(); // by pointer
  const gap = ([a, b]) => Math.max(1, Math.hypot(a.x - b.x, a.y - b.y));
  const onTouch = (event) => { // else the browser scrolls with two fingers, and takes them over
    if (shape.wheel && event.touches.length > 1) event.preventDefault();
  };
  for (const name of ["touchstart", "touchmove"]) {
    above.addEventListener(name, onTouch, { passive: false });
  }
  return {
    put(event, at) {
      if (event.pointerType === "touch" && shape.wheel) places.set(event.pointerId, at);
      return places.size;
    },
    move(event, at) {
      if (places.size !== 2 || !places.has(event.pointerId)) return false;
      const before = gap([...places.values()]);
      places.set(event.pointerId, at);
      const [a, b] = places.values(), middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
      set(shape.wheel(-Math.log(gap([a, b]) / before) / 0.006, middle, state, view.laid) || {});
      return true;
    },
    lift: (event) => places.delete(event.pointerId),
  };
}

// Tells the tooltip what to follow: a place on the canvas, "key" for the mark that the keyboard is
// at, or nothing.
export function pointTo(view, at) {
  view.pointed = at;
  followTip(view);
}

// Lets the tooltip say what is now where it points, after the picture has changed too.
export function followTip(view) {
  const { pointed, chosen, scale, nodes: { tip, stage, roll } } = view;
  const mark = pointed === "key" ? chosen : pointed && markUnder(view, pointed);
  tip.hidden = !mark;
  if (!mark) return;
  const below = () => ({ x: mark.x + mark.w / 2 || 0, y: mark.y + mark.h || 0 });
  const at = pointed === "key" ? below() : pointed, text = describe(mark, at);
  if (tip.textContent !== text) tip.textContent = text;
  const room = stage.clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(0, Math.min(at.x * scale - roll.scrollLeft + 14, room))}px`;
  tip.style.top = `${tipTop(view, mark, at)}px`;
}

// Where a tooltip begins: below the row of a bar, or above it where it would be cut off below; of
// what is taller than a row, or no bar, below the pointer.
function tipTop({ figure, scale, nodes: { tip, stage } }, mark, at) {
  const isBar = mark.kind === "box" && mark.h <= TALLEST_ROW, tall = tip.offsetHeight;
  const row = isBar ? mark : { y: at.y, h: 0 }, under = (row.y + row.h) * scale;
  const gap = isBar ? BESIDE_ROW : UNDER_POINTER;
  const { top } = stage.getBoundingClientRect(), frame = figure.getBoundingClientRect();
  const end = Math.min(frame.bottom, document.documentElement.clientHeight) - top;
  const over = row.y * scale - gap - tall, start = Math.max(frame.top, 0) - top;
  return under + gap + tall > end && over >= start ? over : under + gap;
}

function pointOf({ nodes, scale }, event) {
  const box = nodes.above.getBoundingClientRect();
  return { x: (event.clientX - box.left) / scale, y: (event.clientY - box.top) / scale };
}

function markUnder({ over, laid }, { x, y }) {
  return markAt(over, x, y, laid.clip) || markAt(laid.marks, x, y, laid.clip);
}
