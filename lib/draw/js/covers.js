// What a cell shows below a picture that covers an answer, and what goes on from it up to a heading
// or a rule (*** in Markdown): the text, what the next cell shows, and the text below that. All may
// tell the answer, so they are hidden for as long, and the picture and the next cell say so. Errors
// stay, and so does everything on paper.
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
const TEXT = ".jp-Cell:has([data-mrom-covers])+.jp-MarkdownCell";
const NEXT = `${TEXT}:not(:has(.jp-RenderedMarkdown>${END}))+.jp-CodeCell`;
const HIDDEN = [
  `[data-mrom-covers]~:not(:has(${ERRORS}))`,
  `:is(${TEXT},${NEXT}+.jp-MarkdownCell) .jp-RenderedMarkdown>:not(${END},${END}~*)`,
  `${NEXT} .jp-OutputArea-child:not(:has(${ERRORS}))`,
  "[data-mrom-covered]",
].join();
const WAITS = `${NEXT} .jp-OutputArea:has(.jp-OutputArea-child),[data-mrom-waits]`;
const NOTE = "What this cell shows is covered until you have made the guess above.";
const NOTED = `:is(${WAITS})::before{content:"${NOTE}";font-style:italic}`;
const RULE = `@media screen{${HIDDEN}{display:none!important}${NOTED}}`;

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
    for (const [one, mark] of marked) one.removeAttribute(mark);
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
    marked = marksAfter(output.closest(".cell"));
    for (const [one, mark] of marked) one.setAttribute(mark, "");
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

// What the book hides after a cell, and the place of the next cell that says so, with attributes.
function marksAfter(cell) {
  const text = textAfter(cell), next = text.at(-1)?.nextElementSibling;
  const shown = next?.matches(".cell") && next.querySelector(".cell_output");
  const isHidden = (one) => !one.querySelector(ERRORS);
  const below = shown ? [...[...shown.children].filter(isHidden), ...textAfter(next)] : [];
  const marks = [...text, ...below].map((one) => [one, "data-mrom-covered"]);
  return shown ? [...marks, [shown, "data-mrom-waits"]] : marks;
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
