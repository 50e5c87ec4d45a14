// A plan step by step: which piece is where, who sends what to whom, how many bytes so far.
// The same places and marks as lib/draw/steps.py, at any moment and width. [Note: stripes] is there.
// needs: places
import { placesOf, shapeOf, spotOf, cornerOf, numbered, offLine, arrowOf } from "./places.js";
import { piece, lettersOn, tint, amount, commas, plural } from "./axes.js";

const STRIP = 56; // px, the height of one round in small
const SECONDS = 1.4; // for a round

export function picture(data) {
  const rounds = data.moves.length;
  const player = {
    kind: "player", name: "at", label: "Rounds", min: 0, max: rounds, jump: 1,
    seconds: rounds * SECONDS, show: (at) => `${Math.floor(at)} of ${rounds}`,
  }; // prettier-ignore
  const view = {
    kind: "choice", name: "view", label: "Ranks",
    options: [["ring", "in a ring"], ["rows", "in rows"]],
  }; // prettier-ignore
  let below = { key: "" }; // the strip, which stays while pieces fly
  const strip = (width, y, number) => {
    const key = [width, y, number].join();
    if (below.key !== key) below = { key, ...stripOf(data, width, y, number) };
    return below;
  };
  return {
    title: data.title,
    summary: data.summary,
    state: { at: 0, view: data.view },
    controls: [player, view],
    layout({ at, view }, width) {
      const places = placesOf(data, view === "ring", width), number = Math.min(rounds, Math.floor(at));
      const small = strip(width, places.bottom + style.line, number);
      return { marks: [...stageOf(data, places, number, at - number), ...small.marks], height: small.y };
    },
    says: ({ at }) => told(data, Math.min(rounds, Math.floor(at))),
    press: (mark) => goTo(mark),
    key: (key, state, laid, mark) => (key === "Enter" ? goTo(mark) : null),
  };
}

// A round of the strip takes the picture there.
function goTo(mark) {
  return mark?.id?.frame >= 0 ? { at: mark.id.frame } : null;
}

// What happens in a round to what arrives.
function saysRound(data, number) {
  const all = data.moves.length, plain = data.personal || data.whole;
  if (number === all) {
    const end = data.personal ? "every piece is where it belongs"
      : data.whole ? "each rank adds what it holds" : "every rank has the sum"; // prettier-ignore
    return `after ${all} rounds: ${end}`;
  }
  if (!data.moves[number].length) return `round ${number + 1} of ${all}: nobody sends`;
  const adds = data.moves[number][0][4], phase = data.phases[adds ? 0 : 1];
  const what = plain ? "what arrives is kept" : adds ? "what arrives is added" : "the sum takes the place";
  return `round ${number + 1} of ${all}: ${what}${phase ? ` (${phase})` : ""}`;
}

// The line below the picture: who sends what to whom, and the bytes so far.
function told(data, number) {
  const sent = data.sent[number], most = Math.max(...sent), least = Math.min(...sent);
  const total = sent.reduce((a, b) => a + b, 0);
  const who = least === most ? "by each rank" : "by the busiest rank";
  const bytes = `Sent so far: ${plural(most, "byte")} ${who}, ${commas(total)} by all.`;
  if (number === data.moves.length) return `Done after ${plural(number, "round")}. ${bytes}`;
  const moves = data.moves[number].map(([from, to, first, count]) => {
    const what = data.personal || data.whole ? ` ${nameOf(data, first, from)}`
      : count === data.pieces ? "" : count > 1 ? ` pieces ${first} to ${first + count - 1}` : ` piece ${first}`; // prettier-ignore
    return `${from} → ${to}${what}`;
  });
  return moves.length ? `${bytes}\nNow: ${moves.join(", ")}.` : bytes;
}

// --- what is drawn

// The ranks with what they hold after `number` rounds, and what is `part` of its way in the next.
function stageOf(data, places, number, part) {
  const moves = data.moves[number] || [], held = data.held[number];
  const marks = [
    { kind: "text", x: 8, y: 12, fill: style.ink, text: data.title },
    { kind: "text", x: 8, y: 12 + style.line, fill: style.ink, text: saysRound(data, number) },
  ];
  const gone = new Set(data.personal && part ? moves.map((m) => m[2]) : []);
  marks.push(...numberMarks(data, places));
  held.forEach((pieces, rank) => {
    marks.push(...nameMarks(places, rank, data.sent[number][rank]));
    pieces.forEach((mask, p) => {
      if (!spotOf(data, rank, p)) return;
      const [x, y] = cornerOf(data, places, rank, p);
      marks.push(...pieceMarks(data, places, x, y, rank, p, gone.has(p) ? 0 : mask));
    });
  });
  const tokens = [], way = part * part * (3 - 2 * part); // it leaves and arrives slowly
  moves.forEach((move, i) => {
    const [from, to, first, count] = move, points = arrowOf(data, places, moves, i);
    marks.push(...arrowMarks(data, move, points));
    const [dx, dy] = offLine(data, places, move, points, way);
    for (let p = first; p < first + count; p++) {
      const [ax, ay] = cornerOf(data, places, from, p), [bx, by] = cornerOf(data, places, to, p);
      const x = ax + (bx - ax) * way + dx, y = ay + (by - ay) * way + dy, w = places.w + 4, h = places.h + 4;
      tokens.push({ kind: "box", x: x - 2, y: y - 2, w, h, fill: style.ink, id: { token: [from, p] } });
      tokens.push(...pieceMarks(data, places, x, y, from, p, held[from][p], "on its way: "));
    }
    if (!part) marks.push(...tokens.splice(0));
  });
  return [...marks, ...tokens];
}

