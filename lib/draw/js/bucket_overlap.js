// Buckets in flight: the same as lib/predict/data/bucket_overlap.py and `assign` of buckets.py, to
// the last bit.

// The positions of the gradients that share each bucket, which is full once it holds its limit or
// more.
function assign(nbytes, limits) {
  const full = [];
  let open = [], held = 0;
  nbytes.forEach((size, position) => {
    open.push(position);
    held += size;
    if (held >= limits[Math.min(full.length, limits.length - 1)]) {
      full.push(open);
      [open, held] = [[], 0];
    }
  });
  return open.length ? [...full, open] : full;
}

// Tells when each bucket is full, starts and ends, in seconds: {ready, flights, backward, end,
// moving, exposed}.
export function fly(nbytes, seconds, limits, { ranks, alpha, bandwidth }) {
  let clock = 0, free = 0, moving = 0;
  const ready = seconds.map((time) => (clock += time));
  const rounds = 2 * (ranks - 1), factor = (2 * (ranks - 1)) / ranks, beta = 1 / bandwidth;
  const flights = assign(nbytes, limits).map((inside) => {
    const bytes = inside.reduce((sum, n) => sum + nbytes[n], 0);
    const full = ready[inside.at(-1)], start = Math.max(free, full);
    free = start + (rounds * alpha + factor * bytes * beta);
    moving += free - start;
    return { inside, bytes, full, start, end: free };
  });
  const backward = ready.at(-1), end = Math.max(backward, free);
  return { ready, flights, backward, end, moving, exposed: end - backward };
}

// Tells which of `choices` (limits) ends first; of those that end together, the one with the fewest
// buckets.
export function best(nbytes, seconds, choices, network) {
  const runs = choices.map((limits) => fly(nbytes, seconds, limits, network));
  const good = Math.min(...runs.map((run) => run.end)) * (1 + 1e-9);
  let chosen = -1;
  runs.forEach((run, n) => {
    const fewer = chosen < 0 || run.flights.length < runs[chosen].flights.length;
    if (run.end <= good && fewer) chosen = n;
  });
  return chosen;
}
