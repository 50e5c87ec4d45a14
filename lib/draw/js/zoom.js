// A window of time, from state.from to state.to, that is zoomed and moved: by the wheel with ctrl,
// by keys, by buttons, by dragging, by a wheel that turns sideways. Needs laid.clip, the part of
// the picture that shows the window.
import { lineMark } from "./marks.js";

const MOST_ZOOM = 20000; // times

// Gives what a picture needs to zoom a clock from 0 to `total`: {state, controls, wheel, pan, key,
// drag, zoomed}; `head` names the state that a click, or dragging the axis, sets to a moment;
// without one, a drag may begin anywhere on the picture. `zoomed` is for its player: the share of
// the time that is shown, and the window that shows a moment.
export function zoomable(total, head = null) {
  const range = zoomRange(total, head), isWhole = (state) => state.to - state.from >= total;
  const isClosest = (state) => state.to - state.from <= range.least;
  const keys = zoomKeys(range), shifted = { ArrowLeft: "a", ArrowRight: "d" };
  const button = (label, title, press, off) => ({ kind: "button", label, title, press, off });
  return {
    state: { from: 0, to: total },
    controls: [
      button("+", "Zoom in", (state) => keys["+"](state), isClosest),
      button("−", "Zoom out", (state) => keys["-"](state), isWhole),
      button("Whole", "Show the whole time", keys[0], isWhole),
    ],
    wheel(by, at, state, laid) {
      const share = (range.moment(at, state, laid) - state.from) / (state.to - state.from);
      return range.scale(
        state,
        Math.exp(Math.sign(by) * Math.min(Math.abs(by), 60) * 0.006),
        share,
      );
    },
    pan(by, state, { clip }) {
      return isWhole(state) ? null : range.shift(state, by / clip.w);
    },
    key(key, state, laid, mark, isShift) {
      const place = mark?.inside ? (mark.x + mark.w / 2 - laid.clip.x) / laid.clip.w : undefined;
      return keys[(isShift && shifted[key]) || key]?.(state, place);
    },
    drag: zoomDrag(range, head, isWhole),
    zoomed: { share: ({ from, to }) => (to - from) / total, follow: range.follow },
  };
}

// What can be done to a window of a clock: each gives the new {from, to}, inside of the clock.
// Zooming keeps a moment where it is: a share of the window, by default that of the play head, if
// it is seen, else the middle.
function zoomRange(total, head) {
  const least = Math.max(total / MOST_ZOOM, Math.min(20, total));
  const fit = (from, long) => {
    const length = Math.min(total, Math.max(least, long));
    const begin = Math.min(Math.max(0, from), total - length);
    return { from: begin, to: begin + length };
  };
  return {
    least,
    fit,
    whole: () => fit(0, total),
    scale(state, by, place) {
      const { from, to, [head]: at } = state, long = to - from;
      const share = place ?? (from < at && at < to ? (at - from) / long : 0.5);
      const length = Math.min(total, Math.max(least, long * by));
      return fit(state.from + (long - length) * share, length);
    },
    shift(state, share) {
      const long = state.to - state.from;
      return fit(state.from + share * long, long);
    },
    // A moment outside of the window turns it as a page.
    follow({ from, to }, moment) {
      if (moment >= from && moment <= to) return {};
      return fit(moment - (to - from) * (moment < from ? 0.5 : 0.1), to - from);
    },
    moment(at, state, { clip }) {
      const time = state.from + ((at.x - clip.x) / clip.w) * (state.to - state.from);
      return Math.min(total, Math.max(0, time));
    },
  };
}

function zoomKeys({ scale, shift, whole }) {
  const zoomIn = (state, place) => scale(state, 1 / 1.6, place);
  const zoomOut = (state, place) => scale(state, 1.6, place);
  const shiftBy = (share) => (state) => shift(state, share);
  return {
    "+": zoomIn,
    "=": zoomIn,
    w: zoomIn,
    "-": zoomOut,
    s: zoomOut,
    0: whole,
    a: shiftBy(-0.25),
    d: shiftBy(0.25),
    PageUp: shiftBy(-0.9),
    PageDown: shiftBy(0.9),
  };
}

// Dragging moves the window; on the axis below, and as a click, it sets the play head.
function zoomDrag({ fit, moment }, head, isWhole) {
  let grip = null; // what a drag began with
  return {
    start(mark, at, state, { clip }) {
      const isAcross = at.x >= clip.x - 4 && at.x <= clip.x + clip.w + 4;
      const isInside = isAcross && at.y <= clip.y + clip.h + 24;
      const isOnAxis = head && at.y > clip.y + clip.h, { from, to } = state;
      grip = (isInside || !head) && { ...at, isOnAxis, from, to };
      return Boolean(grip);
    },
    move(at, state, laid) {
      if (grip.isOnAxis) return { [head]: moment(at, state, laid) };
      if (Math.abs(at.x - grip.x) > 3) grip.moved = true;
      if (!grip.moved) return {};
      const long = grip.to - grip.from;
      return fit(grip.from - ((at.x - grip.x) / laid.clip.w) * long, long);
    },
    isHeld: (state) => Boolean(grip.isOnAxis) || !isWhole(state), // else there is nothing to move
    end(at, state, laid, isCancelled) {
      return head && !grip.moved && !isCancelled ? { [head]: moment(at, state, laid) } : {};
    },
  };
}

// Gives the play head: a line through everything at state.at, where the window shows it.
export function playHeadMarks(state, clip) {
  if (!state.at) return [];
  const x = clip.x + ((state.at - state.from) / (state.to - state.from)) * clip.w;
  return [lineMark([[x, 0], [x, clip.h]], style.ink, { inside: true })];
}
