// The frame around every picture: controls, two canvases (the picture, and what moves over it), a
// tooltip, a status, announcements for screen readers, the picture in words, and tools.
//
// A kind's file exports picture(data), which gives {title, summary, state, controls, ...} and
//   layout(state, width, seen) -> {marks, height, clip, status, summary, width}: pure, and alone
//     decides what is drawn, here and on the still, which is the first state; `seen` is what of the
//     width is seen without scrolling; `summary` where the first one does not stay true, `width`
//     where less is enough
//   overlay(state, width, laid) -> marks over it; names of state in `moving` change nothing else
//   laid.heading and laid.caption where those of the data do not stay true: the heading is a
//     sentence above the picture, the caption says below it what its numbers are
//   laid.covers: whether what the cell shows below the picture is hidden
//   status(state, laid) -> the text below the picture, where it is more than laid.status
//   fullSummary(state, laid) -> the text under "In words", where it is more than the summary
//   drag: {start(mark, at, state, laid, isTouch) -> whether, move(at, state, laid) -> changes, and
//     end(at, state, laid, isCancelled) -> changes: cancelled by Escape, and where fingers scroll
//     or zoom instead}
//     isHeld(state): whether what is dragged must not scroll too, which it must not by default
//     hold(mark, at, state, laid) -> changes, where a finger stays on what it takes hold of so
//   press(mark, at, state, laid, isTouch), wheel(by, at, state, laid) -> changes of state, or
//     nothing; so does pan(by, state, laid), for a wheel that is turned sideways by so many px
//   key(key, state, laid, mark, isShift) -> the same; `mark` is where the keyboard is
//   undo(state), redo(state) -> the same, for Control+Z and Control+Shift+Z
//   keys: a sentence about the keys, where it is more than that arrow keys go from part to part
//   laid.panels: names of parts that the arrow keys go through one after another; `panel` of a mark
//     is the number of its part, and `row` is the same for all marks of one row
//   numbers(state, laid) -> rows of cells, the first one the header: what "Copy the numbers" copies
//     where it is more than what the marks tell; files: [[label, ending, () => text]], to be saved
//   begin(set), end(): for what changes outside of the picture
//   printed: what stands below it on paper, where no button can be pressed
//   fold(state): what names the controls that are folded on a narrow page, which say `isFolded`
//   words: px that lines of words need, where they are all of a picture, or all but what needs
//     `least` px: they are wrapped where text is larger
//   isBelow: the controls stand below it; isText: it is words already.
import { buildControl, element } from "./controls.js";
import { makeCover } from "./covers.js";
import { makePanel } from "./fold.js";
import { connectKernel } from "./kernel.js";
import { connectKeys, outlineOf } from "./keys.js";
import { isDark, onTheme, paint, prepareCanvas } from "./paint.js";
import { connectPointer, followTip } from "./pointer.js";
import { addStylesheet, PADDING } from "./stylesheet.js";
import { isFullScreen, makeTools } from "./tools.js";

const WIDEST = 1200, NARROWEST = 480, PHONE = 304; // px; a phone's is the least to be laid out
const MEDIUM = 16; // px of a browser's text that nobody has made larger
const MOST_ROLLED = 2; // times that a picture is drawn larger than there is room for all of it
const SCALES = [3, 2.75, 2.5, 2.25, 2, 1.75, 1.5, 1.25]; // on a full screen

