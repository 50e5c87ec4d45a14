// The tools of every picture, in a menu below it: save it, copy its numbers, fill the screen, open
// the file that makes it.
import { copyText, element } from "./controls.js";
import { rowsOfMarks, tableText } from "./mark_rows.js";
import { plural } from "./numbers.js";
import { pageOf, svgOf } from "./page_svg.js";
import { isDark, paint } from "./paint.js";

const FULL_CLASS = "mrom-full", PNG_SCALE = 2; // pixels for one

// Makes the menu: {node, end}.
export function makeTools(view) {
  const { figure, shape } = view, ending = new AbortController(), { signal } = ending;
  const told = element("span");
  const tell = (text) => {
    told.textContent = text;
    view.announce(text);
  };
  const button = (text, onclick) => element("button", { type: "button", text, onclick });
  const saver = (text, end, make, hint = "") =>
    button(text, async () => {
      const name = fileName(shape.title, end);
      saveFile(await make(view), name);
      tell(`Saved as ${name}.${hint}`);
    });
  const files = (shape.files || []).map(([text, end, make, hint]) =>
    saver(text, end, () => new Blob([make()], { type: "application/json" }), hint)
  );
  const handle = element("summary", { text: "Tools" });
  const menu = element(
    "div",
    { class: "mrom-menu" },
    saver("Save as PNG", ".png", pngOf),
    saver("Save as SVG", ".svg", svgFile),
    button("Copy the numbers", () => tell(copyNumbers(view))),
    ...files,
    fullScreenButton(figure, signal),
    ...sourceLink(shape),
    told,
  );
  const node = element("details", { class: "mrom-tools" }, handle, menu);
  node.addEventListener("toggle", () => (told.textContent = ""));
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !node.open) return;
    event.preventDefault();
    event.stopPropagation();
    node.open = false;
    handle.focus();
  });
  const onPress = (event) => {
    if (!event.composedPath().includes(node.parentElement)) node.open = false;
  };
  document.addEventListener("pointerdown", onPress, { signal });
  return { node, end: () => ending.abort() };
}

// A link to the file that makes the picture's data, where the page says where such files lie:
// `manyRanksSource` is an address with {file} in it.
function sourceLink({ madeBy }) {
  const place = globalThis.manyRanksSource;
  if (!place || !madeBy) return [];
  const href = place.replace("{file}", madeBy), text = "Open the source";
  return [element("a", { href, text, target: "_blank", "data-file": madeBy })];
}

// Tells whether a picture fills the screen.
export function isFullScreen(figure) {
  return figure.classList.contains(FULL_CLASS);
}

// Lets the figure fill the screen, and back. Where the browser has no way to, it fills the window.
function fullScreenButton(figure, signal) {
  const isReal = () => figure.getRootNode().fullscreenElement === figure;
  const become = (isFull) => {
    figure.classList.toggle(FULL_CLASS, isFull);
    node.textContent = isFull ? "Leave full screen" : "Full screen";
  };
  const onclick = async () => {
    if (isReal()) return document.exitFullscreen();
    if (isFullScreen(figure)) return become(false);
    try {
      await figure.requestFullscreen();
    } catch {
      become(true);
    }
  };
  const onEscape = (event) => {
    if (event.key === "Escape" && isFullScreen(figure) && !isReal()) become(false);
  };
  const node = element("button", { type: "button", onclick });
  become(isFullScreen(figure));
  figure.addEventListener("fullscreenchange", () => become(isReal()), { signal });
  document.addEventListener("keydown", onEscape, { signal });
  return node;
}

function copyNumbers({ shape, state, laid }) {
  const rows = shape.numbers?.(state, laid) || rowsOfMarks(laid.marks);
  if (rows.length < 2) return "Nothing in this picture has numbers.";
  return copyText(tableText(rows))
    ? `Copied ${plural(rows.length - 1, "row")}, with tabs between the columns.`
    : "Not copied: this browser does not allow it.";
}

// The picture as it is now, on its paper.
function pngOf(view) {
  const { width, height, parts } = pageOf(view), dark = isDark();
  const size = { width: width * PNG_SCALE, height: height * PNG_SCALE };
  const canvas = element("canvas", size), ink = canvas.getContext("2d");
  ink.scale(PNG_SCALE, PNG_SCALE);
  ink.fillStyle = style.paper[dark ? 1 : 0];
  ink.fillRect(0, 0, width, height);
  for (const { left, top, marks, clip } of parts) {
    ink.save();
    ink.translate(left, top);
    paint(ink, marks, dark, clip);
    ink.restore();
  }
  return new Promise((done) => canvas.toBlob(done));
}

// The same as SVG; the page reads its text, and writes it with its namespace.
function svgFile(view) {
  const { shape, laid } = view, holder = element("div");
  const words = [shape.title, laid.summary || shape.summary];
  holder.innerHTML = svgOf(pageOf(view), words, isDark());
  const text = new XMLSerializer().serializeToString(holder.firstChild);
  return new Blob([text], { type: "image/svg+xml" });
}

function saveFile(blob, download) {
  const href = URL.createObjectURL(blob);
  element("a", { href, download }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

// "00-ranks-timeline.png": the page where the picture stands, and what it is.
function fileName(title, ending) {
  const [, page] = /([^/]+)\.(?:html|ipynb)$/.exec(decodeURIComponent(location.pathname)) || [];
  const kind = title.split(",")[0].toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
  return [page, kind].filter(Boolean).join("-").replace(/-$/, "") + ending;
}
