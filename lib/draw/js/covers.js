// What a cell shows below a picture that covers an answer, and the text up to the next cell,
// heading or rule (*** in Markdown), which goes on from it: both may tell the answer, so they are
// hidden for as long, and the picture says so. Errors stay, and so does everything on paper.
import { element } from "./controls.js";

// Outputs of a cell are siblings, in JupyterLab and in the book.
const OUTPUT = ".jp-OutputArea-child, .cell_output > *";
const CELL = ".jp-Cell, .cell";
const ON_PAPER = ".picture-printed"; // the book's stills, which screens never show
const END = ":is(h1,h2,h3,h4,h5,h6,hr)"; // where the text no longer goes on from the answer
const ERRORS = ["error", "stderr"]
  .map((name) => `[data-mime-type="application/vnd.jupyter.${name}"]`).join();
// JupyterLab draws text again when it likes, so a selector finds it there: that of the next cell.
// In the book, where cells and text are siblings, each element is marked.
const LAB = ".jp-Cell:has([data-mrom-covers])+.jp-MarkdownCell .jp-RenderedMarkdown";
const HIDDEN = [
  `[data-mrom-covers]~:not(:has(${ERRORS}))`,
  `${LAB}>:not(${END},${END}~*)`,
  "[data-mrom-covered]",
].join();
const RULE = `@media screen{${HIDDEN}{display:none!important}}`;

// Gives {node, cover(whether), end}: the sentence for the picture, what hides or shows, and what
// shows everything again.
export function makeCover(figure) {
  const node = element("p", { class: "mrom-covers", hidden: true });
  let output = null, observer = null, marked = [];
  const tell = () => {
    const what = output ? covered(output) : "";
    node.hidden = !what;
    node.textContent = what;
  };
  const end = () => {
    observer?.disconnect();
    output?.removeAttribute("data-mrom-covers");
    for (const one of marked) one.removeAttribute("data-mrom-covered");
    output = observer = null;
    marked = [];
    tell();
  };
  const cover = (isCovered) => {
    if (isCovered === Boolean(output)) return;
    if (!isCovered) return end();
    output = outputOf(figure);
    if (!output) return;
    if (!document.querySelector("#mrom-covers")) {
      document.head.append(element("style", { id: "mrom-covers", text: RULE }));
    }
    output.setAttribute("data-mrom-covers", "");
    marked = textAfter(output.closest(".cell"));
    for (const one of marked) one.setAttribute("data-mrom-covered", "");
    observer = new MutationObserver(tell); // outputs come in turn, cells while scrolling
    observer.observe(output.parentElement, { childList: true });
    const cells = output.closest(CELL)?.parentElement;
    if (cells) observer.observe(cells, { childList: true });
    tell();
  };
  return { node, cover, end };
}

// The sentence that says what is covered besides the answer; "" where nothing is.
function covered(output) {
  const text = hasText(output), more = output.matches(`:has(~:not(${ON_PAPER}))`);
  if (text && more) return "What this cell shows below and the text that follows are covered too.";
  if (text) return "The text that follows is covered too.";
  return more ? "What this cell shows below is covered too." : "";
}

function hasText(output) {
  const next = output.closest(".jp-Cell")?.nextElementSibling;
  const first = next?.matches(".jp-MarkdownCell") && next.querySelector(".jp-RenderedMarkdown > *");
  return first ? !first.matches(END) : textAfter(output.closest(".cell")).length > 0;
}

// The elements after a cell of the book, up to the next cell, heading, rule or section.
function textAfter(cell) {
  const all = [];
  let node = cell?.nextElementSibling;
  while (node && !node.matches(`${CELL}, section, ${END}`)) {
    all.push(node);
    node = node.nextElementSibling;
  }
  return all;
}

// The output that holds a figure, which may stand in a shadow root; null on other pages.
function outputOf(figure) {
  let node = figure;
  while (node && !node.closest(OUTPUT)) node = node.getRootNode().host;
  return node?.closest(OUTPUT) ?? null;
}
