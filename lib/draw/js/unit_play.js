// Units that are gathered, compute and are freed on one clock: the same as
// lib/predict/sharded/prefetch.py and `actions` of units.py, to the last bit.

// What a rank does with units 0 to count - 1 in a step: [[kind, unit], ...].
function unitActions(count, prefetch, isResharded) {
  const forward = Array.from({ length: count }, (_, n) => n), backward = [...forward].reverse();
  const found = forward.slice(0, prefetch).map((unit) => ["gather", unit]);
  const ready = (order, place) => {
    if (!prefetch) found.push(["gather", order[place]]);
    found.push(["wait", order[place]]);
    if (prefetch && place + prefetch < count) found.push(["gather", order[place + prefetch]]);
  };
  forward.forEach((unit, place) => {
    ready(forward, place);
    found.push(["forward", unit]);
    if (isResharded) found.push(["free", unit]);
  });
  if (isResharded) found.push(...backward.slice(0, prefetch).map((unit) => ["gather", unit]));
  backward.forEach((unit, place) => {
    if (isResharded) ready(backward, place);
    found.push(["backward", unit], ["free", unit]);
    if (place) found.push(["settle", backward[place - 1]]);
    found.push(["reduce", unit]);
  });
  found.push(["settle", 0]);
  return found;
}

// Plays a step: {bars: [{kind, unit, start, end}], held: [[time, whole, gradients]], end,
// computing, exposed, peak, mostWhole}.
export function playUnits({ nbytes, forward, backward }, prefetch, isResharded, network) {
  const { ranks, alpha, bandwidth } = network, bars = [], held = [[0, 0, 0]], ends = {};
  const rounds = ranks - 1, factor = (ranks - 1) / ranks, beta = 1 / bandwidth;
  let clock = 0, free = 0, computing = 0;
  const move = (kind, unit) => {
    const start = Math.max(free, clock);
    free = start + (rounds * alpha + factor * nbytes[unit] * beta);
    ends[`${kind} ${unit}`] = free;
    bars.push({ kind, unit, start, end: free });
  };
  const hold = (whole, gradients) => {
    const [, before, others] = held.at(-1);
    held.push([clock, before + whole, others + gradients]);
  };
  const compute = (kind, unit, seconds) => {
    const start = clock;
    clock += seconds;
    computing += clock - start;
    bars.push({ kind, unit, start, end: clock });
  };
  const actions = {
    gather: (unit) => {
      move("all_gather", unit);
      hold(nbytes[unit], 0);
    },
    wait: (unit) => (clock = Math.max(clock, ends[`all_gather ${unit}`])),
    forward: (unit) => compute("forward", unit, forward[unit]),
    free: (unit) => hold(-nbytes[unit], 0),
    backward: (unit) => {
      hold(0, nbytes[unit]);
      compute("backward", unit, backward[unit]);
    },
    reduce: (unit) => move("reduce_scatter", unit),
    settle: (unit) => {
      clock = Math.max(clock, ends[`reduce_scatter ${unit}`]);
      hold(0, -nbytes[unit]);
    },
  };
  for (const [kind, unit] of unitActions(nbytes.length, prefetch, isResharded)) actions[kind](unit);
  const end = bars.reduce((last, bar) => Math.max(last, bar.end), 0);
  const peak = held.reduce((most, [, whole, gradients]) => Math.max(most, whole + gradients), 0);
  return { bars, held, end, computing, exposed: end - computing, peak };
}
