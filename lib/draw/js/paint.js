// Marks to pixels on a canvas, and which mark lies under a point.

const TILE = 5; // px of a pattern that repeats
const TILES = ["hatch", "dots"];
const LEAST_HIT = 4, EDGE = 0.5; // px in which a bar is hit, however thin; its edge is part of it

// Tells whether the page is dark: as JupyterLab says, else the book, else the reader's system.
export function isDark() {
  const lab = document.body.dataset.jpThemeLight;
  if (lab) return lab === "false";
  const book = document.documentElement.dataset.theme;
  if (book === "dark" || book === "light") return book === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Calls back when the page turns light or dark; returns what ends that.
export function onTheme(call) {
  const observer = new MutationObserver(call);
  const filter = ["data-jp-theme-light", "data-theme", "class"];
  for (const node of [document.body, document.documentElement]) {
    observer.observe(node, { attributes: true, attributeFilter: filter });
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", call);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", call);
  };
}

// Makes a canvas that wide and tall, `larger` times; it is sharp on this screen. Returns what draws
// on it.
export function prepareCanvas(canvas, width, height, larger = 1) {
  const scale = larger * Math.max(1, window.devicePixelRatio || 1);
  const wide = Math.round(width * scale), tall = Math.round(height * scale);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== tall) canvas.height = tall;
  canvas.style.height = `${height * larger}px`;
  const ink = canvas.getContext("2d");
  ink.setTransform(scale, 0, 0, scale, 0, 0);
  ink.clearRect(0, 0, width, height);
  return ink;
}

// Draws marks in their order. Those with `inside` are cut off at the `clip` box {x, y, w, h}.
export function paint(ink, marks, dark, clip) {
  const shade = dark ? 1 : 0, pen = makePen(ink, shade);
  ink.font = `${style.size}px ${style.font}`;
  ink.textBaseline = "middle";
  let isCut = false;
  for (const mark of marks) {
    if (Boolean(mark.inside && clip) !== isCut) {
      isCut = !isCut;
      if (isCut) cutAt(ink, clip);
      else ink.restore();
      pen.reset();
    }
    if (mark.kind === "text") paintText(ink, pen, mark, shade);
    else if (mark.kind === "box") paintBox(ink, pen, mark, shade);
    else paintPoints(ink, pen, mark, shade);
  }
  if (isCut) ink.restore();
}

function cutAt(ink, clip) {
  ink.save();
  ink.beginPath();
  ink.rect(clip.x, clip.y, clip.w, clip.h);
  ink.clip();
}

// What a canvas draws with; it is told only what changes, which is faster.
function makePen(ink, shade) {
  let fill, edge, isDashed, thick;
  const tiles = {};
  const pen = {
    reset() {
      [fill, edge, isDashed, thick] = ["", "", false, 1];
      ink.setLineDash([]);
      ink.lineWidth = 1;
    },
    fillWith(colour) {
      if (colour !== fill) ink.fillStyle = fill = colour;
    },
    fillWithTile(name) {
      pen.fillWith(tiles[name] ??= tilePattern(ink, name, style.faint[shade]));
    },
    edgeOf(mark, usual) {
      const colour = mark.edge[shade], dash = Boolean(mark.dash), wide = mark.thick || usual;
      if (colour !== edge) ink.strokeStyle = edge = colour;
      if (dash !== isDashed) ink.setLineDash((isDashed = dash) ? [4, 3] : []);
      if (wide !== thick) ink.lineWidth = thick = wide;
    },
  };
  pen.reset();
  return pen;
}

function tilePattern(ink, name, colour) {
  const scale = ink.getTransform().a;
  const pattern = ink.createPattern(tileOf(name, colour, scale), "repeat");
  pattern.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, 0, 0]));
  return pattern;
}

const knownTiles = new Map(); // name, colour and scale -> a tile
const drawTile = { hatch: drawDiagonal, dots: drawDot };

function tileOf(name, colour, scale) {
  const key = [name, colour, scale].join();
  if (!knownTiles.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = TILE * scale;
    const ink = tile.getContext("2d");
    ink.scale(scale, scale);
    ink.fillStyle = ink.strokeStyle = colour;
    drawTile[name](ink);
    knownTiles.set(key, tile);
  }
  return knownTiles.get(key);
}

function drawDiagonal(ink) {
  ink.lineWidth = 0.9;
  ink.beginPath();
  for (const x of [-TILE, 0, TILE]) {
    ink.moveTo(x, TILE);
    ink.lineTo(x + TILE, 0);
  }
  ink.stroke();
}

function drawDot(ink) {
  ink.beginPath();
  ink.arc(TILE / 2, TILE / 2, 0.9, 0, 2 * Math.PI);
  ink.fill();
}

const canvasAlign = { left: "left", middle: "center", right: "right" };

function paintText(ink, pen, mark, shade) {
  pen.fillWith(mark.fill[shade]);
  ink.textAlign = canvasAlign[mark.align || "left"];
  ink.fillText(mark.text, mark.x, mark.y + 0.5);
}

function paintBox(ink, pen, mark, shade) {
  const { x, y, w, h } = mark;
  if (mark.fill) {
    pen.fillWith(mark.fill[shade]);
    ink.fillRect(x, y, w, h);
  }
  for (const name of TILES) {
    if (!mark[name]) continue;
    pen.fillWithTile(name);
    ink.fillRect(x, y, w, h);
  }
  if (mark.edge) {
    pen.edgeOf(mark, 1);
    ink.strokeRect(x, y, w, h);
  }
}

function paintPoints(ink, pen, mark, shade) {
  ink.beginPath();
  mark.points.forEach(([x, y], i) => (i ? ink.lineTo(x, y) : ink.moveTo(x, y)));
  if (mark.kind === "area") {
    pen.fillWith(mark.fill[shade]);
    ink.globalAlpha = mark.alpha ?? 0.3;
    ink.fill();
    ink.globalAlpha = 1;
  } else {
    pen.edgeOf(mark, 1.6);
    ink.stroke();
  }
}

// Gives the mark under a point, the last drawn first; only those that can be described.
export function markAt(marks, x, y, clip) {
  const isOut = clip && (x < clip.x || x > clip.x + clip.w || y < clip.y || y > clip.y + clip.h);
  return marks.findLast((mark) => mark.about && !(mark.inside && isOut) && hits(mark, x, y)) ||
    null;
}

function hits(mark, x, y) {
  if (mark.kind === "area") return isWithin(mark.points, x, y);
  if (mark.kind === "line") return isNear(mark.points, x, y);
  if (mark.kind !== "box") return false;
  const slack = Math.max(EDGE, (LEAST_HIT - mark.w) / 2); // slivers and edges can be hit too
  const isBeside = x < mark.x - slack || x > mark.x + mark.w + slack;
  return !isBeside && y >= mark.y && y <= mark.y + mark.h;
}

function isWithin(points, x, y) {
  let isOdd = false;
  points.forEach(([ax, ay], i) => {
    const [bx, by] = points[(i + points.length - 1) % points.length];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) isOdd = !isOdd;
  });
  return isOdd;
}

function isNear(points, x, y) {
  return points.slice(1).some(([bx, by], i) => {
    const [ax, ay] = points[i], dx = bx - ax, dy = by - ay;
    const along = ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1);
    const t = Math.min(1, Math.max(0, along));
    return Math.hypot(x - ax - t * dx, y - ay - t * dy) < 4;
  });
}
