// What a cell shows below a picture that covers an answer: it may tell the answer, so it is hidden
// for as long, and the picture says so. Errors stay, and so does everything on paper.
import { element } from "./controls.js";

// Outputs of a cell are siblings, in JupyterLab and in the book.
const OUTPUT = ".jp-OutputArea-child, .cell_output > *";
const ERRORS = ["error", "stderr"]
  .map((name) => `[data-mime-type="application/vnd.jupyter.${name}"]`).join();
const RULE = `@media screen{[data-mrom-covers]~:not(:has(${ERRORS})){display:none!important}}`;

// Gives {node, cover(whether), end}: the sentence for the picture, what hides or shows, and what
// shows everything again.
export function makeCover(figure) {
  const text = "What this cell shows below is covered too.";
  const node = element("p", { class: "mrom-covers", text, hidden: true });
  let output = null, observer = null;
  const tell = () => (node.hidden = !output?.nextElementSibling);
  const end = () => {
    observer?.disconnect();
    output?.removeAttribute("data-mrom-covers");
    output = observer = null;
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
    observer = new MutationObserver(tell); // outputs come one after the other
    observer.observe(output.parentElement, { childList: true });
    tell();
  };
  return { node, cover, end };
}

// The output that holds a figure, which may stand in a shadow root; null on other pages.
function outputOf(figure) {
  let node = figure;
  while (node && !node.closest(OUTPUT)) node = node.getRootNode().host;
  return node?.closest(OUTPUT) ?? null;
}
