// Moving a number of the state with the time: what a player does, and its steps back and ahead.
// `now()` is the player as it is now, `set(changes, isPassing)` changes the state.

const LEAST_PASS = 2; // seconds that a window which is zoomed takes to be passed, at least
const STILL_FOR = 500; // milliseconds between two moments, where nothing may glide
const SHOWN_STEPS = 50; // steps of the part of a line that is shown

// Gives what leads to a moment: where a part of the time is shown, it follows there.
export function changesTo({ name, zoomed }, state, moment) {
  return { [name]: moment, ...zoomed?.follow(state, moment) };
}

// Moves state[name] with the time, frame by frame, as long as its node is shown; for a reader who
// wants no motion, from moment to moment.
export function makeMotion(now, set, state, isShown) {
  let last = 0, carried = 0; // when it moved last, and what that left over of a step
  const position = () => state[now().name];
  const goTo = (to) => {
    const { min, max, zoomed } = now(), moment = Math.min(max, Math.max(min, to));
    set(changesTo(now(), state, moment), motion.isRunning && Boolean(zoomed));
  };
  const hold = () => {
    motion.isRunning = false;
    set({});
  };
  const move = (time) => {
    if (!motion.isRunning || !isShown()) return void (motion.isRunning = false);
    last ||= time;
    const passed = time - last, end = motion.until ?? now().max;
    if (passed >= pauseOf(now())) {
      last = time;
      carried += (passed / 1000 / secondsOf(now(), state)) * (now().max - now().min);
      const by = now().step ? Math.floor(carried / now().step) * now().step : carried;
      carried -= by;
      if (by) goTo(Math.min(end, momentAfter(now(), state, by)));
    }
    if (position() >= end) return hold();
    requestAnimationFrame(move);
  };
  const start = (until) => {
    const isMoving = motion.isRunning; // then the next frame is on its way
    [last, carried] = [0, 0];
    Object.assign(motion, { isRunning: true, until });
    goTo(position()); // where that can be seen
    if (!isMoving) requestAnimationFrame(move);
  };
  const toggle = () => {
    if (motion.isRunning) return hold();
    if (position() >= now().max) goTo(now().min);
    start(null);
  };
  const motion = { isRunning: false, until: null, goTo, start, toggle }; // until null: to the end
  return motion;
}

function wantsNoMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// How long a moment stands still, in milliseconds.
function pauseOf({ min, max, seconds, jump }) {
  if (!wantsNoMotion()) return 0;
  return jump ? (1000 * seconds * jump) / (max - min) : STILL_FOR;
}

// The seconds from min to max: more where a small part of the time is shown, which would be passed
// before anybody has seen it.
function secondsOf({ seconds, zoomed }, state) {
  return zoomed ? Math.max(seconds, LEAST_PASS / zoomed.share(state)) : seconds;
}

// Where moving on leads: without motion to the next multiple, or to the next of its `moments`.
function momentAfter({ name, max, jump, moments }, state, by) {
  const to = state[name] + by;
  if (!wantsNoMotion()) return to;
  if (jump) return nextMultiple(state[name], jump);
  const later = moments?.().filter((moment) => moment >= to) ?? [to];
  return later.reduce((a, b) => Math.min(a, b), max);
}

function nextMultiple(value, jump) {
  return (Math.floor(value / jump + 1e-9) + 1) * jump;
}

// Goes a step ahead; where a player jumps, it moves there.
export function jumpAhead(now, state, motion) {
  const { name, max, jump } = now();
  if (jump && !wantsNoMotion()) {
    if (motion.isRunning && motion.until !== null) motion.goTo(motion.until); // no need to watch it
    if (state[name] < max) motion.start(nextMultiple(state[name], jump));
    return;
  }
  motion.isRunning = false;
  motion.goTo(jump ? nextMultiple(state[name], jump) : state[name] + stepOf(now(), state));
}

// Goes a step back.
export function jumpBack(now, state, motion) {
  const { name, jump } = now();
  motion.isRunning = false;
  if (jump) motion.goTo((Math.ceil(state[name] / jump - 1e-9) - 1) * jump);
  else motion.goTo(state[name] - stepOf(now(), state));
}

function stepOf({ min, max, step, zoomed }, state) {
  return step || ((max - min) * (zoomed?.share(state) ?? 1)) / SHOWN_STEPS;
}
