// Links that carry one message at a time: the same as lib/predict/pipeline/links.py.

// Gives the rows to play, {first, waits, late, busy}, with each link as a row of its own behind
// those of the ranks: for each message an action that waits until its receiver asks, and the
// message itself.
export function withLinks(grid, waits, busy, sends, { link, ahead }) {
  const { first, needs, rank, paired, codes } = grid, actions = codes.length;
  const needer = new Int32Array(actions).fill(-1), lanes = new Map();
  needs.forEach((need, at) => {
    if (need >= 0 && rank[need] !== rank[at]) needer[need] = at;
  });
  let count = 0;
  for (let at = 0; at < actions; at++) {
    if (needer[at] < 0) continue;
    const to = link === "pair" ? rank[needer[at]] : 0, key = rank[at] * first.length + to;
    if (!lanes.has(key)) lanes.set(key, []);
    lanes.get(key).push(at);
    count++;
  }
  const rows = {
    first: first.slice(),
    waits: new Int32Array(actions + 2 * count),
    late: new Float64Array(actions + 2 * count),
    busy: new Float64Array(actions + 2 * count),
  };
  rows.waits.set(waits);
  rows.busy.set(busy);
  const turn = turns(grid, ahead);
  let place = actions;
  for (const lane of lanes.values()) {
    let soonest = actions; // who asks for a message asks for all before it
    const asked = lane.map(() => -1);
    if (ahead !== null) {
      for (let i = lane.length - 1; i >= 0; i--) {
        soonest = Math.min(soonest, needer[lane[i]]);
        asked[i] = turn(soonest);
      }
    }
    lane.forEach((at, i) => {
      rows.waits[place++] = asked[i];
      rows.waits[place] = paired.has(codes[at]) ? at + 1 : at; // a pair's are there when both are
      rows.busy[place] = sends[at];
      if (waits[needer[at]] === rows.waits[place]) rows.waits[needer[at]] = place;
      place++;
    });
    rows.first.push(place);
  }
  return rows;
}

// The action after which a rank asks for what another one needs (-1: at once), `ahead` of its turn.
function turns({ first, rank, paired, codes }, ahead) {
  const cell = new Int32Array(codes.length), last = []; // a pair is one
  codes.forEach((code, at) => {
    cell[at] = last.length;
    if (!paired.has(code)) last.push(at);
  });
  return (at) => {
    const up = cell[at] - ahead - 1;
    return up >= 0 && last[up] >= first[rank[at]] ? last[up] : -1;
  };
}