// Shows a kind's picture of `model` (get, on, off, send, as anywidget has them) in `el`; `madeBy`
// is the file of the library that makes its data. Returns what ends it.
export async function mount(picture, el, model, madeBy = "") {
  addStylesheet(el);
  const figure = element("figure", { class: "mrom", role: "group" });
  el.append(figure);
  let end = () => {}, state = {};
  const show = async () => {
    end();
    try {
      const data = await unpack(model.get("data")), { heading, caption } = data;
      const shape = { heading, caption, madeBy, ...picture(data) };
      figure.replaceChildren();
      end = draw(figure, shape, model, state);
      state = figure.picture.state;
    } catch (wrong) {
      console.error(wrong);
      const text = `This picture could not be drawn: ${wrong.message}`;
      figure.replaceChildren(element("p", { role: "alert", text }));
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

// Large data, and those with an order of names, travel as zlib in base64; small ones as they are.
async function unpack(data) {
  if (!data.packed) return data;
  const bytes = Uint8Array.from(atob(data.packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Draws `shape` in `figure`, with what the reader had changed before; returns what ends it.
function draw(figure, shape, model, before) {
  const known = Object.entries(before).filter(([name]) => name in shape.state);
  const view = {
    figure,
    shape,
    state: { ...shape.state, ...Object.fromEntries(known) },
    laid: { marks: [], height: 0 }, // what `layout` gave
    over: [], // what `overlay` gave
    chosen: null, // the mark that the keyboard is at
    pointed: null, // what the tooltip follows: a place, or "key" for that mark
    width: 0,
    seen: 0, // what of that is seen at once
    scale: 1, // pixels of the page for one of the layout: more on a full screen
    isStale: true, // whether the layout has to be made again
    request: 0, // of the next frame, while one is awaited
    took: { layout: 0, paint: 0 }, // milliseconds
    set: (changes = {}, isPassing = false) => changeState(view, changes, isPassing),
    announce: (text) => (view.nodes.announcement.textContent = text),
  };
  const kernel = connectKernel(model, view.announce, () => view.panel.update());
  const controls = (shape.controls || [])
    .map((control) => buildControl(control, view.set, view.state, kernel, shape.moving));
  view.panel = makePanel(controls, shape.fold, view.state);
  const tools = makeTools(view);
  view.cover = makeCover(figure);
  view.nodes = makeNodes(view, tools.node);
  connectPointer(view);
  const noKeys = connectKeys(view);
  const noResize = onResize(view), noTheme = onTheme(() => renew(view));
  figure.picture = view;
  shape.begin?.(view.set);
  return () => {
    cancelAnimationFrame(view.request);
    noResize();
    noTheme();
    noKeys();
    tools.end();
    view.cover.end();
    kernel.end();
    shape.end?.();
  };
}

function makeNodes(view, tools) {
  const { figure, shape, panel } = view, { title, summary, isBelow, isText } = shape;
  figure.setAttribute("aria-label", title);
  const below = element("canvas", { "aria-hidden": "true" });
  const label = canvasLabel(summary, shape);
  const above = element("canvas", { tabindex: 0, role: "img", "aria-label": label });
  const tip = element("div", { class: "mrom-tip", hidden: true });
  const sheet = element("div", { class: "mrom-sheet" }, below, above);
  const roll = element("div", { class: "mrom-roll" }, sheet); // the tooltip stays
  const stage = element("div", { class: "mrom-stage" }, roll, tip);
  roll.addEventListener("scroll", () => followTip(view));
  const heading = element("p", { class: "mrom-heading" });
  const caption = element("p", { class: "mrom-caption" });
  const status = element("p", { class: "mrom-status", role: "status" });
  const announcement = element("p", { class: "mrom-announcement", "aria-live": "polite" });
  const inWords = { text: summary, tabindex: 0, "aria-label": `${title}, in words` };
  const summaryText = element("pre", inWords), handle = element("summary", { text: "In words" });
  const summaryBox = element("details", { class: "mrom-summary" }, handle, summaryText);
  summaryBox.hidden = Boolean(isText);
  summaryBox.addEventListener("toggle", () => showSummary(view));
  if (shape.controls?.length && !isBelow) figure.append(panel.node);
  figure.append(heading, stage, caption, ...(isBelow ? [panel.node] : []), status, announcement);
  figure.append(view.cover.node);
  figure.append(element("div", { class: "mrom-footer" }, summaryBox, tools));
  if (shape.printed) figure.append(element("p", { class: "mrom-printed", text: shape.printed }));
  const texts = { heading, caption, status, announcement, summaryText, summaryBox };
  return { below, above, tip, stage, roll, sheet, ...texts };
}

// Changes the state, and asks for one redraw of what follows from it in the next frame; a play head
// that is passing by may turn the page too.
function changeState(view, changes, isPassing = false) {
  const { shape, state, nodes } = view;
  const names = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (!names.every((name) => (shape.moving || []).includes(name))) view.isStale = true;
  // What a play head passes is shown, not read out: it would never end.
  const isRead = view.isStale && !isPassing;
  if (names.length) nodes.status.setAttribute("aria-live", isRead ? "polite" : "off");
  if (!view.request) view.request = requestAnimationFrame(() => redraw(view));
}

// Asks for a redraw of everything.
function renew(view) {
  view.isStale = true;
  changeState(view, {});
}

function redraw(view) {
  const { shape, state, width, scale, nodes, took } = view, dark = isDark();
  const start = performance.now();
  view.request = 0;
  if (view.isStale) {
    view.figure.classList.toggle("mrom-dark", dark);
    view.laid = shape.layout(state, width, view.seen);
    took.layout = performance.now() - start;
    const { marks, height, clip } = view.laid;
    paint(prepareCanvas(nodes.below, width, height, scale), marks, dark, clip);
    took.paint = performance.now() - start - took.layout;
    const isChosen = (mark) => mark.about && mark.id != null && mark.id === view.chosen.id;
    if (view.chosen) view.chosen = marks.find(isChosen);
    view.isStale = false;
  }
  const { height, clip } = view.laid;
  view.over = shape.overlay ? shape.overlay(state, width, view.laid) : [];
  const outline = view.chosen ? [outlineOf(view.chosen)] : [];
  paint(prepareCanvas(nodes.above, width, height, scale), [...view.over, ...outline], dark, clip);
  nodes.sheet.style.height = `${height * scale}px`;
  view.cover.cover(Boolean(view.laid.covers));
  showTexts(view);
  view.panel.update();
  followTip(view);
  took.frame = performance.now() - start;
}

function showTexts(view) {
  const { shape, state, laid, nodes } = view;
  const text = (shape.status ? shape.status(state, laid) : laid.status) || "";
  const { heading = shape.heading, caption = shape.caption } = laid;
  for (const [name, now = ""] of Object.entries({ status: text, heading, caption })) {
    if (nodes[name].textContent !== now) nodes[name].textContent = now;
  }
  if (laid.summary) nodes.above.setAttribute("aria-label", canvasLabel(laid.summary, shape));
  if (nodes.summaryBox.open) showSummary(view);
}

function showSummary({ shape, state, laid, nodes }) {
  const text = shape.fullSummary?.(state, laid) ?? laid.summary ?? shape.summary;
  if (nodes.summaryText.textContent !== text) nodes.summaryText.textContent = text;
}

function canvasLabel(summary, { keys = "Arrow keys go from part to part." }) {
  return `${summary.replace(/\.$/, "")}. ${keys}`;
}

// Lays the picture out as wide as its figure is, now and later; returns what ends that.
function onResize(view) {
  const resize = () => {
    const isFull = isFullScreen(view.figure), most = isFull ? Infinity : WIDEST;
    const room = Math.min(most, Math.floor(view.figure.clientWidth - 2 * PADDING));
    if (room <= 0) return;
    const text = textScale(view.shape, room, enlargeText(view.figure));
    const scale = isFull ? Math.max(text, fullScale(view, room)) : text;
    const { words = PHONE, least = words } = view.shape, seen = Math.floor(room / scale);
    const width = Math.max(seen, Math.min(least, room));
    letScroll(view, width * scale, room);
    view.figure.classList.toggle("mrom-narrow", width < NARROWEST);
    view.panel.arrange(width < NARROWEST);
    if (width === view.width && scale === view.scale) return;
    Object.assign(view, { width, seen, scale });
    renew(view);
  };
  const observer = new ResizeObserver(resize);
  observer.observe(view.figure);
  resize();
  return () => observer.disconnect();
}

// How much larger a picture is drawn for a reader whose text is `larger`: as much, and where there
// is no room for that it scrolls in its frame. One of words is wrapped there instead.
function textScale({ words }, room, larger) {
  const most = words ? room / words : Math.max(MOST_ROLLED, room / PHONE);
  return Math.max(1, Math.min(larger, most));
}

// Lets a picture that is wider than its frame scroll there.
function letScroll({ nodes: { stage, sheet } }, wide, room) {
  const isWider = wide > room + 1;
  stage.classList.toggle("mrom-wider", isWider);
  sheet.style.width = isWider ? `${wide}px` : "";
}

// Lets the words around a picture be as much larger as the reader has made the browser's text;
// gives how much that is.
function enlargeText(figure) {
  const probe = element("span", { style: "font-size:medium" });
  figure.append(probe);
  const larger = Math.max(1, parseFloat(getComputedStyle(probe).fontSize) / MEDIUM);
  probe.remove();
  figure.style.fontSize = larger > 1 ? `${style.size * larger}px` : "";
  return larger;
}

// How much larger a picture is drawn so that it fills a screen that is `room` wide: as much as its
// height and what stands around it allow.
function fullScale({ figure, shape, state, nodes: { stage } }, room) {
  const end = figure.querySelector(".mrom-footer").getBoundingClientRect().bottom;
  const whole = end + figure.scrollTop - figure.getBoundingClientRect().top + PADDING;
  const around = whole - stage.offsetHeight;
  const fits = (scale) =>
    shape.layout(state, Math.floor(room / scale)).height * scale <= figure.clientHeight - around;
  return SCALES.find((scale) => room / scale >= NARROWEST && fits(scale)) ?? 1;
}
