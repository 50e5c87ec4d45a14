// The frame around every picture: controls, two canvases (the picture, and what moves over it),
// a tooltip, what is said aloud, and the picture in words. [Note: the shape of a picture]
//
// A kind's file gives picture(data): {title, summary, state, controls, layout, ...} where
//   layout(state, width) -> {marks, height, status, clip, summary}   pure; nothing else decides what is drawn;
//          `summary` where what is true at first does not stay true
//   overlay(state, width, laid) -> marks                       for `moving`: names of state that only it shows
//   begin(set), end(): for what changes outside of the picture; below: controls stand under it;
//   wordless: it is words already
//   drag: {start(mark, at, state, laid) -> bool, move(at, state, laid) -> changes, end(at, state, laid) -> changes}
//   press(mark, at, state, laid), wheel(by, at, state, laid), key(key, state, laid, mark, shift) -> changes or nothing
//   words(state, laid) -> what stands under "In words", where that is more than the summary
import { make, build } from "./controls.js";
import { paint, sheet, under, isDark, onTheme } from "./paint.js";

export const kept = (globalThis.manyRanksKept ??= new Map()); // until the page is closed

const WIDEST = 1200; // px

// Shows `model` (get, on, off, send, as anywidget has them) in `el`; returns what ends it.
export async function mount(el, model) {
  dress(el);
  const figure = make("figure", { class: "mrom", role: "group" });
  el.append(figure);
  let end = () => {}, state = {};
  const show = async () => {
    end();
    try {
      const shape = picture(await unpack(model.get("data")));
      figure.replaceChildren();
      end = draw(figure, shape, model, state);
      state = figure.picture.state;
    } catch (wrong) {
      console.error(wrong);
      const text = `This picture could not be drawn: ${wrong.message}`;
      figure.replaceChildren(make("p", { role: "alert", text }));
    }
  };
  await show();
  model.on("change:data", show);
  return () => {
    model.off?.("change:data", show);
    end();
    figure.remove();
  };
}