// The numbers of the pieces, over their columns.
function numberMarks(data, places) {
  if (places.ring || !numbered(data)) return [];
  const [x, y] = places.corners[0], faint = { kind: "text", y: y - 10, fill: style.faint };
  const marks = [{ ...faint, x: x - 12, text: "piece", align: "right" }];
  for (let p = 0; p < data.pieces; p++)
    marks.push({ ...faint, x: x + p * places.pitch + places.w / 2, text: String(p), align: "middle" });
  return marks;
}

function nameMarks(places, rank, sent) {
  const [x, y] = places.corners[rank], told = `${amount(sent, "B")} sent`, shade = piece(rank);
  const name = { kind: "text", fill: style.ink, text: `rank ${rank}` };
  const bytes = { kind: "text", fill: style.faint, text: told };
  if (places.ring) {
    const middle = x + places.wide / 2;
    return [
      { kind: "box", x: middle - 31, y: y - 16, w: 10, h: 10, fill: shade },
      { ...name, x: middle - 17, y: y - 11 },
      { ...bytes, x: middle, y: y + places.tall + 12, align: "middle" },
    ];
  }
  const middle = y + places.tall / 2;
  return [
    { kind: "box", x: x - 72, y: middle - 13, w: 10, h: 10, fill: shade },
    { ...name, x: x - 12, y: middle - 8, align: "right" },
    { ...bytes, x: x - 12, y: middle + 9, align: "right" },
  ];
}

function membersOf(data, mask) {
  return Array.from({ length: data.ranks }, (_, r) => r).filter((r) => (Math.abs(mask) >> r) & 1);
}

// A personal piece is named after who sends it and for whom: A2; a whole buffer after its rank.
function nameOf(data, number, rank) {
  return String.fromCharCode(65 + rank) + (data.personal ? number % data.ranks : "");
}

// A piece: a frame, and a stripe for each rank whose part is in it.
function pieceMarks(data, places, x, y, rank, number, mask, flying = "") {
  const { w, h } = places, members = membersOf(data, mask);
  const about = () => flying + aboutPiece(data, rank, number, mask, members);
  const id = flying + `${rank} ${number}`;
  const marks = [{ kind: "box", x, y, w, h, fill: style.paper, edge: style.grid, about, id }];
  if (data.whole || data.personal) {
    for (const r of members) {
      const text = nameOf(data, number, r), fill = piece(r);
      marks.push({ kind: "box", x, y, w, h, fill });
      if (w > text.length * style.letter + 2)
        marks.push({ kind: "text", x: x + w / 2, y: y + h / 2, fill: lettersOn(fill), text, align: "middle" });
    }
    return marks;
  }
  const each = h / data.ranks;
  for (const r of members) {
    marks.push({ kind: "box", x, y: y + r * each, w, h: each, fill: partShade(r, mask) });
  }
  return marks;
}

// The stripe of a rank: pale where the piece was handed on.
function partShade(rank, mask) {
  return mask < 0 ? tint(piece(rank), 0.3) : piece(rank);
}

function aboutPiece(data, rank, number, mask, members) {
  const size = plural(data.bytes[number], "byte");
  if (data.whole || data.personal) {
    if (!members.length) return `rank ${rank} holds nothing here`;
    const whom = data.personal ? ` for rank ${number % data.ranks}` : "";
    return `rank ${rank}: ${nameOf(data, number, members[0])}, from rank ${members[0]}${whom}, ${size}`;
  }
  const parts = members.length === data.ranks ? "the whole sum"
    : members.length > 1 ? `the parts of ranks ${members.join(", ")}` : `the part of rank ${members[0]}`; // prettier-ignore
  const handed = mask < 0 ? "\nhanded on: nobody needs it any more" : "";
  return `rank ${rank}, piece ${number}, ${size}: ${parts}${handed}`;
}

