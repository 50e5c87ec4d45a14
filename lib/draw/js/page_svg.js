// A picture as a page of its own, to be saved: heading, marks and caption; and that page as SVG.
import { wrapText } from "./axes.js";
import { textMark } from "./marks.js";

const PAGE_EDGE = 12, PAGE_GAP = 6; // px around the page, and between the texts and the marks

// Gives {width, height, parts: [{left, top, marks, clip}]} of a picture as it is now; `over` are
// the marks over its layout's.
export function pageOf({ shape, laid, over, width }) {
  const { heading = shape.heading, caption = shape.caption } = laid, parts = [];
  const add = (marks, height, clip) => {
    parts.push({ left: PAGE_EDGE, top: y, marks, clip });
    y += height + PAGE_GAP;
  };
  const addText = (text, fill) => {
    const lines = wrapText(text || "", width).filter(Boolean);
    const line = (words, n) => textMark(0, (n + 0.5) * style.line, words, { fill });
    if (lines.length) add(lines.map(line), lines.length * style.line);
  };
  let y = PAGE_EDGE;
  addText(heading, style.ink);
  add([...laid.marks, ...over], laid.height, laid.clip);
  addText(caption, style.faint);
  return { width: width + 2 * PAGE_EDGE, height: Math.ceil(y - PAGE_GAP + PAGE_EDGE), parts };
}

// Gives a page as the text of an SVG element, as HTML takes it (without a namespace), in the
// colours of light or dark paper; with a title, and a description.
export function svgOf({ width, height, parts }, [title, words], dark) {
  const shade = dark ? 1 : 0, { clip } = parts.find((part) => part.clip) || {};
  const size = `width="${width}" height="${height}"`;
  const group = ({ left, top, marks }) =>
    `<g transform="translate(${left} ${top})">\n` +
    `${marks.map((mark) => svgMark(mark, shade, clip)).join("\n")}\n</g>`;
  return [
    `<svg viewBox="0 0 ${width} ${height}" ${size} role="img" font-size="${style.size}" ` +
    `font-family="${style.font}"><title>${escapeText(title)}</title>` +
    `<desc>${escapeText(words)}</desc><defs>`,
    '<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse">' +
    `<path d="M-1 1L1 -1M0 5L5 0M4 6L6 4" stroke="${style.faint[shade]}" stroke-width=".9"/>` +
    "</pattern>",
    '<pattern id="idle" width="5" height="5" patternUnits="userSpaceOnUse">' +
    `<circle cx="2.5" cy="2.5" r=".9" fill="${style.faint[shade]}"/></pattern>`,
    clip ? `<clipPath id="window"><rect ${boxOf(clip)}/></clipPath>` : "",
    `</defs><rect ${size} fill="${style.paper[shade]}"/>`,
    ...parts.map(group),
    "</svg>",
  ].filter(Boolean).join("\n");
}

function svgMark(mark, shade, clip) {
  const cut = mark.inside && clip ? ' clip-path="url(#window)"' : "";
  const fill = `fill="${mark.fill ? mark.fill[shade] : "none"}"`;
  if (mark.kind === "text") {
    const anchor = { left: "start", middle: "middle", right: "end" }[mark.align];
    return `<text x="${px(mark.x)}" y="${px(mark.y)}" text-anchor="${anchor}" ` +
      `dominant-baseline="central" ${fill}${cut}>${escapeText(mark.text)}</text>`;
  }
  const about = typeof mark.about === "function" ? mark.about() : mark.about;
  const title = about ? `<title>${escapeText(about)}</title>` : "";
  if (mark.kind === "box") {
    const box = `<rect ${boxOf(mark)}${cut} `, edge = strokeOf(mark, shade, 1);
    const name = mark.hatch ? "wait" : mark.dots ? "idle" : "";
    const pattern = name && `${box}fill="url(#${name})" pointer-events="none"/>`;
    return `${box}${fill}${edge}>${title}</rect>${pattern}`;
  }
  const points = mark.points.map(([x, y]) => `${px(x)},${px(y)}`).join(" ");
  const [tag, look] = mark.kind === "area"
    ? ["polygon", `${fill} fill-opacity="${mark.alpha ?? 0.3}"`]
    : ["polyline", `fill="none"${strokeOf(mark, shade, 1.6)}`];
  return `<${tag} points="${points}"${cut} ${look}>${title}</${tag}>`;
}

function strokeOf({ edge, thick, dash }, shade, usual) {
  if (!edge) return "";
  const dashes = dash ? ' stroke-dasharray="4 3"' : "";
  return ` stroke="${edge[shade]}" stroke-width="${thick || usual}"${dashes}`;
}

function boxOf({ x, y, w, h }) {
  return `x="${px(x)}" y="${px(y)}" width="${px(Math.max(0, w))}" height="${px(Math.max(0, h))}"`;
}

function px(number) {
  return Math.round(number * 100) / 100;
}

function escapeText(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/[&<>"]/g, (letter) => names[letter]);
}