// Large data travel as zlib in base64; small ones as they are.
export async function unpack(data) {
  if (!data.packed) return data;
  const bytes = Uint8Array.from(atob(data.packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function draw(figure, shape, model, old) {
  const known = Object.entries(old).filter(([name]) => name in shape.state);
  const state = { ...shape.state, ...Object.fromEntries(known) };
  const took = { layout: 0, paint: 0 };
  figure.setAttribute("aria-label", shape.title);
  // 1. the nodes
  const kernel = listen(model, (sentence) => said(sentence), () => refreshControls());
  const controls = (shape.controls || []).map((control) => build(control, set, state, kernel));
  const below = make("canvas", { "aria-hidden": "true" });
  const above = make("canvas", { tabindex: 0, role: "img", "aria-label": spoken(shape) });
  const tip = make("div", { class: "mrom-tip", hidden: true });
  const stage = make("div", { class: "mrom-stage" }, below, above, tip);
  const status = make("p", { class: "mrom-status", role: "status" });
  const voice = make("p", { class: "mrom-voice", "aria-live": "polite" });
  const told = make("pre", { text: shape.summary, tabindex: 0, "aria-label": `${shape.title}, in words` });
  const words = make("details", { class: "mrom-words" }, make("summary", { text: "In words" }), told);
  const desk = make("div", { class: "mrom-controls" }, ...controls.map((c) => c.node));
  if (controls.length && !shape.below) figure.append(desk);
  words.hidden = Boolean(shape.wordless);
  figure.append(stage, ...(shape.below ? [desk] : []), status, voice, words);
  // 2. one redraw for each frame, of what changed
  let laid = { marks: [], height: 0 }, chosen = null, width = 0, waiting = 0, stale = true;
  let over = [];
  function set(changes = {}, name = null) {
    const names = Object.keys(changes).filter((key) => state[key] !== changes[key]);
    const moves = names.filter((key) => (shape.moving || []).includes(key));
    Object.assign(state, changes);
    if (names.length > moves.length) stale = true;
    // What a play head passes is shown, not read out: it would never end.
    if (names.length) status.setAttribute("aria-live", stale ? "polite" : "off");
    if (!waiting) waiting = requestAnimationFrame(redraw);
    return name;
  }
  function redraw() {
    waiting = 0;
    const dark = isDark();
    const start = performance.now();
    if (stale) {
      figure.classList.toggle("mrom-dark", dark);
      laid = shape.layout(state, width);
      took.layout = performance.now() - start;
      paint(sheet(below, width, laid.height), laid.marks, dark, laid.clip);
      took.paint = performance.now() - start - took.layout;
      if (chosen) chosen = laid.marks.find((m) => m.about && m.id != null && m.id === chosen.id);
      stale = false;
    }
    over = shape.overlay ? shape.overlay(state, width, laid) : [];
    const ring = chosen ? [around(chosen)] : [];
    paint(sheet(above, width, laid.height), [...over, ...ring], dark, laid.clip);
    stage.style.height = `${laid.height}px`;
    const text = (shape.says ? shape.says(state, laid) : laid.status) || "";
    if (status.textContent !== text) status.textContent = text;
    if (laid.summary) above.setAttribute("aria-label", spoken(laid));
    if (words.open) tell();
    refreshControls();
    took.frame = performance.now() - start;
    Object.assign(figure.picture, { laid, over });
  }
  function refreshControls() {
    for (const control of controls) control.update();
  }
  function tell() {
    const text = shape.words?.(state, laid) ?? laid.summary ?? shape.summary;
    if (told.textContent !== text) told.textContent = text;
  }
  words.addEventListener("toggle", tell);
  function resize() {
    const room = Math.min(WIDEST, Math.floor(figure.clientWidth - 2 * PADDING));
    if (room > 0 && room !== width) (width = room), (stale = true), set({});
  }
  const said = (text) => (voice.textContent = text);
  // 3. pointer and keys
  const place = (event) => {
    const box = above.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const hit = ({ x, y }) => under(over, x, y, laid.clip) || under(laid.marks, x, y, laid.clip);
  const point = (event) => showTip(tip, stage, hit(place(event)), place(event));
  hands(above, { shape, state, set, place, hit, point, laid: () => laid, tip });
  above.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const changes = shape.key?.(event.key, state, laid, chosen, event.shiftKey);
    const next = changes ? null : walk(laid, chosen, event.key);
    if (!changes && !next) return;
    event.preventDefault();
    if (next) (chosen = next), said(sayAbout(next));
    set(changes || {});
    if (next) showTip(tip, stage, next, { x: next.x + next.w / 2 || 0, y: next.y + next.h || 0 });
  });
  above.addEventListener("blur", () => ((chosen = null), (tip.hidden = true), set({})));
  // 4. what must end with it
  const eye = new ResizeObserver(resize);
  eye.observe(figure);
  const noTheme = onTheme(() => ((stale = true), set({})));
  figure.picture = { state, set, took, laid, over, shape };
  resize();
  shape.begin?.(set);
  return () => {
    cancelAnimationFrame(waiting);
    eye.disconnect();
    noTheme();
    kernel.end();
    shape.end?.();
  };
}

function spoken(shape) {
  return `${shape.summary.replace(/\.$/, "")}. Arrow keys go from part to part.`;
}

// `at` is where the pointer is, if it is one that asks.
export function sayAbout(mark, at) {
  return typeof mark.about === "function" ? mark.about(at) : mark.about;
}

function around(mark) {
  if (mark.kind === "box")
    return { ...mark, x: mark.x - 1, y: mark.y - 1, w: Math.max(mark.w, 2) + 2, h: mark.h + 2,
      fill: undefined, hatch: false, edge: style.ink, dash: false, thick: 2.5 }; // prettier-ignore
  return { ...mark, kind: "line", fill: undefined, edge: style.ink, thick: 3.5 };
}

function showTip(tip, stage, mark, { x, y }) {
  tip.hidden = !mark;
  if (!mark) return;
  const text = sayAbout(mark, { x, y });
  if (tip.textContent !== text) tip.textContent = text;
  const room = stage.clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(0, Math.min(x + 14, room))}px`;
  tip.style.top = `${y + 16}px`;
}

// Pointer and wheel on the upper canvas.
function hands(above, { shape, state, set, place, hit, point, laid, tip }) {
  let dragging = false;
  above.addEventListener("pointerdown", (event) => {
    const at = place(event), mark = hit(at);
    dragging = Boolean(shape.drag?.start(mark, at, state, laid()));
    if (dragging) above.setPointerCapture(event.pointerId), (tip.hidden = true);
    const changes = shape.press?.(mark, at, state, laid());
    if (changes) set(changes);
  });
  above.addEventListener("pointermove", (event) => {
    if (dragging) set(shape.drag.move(place(event), state, laid()) || {});
    else point(event);
  });
  const stop = (event) => {
    if (dragging) set(shape.drag.end?.(place(event), state, laid()) || {});
    dragging = false;
  };
  above.addEventListener("pointerup", stop);
  above.addEventListener("pointercancel", stop);
  above.addEventListener("pointerleave", () => (tip.hidden = true));
  above.addEventListener("wheel", (event) => {
    const bare = !(event.ctrlKey || event.metaKey); // a bare wheel scrolls the page
    const changes = !bare && shape.wheel?.(event.deltaY, place(event), state, laid());
    if (changes) event.preventDefault(), set(changes);
  }, { passive: false }); // prettier-ignore
}

// The next mark that has something to say, in the direction of an arrow key.
function walk({ marks, clip }, from, key) {
  const seen = (m) => !m.inside || !clip || (m.x + m.w > clip.x && m.x < clip.x + clip.w);
  const rest = marks.filter((m) => m.about && m.kind === "box" && seen(m));
  if (!rest.length || !/^(Arrow|Home|End)/.test(key)) return null;
  const order = (a, b) => a.y - b.y || a.x - b.x;
  if (key === "End") return rest.sort(order).at(-1);
  if (!from || key === "Home") return rest.sort(order)[0];
  const level = key === "ArrowLeft" || key === "ArrowRight", way = /Right|Down/.test(key) ? 1 : -1;
  if (level) {
    const row = rest.filter((m) => m.y === from.y && (m.x - from.x) * way > 0);
    return row.sort((a, b) => (a.x - b.x) * way)[0] || null;
  }
  const far = (m) => Math.abs(m.y - from.y) * 1e4 + Math.abs(m.x + m.w / 2 - from.x - from.w / 2);
  return rest.filter((m) => (m.y - from.y) * way > 0).sort((a, b) => far(a) - far(b))[0] || null;
}

// The kernel behind a picture, if there is one: it answers a greeting, and later what is asked.
function listen(model, say, changed) {
  const kernel = { alive: false, busy: false };
  const hear = (message) => {
    if (!message || !("manyRanks" in message)) return;
    kernel.alive = true;
    kernel.busy = false;
    if (message.manyRanks) say(message.manyRanks);
    changed();
  };
  kernel.ask = (name, state) => {
    kernel.busy = true;
    changed();
    model.send({ ask: name, state });
  };
  kernel.end = () => model.off?.("msg:custom", hear);
  if (model.get("asks")) {
    model.on("msg:custom", hear);
    model.send({ ask: "", state: {} });
  }
  return kernel;
}
