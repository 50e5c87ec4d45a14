// What is alive on each rank over time, by kind: the living twin of lib/draw/memory.py.
// needs: zoom events stack
import { zoomable, headAt } from "./zoom.js";
import { ranksInWords } from "./events.js";
import { BAND, stacksOf, stackMarks, aliveAt, sayPeak, shadeOfKind, total } from "./stack.js";
import { amount, axis, legend } from "./axes.js";

const EDGE = 14, TOP = 4, GAP = 10; // px

export function picture(data) {
  const { kinds, tick, span, top } = data;
  const shown = stacksOf(data), window = zoomable(span, "at");
  const digits = Math.max(...shown.map(({ rank }) => String(rank).length));
  const left = 62 + 8 * Math.max(0, digits - 2);
  const tall = shown.length <= 2 ? 88 : shown.length <= 4 ? 60 : shown.length <= 8 ? 40 : 28;
  const thin = data.thin && "Thinned: of short moments the fullest is kept, so every peak is true.";

  function layout({ from, to }, width) {
    const right = width - EDGE, scale = (right - left) / (to - from);
    const x = (t) => left + (t - from) * scale;
    const view = { from, to, left, right, x, end: x(span) }, marks = [];
    let y = TOP;
    for (const stack of shown) {
      y += BAND;
      const text = `rank ${stack.rank}`;
      marks.push({ kind: "text", x: left - 8, y: y + tall / 2, fill: style.ink, text, align: "right" });
      marks.push(...stackMarks(stack, kinds, view, y, tall, top, tick));
      y += tall + GAP;
    }
    marks.push(...axis(left, right, y, from * tick, to * tick));
    const keys = kinds.map((kind) => [kind, shadeOfKind(kind), false]);
    const below = legend(keys, left, y + 2 * style.line + 10, width);
    const status = [sayPeak(shown, tick), thin].filter(Boolean).join("\n");
    const clip = { x: left, y: 0, w: right - left, h: y };
    return { marks: [...marks, ...below.marks], height: Math.round(below.y), clip, status };
  }

  // What every rank holds at the play head; ranks that hold the same are told together.
  function holding(moment) {
    const told = new Map();
    for (const stack of shown) {
      const parts = aliveAt(stack, kinds, moment), all = total(parts);
      const most = parts.slice(0, 2).map(([kind, size]) => `${kind} ${amount(size, "B")}`).join(", ");
      const text = amount(all, "B") + (parts.length ? ` (${most}${parts.length > 2 ? ", …" : ""})` : "");
      told.set(text, [...(told.get(text) || []), stack.rank]);
    }
    return [...told].map(([text, who]) => `${ranksInWords(who)}: ${text}`).join("; ");
  }

  return {
    title: `Memory, ${data.source}`,
    summary: data.summary,
    state: { ...window.state, at: 0 },
    moving: ["at"],
    controls: [
      { kind: "player", name: "at", label: "Time", min: 0, max: span, seconds: 8, show: (t) => amount(t * tick, "s") },
      ...window.controls,
    ],
    layout,
    overlay: (state, width, { clip }) => headAt(state, clip),
    says: (state, laid) => [laid.status, state.at && holding(state.at)].filter(Boolean).join("\n"),
    wheel: window.wheel, key: window.key, drag: window.drag,
  }; // prettier-ignore
}
