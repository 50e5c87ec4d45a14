// Where the pieces of a plan lie and go: ranks in a ring or in rows.

const LABEL = 20; // px of the text above a rank's pieces, and of that below
// Half the height of a ring of so many ranks, in px.
const RISE = { 2: 0, 3: 80, 4: 92, 5: 120, 6: 112, 7: 170, 8: 186 };

// Tells how many columns and rows the pieces of a rank have.
export function shapeOf(data) {
  return data.personal ? [data.ranks, 2] : [data.pieces, 1];
}

// Gives the column and row of a piece at a rank; personal ones lie above, those that came below.
export function spotOf(data, rank, number) {
  if (!data.personal) return [number, 0];
  const source = Math.floor(number / data.ranks), target = number % data.ranks;
  return target === rank ? [source, 1] : source === rank ? [target, 0] : null;
}

// Tells where the ranks lie: the corner of the pieces of each, and the sizes of pieces, in px;
// `head` is the height of the lines above them.
export function placesOf(data, ring, width, head) {
  return { ...(ring ? ringPlaces : rowPlacesOf)(data, width, head), ring };
}

function ringPlaces(data, width, head) {
  const n = data.ranks, [across, down] = shapeOf(data);
  const grown = width < 900 ? 1 : 1.3; // a large screen is for many eyes
  const most = Math.min(132 * grown, width * (n <= 4 ? 0.24 : 0.17));
  const pitch = Math.min(30 * grown, Math.max(7, Math.floor(most / across)));
  const tall = Math.floor((40 * grown) / n) * n, rise = RISE[n] * grown;
  const w = pitch - 2, h = tall / down - down + 1, wide = across * pitch - 2;
  const reach = Math.min(width / 2 - 8 - Math.max(wide, 84) / 2, (n <= 4 ? 250 : 280) * grown);
  const turn = (rank) => (2 * Math.PI * rank) / n - Math.PI / 2 - Math.PI / n;
  const turns = Array.from({ length: n }, (_, rank) => turn(rank));
  const left = width / 2 - wide / 2, top = head + LABEL - rise * Math.min(...turns.map(Math.sin));
  const whole = (px) => Math.floor(px + 0.01);
  const corner = (t) => [whole(left + reach * Math.cos(t)), whole(top + rise * Math.sin(t))];
  const corners = turns.map(corner);
  const bottom = Math.max(...corners.map(([, y]) => y)) + tall + LABEL;
  return { corners, pitch, w, h, wide, tall, bottom };
}

function rowPlacesOf(data, width, head) {
  const n = data.ranks, [across, down] = shapeOf(data);
  const top = head + (isNumbered(data) ? style.line - 2 : 0);
  const tall = Math.floor((n <= 4 ? 40 : 34) / n) * n, h = tall / down - down + 1;
  const pitch = Math.min(150, Math.floor((width - 112) / across));
  const w = Math.min(across === 1 ? 48 : 72, Math.floor((pitch * 13) / 25));
  const left = 104 + Math.floor((width - 112 - across * pitch) / 2);
  const corners = Array.from({ length: n }, (_, rank) => [left, top + rank * (tall + 14)]);
  const wide = across * pitch - pitch + w, bottom = top + n * (tall + 14);
  return { corners, pitch, w, h, wide, tall, bottom };
}

// Tells whether columns have numbers: not where each piece has its name on it, or is alone.
export function isNumbered(data) {
  return data.pieces > 1 && !(data.whole || data.personal);
}

// Gives the upper left corner of a piece at a rank.
export function cornerOf(data, places, rank, number) {
  const [x, y] = places.corners[rank], [column, row] = spotOf(data, rank, number);
  return [x + column * places.pitch, y + row * (places.h + 2)];
}

// Tells how far pieces are from the straight line, when they are `way` of theirs: on the arrow as
// soon as they can.
export function offsetFromLine(data, places, move, points, way) {
  const swing = 4 * way * (1 - way);
  if (!places.ring) return [bulgeOf(places, move) * swing, 0];
  const [from, to, first, count] = move, last = first + count - 1;
  const middle = [from, to].map((r) => {
    const [[ax, ay], [bx, by]] = [first, last].map((p) => cornerOf(data, places, r, p));
    return [(ax + bx + places.w) / 2, (ay + by + places.h) / 2];
  });
  const rise = (t) => Math.min(1, t / 0.3) ** 2 * (3 - 2 * Math.min(1, t / 0.3));
  const onto = rise(way) * rise(1 - way);
  return [0, 1].map((i) => {
    const line = points[0][i] + (points[1][i] - points[0][i]) * way;
    return (line - middle[0][i] - (middle[1][i] - middle[0][i]) * way) * onto;
  });
}

// Gives the points of the arrow from who sends to who receives: straight in a ring, a bow beside
// the pieces in rows.
export function arrowOf(data, places, moves, i) {
  const [from, to, first, count] = moves[i];
  const same = moves.slice(0, i).filter((m) => m[2] === first).length; // side by side, not on top
  if (!places.ring) return bowed(data, places, moves[i], first + (same % count));
  return straight(places, moves[i], moves.some((m) => m[0] === to && m[1] === from));
}

function straight(places, [from, to], both) {
  const [[ax, ay], [bx, by]] = [from, to].map((r) => {
    const [x, y] = places.corners[r];
    return [x + places.wide / 2, y + places.tall / 2];
  });
  const dx = bx - ax, dy = by - ay, far = Math.hypot(dx, dy);
  const out = Math.min(
    (Math.max(places.wide, 66) / 2 + 6) / (Math.abs(dx) || 1e-9),
    (places.tall / 2 + LABEL + 2) / (Math.abs(dy) || 1e-9),
  );
  const [sx, sy] = both ? [(-dy / far) * 6, (dx / far) * 6] : [0, 0];
  return [out, 1 - out].map((t) => [ax + dx * t + sx, ay + dy * t + sy]);
}

function bulgeOf(places, [from, to]) {
  return Math.min(places.pitch - places.w - 5, 20 * Math.abs(to - from) - 6);
}

function bowed(data, places, move, number) {
  const [[ax, ay], [bx, by]] = [0, 1].map((end) => cornerOf(data, places, move[end], number));
  const x0 = ax + places.w + 2, x1 = bx + places.w + 2, bow = bulgeOf(places, move);
  return Array.from({ length: 13 }, (_, i) => i / 12).map((t) => [
    x0 + (x1 - x0) * t + bow * 4 * t * (1 - t),
    ay + (by - ay) * t + places.h / 2,
  ]);
}
