// Buckets in flight: the same as lib/predict/flight.py and `assign` of buckets.py, to the last bit.

// Positions that share a bucket: full once it holds its limit or more.
export function assign(nbytes, limits) {
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

// When each bucket is full, starts and ends; times in seconds. {ready, flights, backward, end, ...}
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

// Which of `choices` (limits) ends first; of equals that with the fewest buckets.
export function best(nbytes, seconds, choices, network) {
  const runs = choices.map((limits) => fly(nbytes, seconds, limits, network));
  const good = Math.min(...runs.map((run) => run.end)) * (1 + 1e-9);
  let found = -1;
  runs.forEach((run, n) => {
    const fewer = found < 0 || run.flights.length < runs[found].flights.length;
    if (run.end <= good && fewer) found = n;
  });
  return found;
}