function arrowMarks(data, [from, to, first, count], points) {
  const [[ax, ay], [bx, by]] = points.slice(-2), far = Math.hypot(bx - ax, by - ay);
  const dx = ((bx - ax) / far) * 7, dy = ((by - ay) / far) * 7;
  const tip = [[bx - dx - dy * 0.6, by - dy + dx * 0.6], [bx, by], [bx - dx + dy * 0.6, by - dy - dx * 0.6]];
  const bytes = data.bytes.slice(first, first + count).reduce((a, b) => a + b, 0);
  const what = count > 1 ? `pieces ${first} to ${first + count - 1}` : data.pieces > 1 ? `piece ${first}` : "all";
  const name = data.personal || data.whole ? nameOf(data, first, from) : what;
  const about = `rank ${from} to rank ${to}: ${name}, ${plural(bytes, "byte")}`;
  return [{ kind: "line", edge: style.ink, points, about }, { kind: "line", edge: style.ink, points: tip }];
}

// Every round in small: a row a rank, a column a piece; press one to go there.
function stripOf(data, width, y, now) {
  const [across, down] = shapeOf(data), plain = data.whole || data.personal;
  const stripe = stripeOf(data), least = Math.min(10, Math.floor(STRIP / (data.ranks * down)));
  const h = stripe ? stripe * data.ranks + 2 : Math.max(4, least);
  const w = stripe ? (across === 1 ? 28 : 14) : across === 1 ? 14 : across <= 4 ? 10 : 7;
  const wide = across * w, tall = data.ranks * down * h, pitch = Math.max(wide, 34) + 14;
  const text = plain
    ? "every round; colour: the rank it came from"
    : stripe
    ? "every round; a stripe for each rank that is in it"
    : "every round; stronger: more added, purple: new";
  const marks = [{ kind: "text", x: 8, y, fill: style.ink, text }];
  let x = 8;
  y += style.line;
  data.held.forEach((_, number) => {
    if (x > 8 && x + wide > width - 8) (x = 8), (y += tall + style.line + 12);
    marks.push(...frameMarks(data, number, x, y, w, h, number === now));
    const middle = wide > 30, align = middle ? "middle" : "left", text = number ? String(number) : "start";
    marks.push({ kind: "text", x: middle ? x + wide / 2 : x, y: y + tall + 11, fill: style.ink, text, align });
    x += pitch;
  });
  return { marks, y: y + tall + style.line + 10 };
}

// What all ranks hold after a round; neighbours of one shade are one box.
function frameMarks(data, number, x, y, w, h, now) {
  const [across, down] = shapeOf(data), stripe = stripeOf(data);
  const fresh = new Set(data.fresh[number].map(([r, p]) => r * data.pieces + p));
  const about = number ? `after round ${number}` : "before the first round";
  const marks = [{ kind: "box", x, y, w: across * w, h: data.ranks * down * h, fill: style.paper,
    edge: now ? style.ink : style.grid, about, id: { frame: number } }]; // prettier-ignore
  data.held[number].forEach((pieces, rank) => {
    if (stripe) {
      pieces.forEach((mask, p) => {
        const box = { kind: "box", x: x + p * w + 1, w: w - 2, h: stripe };
        for (const r of membersOf(data, mask))
          marks.push({ ...box, y: y + rank * h + 1 + r * stripe, fill: partShade(r, mask) });
      });
      return;
    }
    const rows = Array.from({ length: down }, () => Array(across).fill(null));
    pieces.forEach((mask, p) => {
      const at = mask && spotOf(data, rank, p);
      if (at) rows[at[1]][at[0]] = smallShade(data, mask, fresh.has(rank * data.pieces + p));
    });
    rows.forEach((shades, row) => {
      for (let i = 0; i < across; ) {
        let j = i + 1;
        while (j < across && String(shades[j]) === String(shades[i])) j++;
        const box = { kind: "box", x: x + i * w, y: y + (rank * down + row) * h, w: (j - i) * w, h };
        if (shades[i]) marks.push({ ...box, fill: shades[i] });
        i = j;
      }
    });
  });
  return marks;
}

// Height of a stripe in small, 0 where there is no room for one a rank.
function stripeOf({ ranks, whole, personal }) {
  return whole || personal || ranks > 4 ? 0 : Math.floor(12 / ranks);
}

function smallShade(data, mask, fresh) {
  const members = membersOf(data, mask), share = members.length / data.ranks;
  if (data.whole || data.personal) return piece(members[0]);
  if (fresh) return tint(style.comm.message, 0.35 + 0.65 * share);
  return mask < 0 ? tint(style.faint, 0.4 * share) : tint(style.ink, share);
}
