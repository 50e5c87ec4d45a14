// A plan of recomputation on one clock: the same as lib/predict/recompute/played.py, bar for bar.

// Gives the blocks of a plan in their order; a plan is a list of numbers and of plans, which are
// checkpoints.
export function planLeaves(plan) {
  return plan.flat(Infinity);
}

// Plays a step: {bars: [{kind, block, start, end}], held: [[time, bytes]], end, again, peak, runs}.
export function playPlan({ input, inside, forward, backward }, plan) {
  const bars = [], held = [[0, 0]], kept = (block) => input[block] + inside[block];
  let clock = 0;
  const compute = (kind, block, seconds) => {
    const start = clock;
    clock += seconds;
    bars.push({ kind, block, start, end: clock });
  };
  const hold = (bytes) => {
    if (bytes) held.push([clock, held.at(-1)[1] + bytes]);
  };
  const run = (kind, block, bytes) => {
    hold(bytes);
    compute(kind, block, forward[block]);
  };
  // `before` of the first one's bytes are held already.
  const goForward = (items, kind, before = 0) => {
    items.forEach((item, place) => {
      const known = place ? 0 : before;
      if (!Array.isArray(item)) return run(kind, item, kept(item) - known);
      const [first, ...others] = planLeaves(item);
      run(kind, first, input[first] - known);
      others.forEach((block) => run(kind, block, 0));
    });
  };
  const goBack = (items) => {
    for (const item of [...items].reverse()) {
      if (Array.isArray(item)) {
        goForward(item, "recompute", input[planLeaves(item)[0]]);
        goBack(item);
      } else {
        compute("backward", item, backward[item]);
        hold(-kept(item));
      }
    }
  };
  goForward(plan, "forward");
  goBack(plan);
  const runs = forward.map(() => 0);
  for (const { kind, block } of bars) if (kind !== "backward") runs[block]++;
  const again = forward.reduce((sum, seconds, block) => sum + (runs[block] - 1) * seconds, 0);
  const peak = held.reduce((most, [, bytes]) => Math.max(most, bytes), 0);
  return { bars, held, end: clock, again, peak, runs };
}
