// A plan step by step: which piece is where, who sends what to whom, how many bytes so far.
import { commas, plural } from "./numbers.js";
import { placesOf } from "./plan_layout.js";
import { nameOf, piecesText } from "./plan_pieces.js";
import { headHeight, stageMarks } from "./plan_stage.js";
import { layStrip } from "./plan_strip.js";

const ROUND_SECONDS = 1.4; // for a round

// Makes the picture of a plan from what lib/draw/plans/steps.py gathers.
export function picture(data) {
  const rounds = data.moves.length, roundAt = (at) => Math.min(rounds, Math.floor(at));
  let strip = { key: "" }; // which stays while pieces travel
  const stripOf = (...place) => {
    const key = place.join();
    if (strip.key !== key) strip = { key, ...layStrip(data, ...place) };
    return strip;
  };
  return {
    title: data.title,
    summary: data.summary,
    state: { at: 0, view: data.view },
    controls: planControls(rounds),
    layout({ at, view }, width) {
      const head = headHeight(data, width), number = roundAt(at);
      const places = placesOf(data, view === "ring", width, head);
      const below = stripOf(width, places.bottom + style.line, number);
      const stage = stageMarks(data, places, number, at - number, width);
      return { marks: [...stage, ...below.marks], height: below.y };
    },
    status: ({ at }) => roundStatus(data, roundAt(at)),
    press: (mark) => goTo(mark),
    key: (key, state, laid, mark) => (key === "Enter" ? goTo(mark) : null),
  };
}

function planControls(rounds) {
  const show = (at) => `${Math.floor(at)} of ${rounds}`, seconds = rounds * ROUND_SECONDS;
  const options = [["ring", "in a ring"], ["rows", "in rows"]];
  return [
    { kind: "player", name: "at", label: "Rounds", min: 0, max: rounds, jump: 1, seconds, show },
    { kind: "choice", name: "view", label: "Ranks", options },
  ];
}

// A round of the strip takes the picture there.
function goTo(mark) {
  return mark?.id?.frame >= 0 ? { at: mark.id.frame } : null;
}

// Who sends what to whom, and the bytes so far.
function roundStatus(data, number) {
  const sent = data.sent[number], most = Math.max(...sent), least = Math.min(...sent);
  const all = commas(sent.reduce((a, b) => a + b, 0));
  const byWhom = least === most ? "by each rank" : "by the busiest rank";
  const bytes = `Sent so far: ${plural(most, "byte")} ${byWhom}, ${all} by all.`;
  if (number === data.moves.length) return `Done after ${plural(number, "round")}. ${bytes}`;
  const moves = data.moves[number].map((move) => moveText(data, move));
  return moves.length ? `${bytes}\nNow: ${moves.join(", ")}.` : bytes;
}

function moveText(data, [from, to, first, count]) {
  if (data.personal || data.whole) return `${from} → ${to} ${nameOf(data, first, from)}`;
  return `${from} → ${to}${count === data.pieces ? "" : ` ${piecesText(first, count)}`}`;
}
