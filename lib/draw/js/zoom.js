// A window of time, from state.from to state.to, that is zoomed and moved: by the wheel with ctrl,
// by keys, by buttons, by dragging. Needs laid.clip, the part of the picture that shows the window.

const MOST_ZOOM = 20000; // times

// {state, controls, wheel, key, drag} for a clock from 0 to `total`; `head` names the state that a
// click, or dragging the axis, sets to a moment.
export function zoomable(total, head = null) {
  const least = Math.max(total / MOST_ZOOM, Math.min(20, total));
  const fit = (from, long) => {
    const length = Math.min(total, Math.max(least, long));
    const begin = Math.min(Math.max(0, from), total - length);
    return { from: begin, to: begin + length };
  };
  const scale = (state, by, share = 0.5) => {
    const long = state.to - state.from;
    const length = Math.min(total, Math.max(least, long * by));
    return fit(state.from + (long - length) * share, length);
  };
  const shift = (state, share) => {
    const long = state.to - state.from;
    return fit(state.from + share * long, long);
  };
  const moment = (at, state, { clip }) => {
    const time = state.from + ((at.x - clip.x) / clip.w) * (state.to - state.from);
    return Math.min(total, Math.max(0, time));
  };
  const isWhole = (state) => state.to - state.from >= total;
  const keys = {
    "+": (state) => scale(state, 1 / 1.6), "=": (state) => scale(state, 1 / 1.6),
    w: (state) => scale(state, 1 / 1.6), "-": (state) => scale(state, 1.6),
    s: (state) => scale(state, 1.6), 0: () => fit(0, total),
    a: (state) => shift(state, -0.25), d: (state) => shift(state, 0.25),
    PageUp: (state) => shift(state, -0.9), PageDown: (state) => shift(state, 0.9),
  }; // prettier-ignore
  const shifted = { ArrowLeft: "a", ArrowRight: "d" };
  let grip = null; // what a drag began with
  return {
    state: { from: 0, to: total },
    controls: [
      { kind: "button", label: "+", says: "Zoom in", press: keys["+"], off: (s) => s.to - s.from <= least },
      { kind: "button", label: "−", says: "Zoom out", press: keys["-"], off: isWhole },
      { kind: "button", label: "Whole", says: "Show the whole time", press: keys[0], off: isWhole },
    ],
    wheel: (by, at, state, laid) => {
      const share = (moment(at, state, laid) - state.from) / (state.to - state.from);
      return scale(state, Math.exp(Math.sign(by) * Math.min(Math.abs(by), 60) * 0.006), share);
    },
    key: (key, state, laid, mark, shift) => (shift && shifted[key] ? keys[shifted[key]](state) : keys[key]?.(state)),
    drag: {
      start(mark, at, state, { clip }) {
        const inside = at.x >= clip.x - 4 && at.x <= clip.x + clip.w + 4;
        const axis = head && at.y > clip.y + clip.h;
        grip = inside && at.y <= clip.y + clip.h + 24 && { ...at, axis, from: state.from, to: state.to };
        return Boolean(grip);
      },
      move(at, state, laid) {
        if (grip.axis) return { [head]: moment(at, state, laid) };
        if (Math.abs(at.x - grip.x) > 3) grip.moved = true;
        if (!grip.moved) return {};
        const long = grip.to - grip.from;
        return fit(grip.from - ((at.x - grip.x) / laid.clip.w) * long, long);
      },
      end: (at, state, laid) => (head && !grip.moved ? { [head]: moment(at, state, laid) } : {}),
    },
  };
}

// The play head: a line through everything at state.at, where the window shows it.
export function headAt(state, clip) {
  if (!state.at) return [];
  const x = clip.x + ((state.at - state.from) / (state.to - state.from)) * clip.w;
  return [{ kind: "line", edge: style.ink, points: [[x, 0], [x, clip.h]], inside: true }];
}
