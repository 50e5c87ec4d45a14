// Marks to pixels. A mark is as in lib/draw/picture.py: a "box", a "line" or an "area" of points,
// or a "text", in CSS pixels; a colour is a pair, on light paper and on dark.

export function isDark() {
  const lab = document.body.dataset.jpThemeLight;
  if (lab) return lab === "false";
  const book = document.documentElement.dataset.theme;
  if (book === "dark" || book === "light") return book === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Calls back when the page turns light or dark; returns what ends that.
export function onTheme(call) {
  const eye = new MutationObserver(call);
  const filter = ["data-jp-theme-light", "data-theme", "class"];
  for (const node of [document.body, document.documentElement])
    eye.observe(node, { attributes: true, attributeFilter: filter });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", call);
  return () => {
    eye.disconnect();
    media.removeEventListener("change", call);
  };
}

const hatches = new Map(); // colour -> a tile with one thin diagonal

function hatch(colour, scale) {
  const key = colour + scale;
  if (!hatches.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 5 * scale;
    const ink = tile.getContext("2d");
    ink.scale(scale, scale);
    ink.strokeStyle = colour;
    ink.lineWidth = 0.9;
    ink.beginPath();
    for (const x of [-5, 0, 5]) ink.moveTo(x, 5), ink.lineTo(x + 5, 0);
    ink.stroke();
    hatches.set(key, tile);
  }
  return hatches.get(key);
}

// Makes `canvas` as wide and tall as told, sharp on this screen; returns what draws on it.
export function sheet(canvas, width, height) {
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const wide = Math.round(width * scale), tall = Math.round(height * scale);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== tall) canvas.height = tall;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.setTransform(scale, 0, 0, scale, 0, 0);
  ink.clearRect(0, 0, width, height);
  return ink;
}

// Draws marks in their order. Those with `inside` are cut off at the `clip` box {x, y, w, h}.
export function paint(ink, marks, dark, clip) {
  const shade = dark ? 1 : 0, scale = ink.getTransform().a;
  ink.font = `${style.size}px ${style.font}`;
  ink.textBaseline = "middle";
  ink.lineWidth = 1;
  ink.setLineDash([]);
  let cut = false, fill = "", edge = "", tile = null, dashed = false, thick = 1;
  const fills = (colour) => colour !== fill && (ink.fillStyle = fill = colour);
  const edges = (mark, usual) => {
    const colour = mark.edge[shade], dash = Boolean(mark.dash), wide = mark.thick || usual;
    if (colour !== edge) ink.strokeStyle = edge = colour;
    if (dash !== dashed) ink.setLineDash((dashed = dash) ? [4, 3] : []);
    if (wide !== thick) ink.lineWidth = thick = wide;
  };
  for (const mark of marks) {
    if (Boolean(mark.inside && clip) !== cut) {
      cut = !cut;
      if (cut) {
        ink.save();
        ink.beginPath();
        ink.rect(clip.x, clip.y, clip.w, clip.h);
        ink.clip();
      } else ink.restore();
      fill = edge = "";
      ink.setLineDash([]);
      ink.lineWidth = 1;
      [dashed, thick] = [false, 1];
    }
    if (mark.kind === "text") {
      fills(mark.fill[shade]);
      ink.textAlign = sides[mark.align || "left"];
      ink.fillText(mark.text, mark.x, mark.y + 0.5);
    } else if (mark.kind === "box") {
      if (mark.fill) {
        fills(mark.fill[shade]);
        ink.fillRect(mark.x, mark.y, mark.w, mark.h);
      }
      if (mark.hatch) {
        if (!tile) {
          tile = ink.createPattern(hatch(style.faint[shade], scale), "repeat");
          tile.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, 0, 0]));
        }
        if (fill !== tile) ink.fillStyle = fill = tile;
        ink.fillRect(mark.x, mark.y, mark.w, mark.h);
      }
      if (mark.edge) {
        edges(mark, 1);
        ink.strokeRect(mark.x, mark.y, mark.w, mark.h);
      }
    } else {
      ink.beginPath();
      mark.points.forEach(([x, y], i) => (i ? ink.lineTo(x, y) : ink.moveTo(x, y)));
      if (mark.kind === "area") {
        fills(mark.fill[shade]);
        ink.globalAlpha = mark.alpha ?? 0.3;
        ink.fill();
        ink.globalAlpha = 1;
      } else {
        edges(mark, 1.6);
        ink.stroke();
      }
    }
  }
  if (cut) ink.restore();
}

const sides = { left: "left", middle: "center", right: "right" };

// The mark under a point, the last drawn first; only those that have something to say.
export function under(marks, x, y, clip) {
  const out = clip && (x < clip.x || x > clip.x + clip.w || y < clip.y || y > clip.y + clip.h);
  for (let i = marks.length - 1; i >= 0; i--) {
    const mark = marks[i];
    if (!mark.about || (mark.inside && out)) continue;
    if (mark.kind === "box") {
      const slack = Math.max(0, 3 - mark.w) / 2; // slivers can be hit too
      const right = mark.x + mark.w + slack;
      if (x >= mark.x - slack && x <= right && y >= mark.y && y <= mark.y + mark.h) return mark;
    } else if (mark.kind === "area" && within(mark.points, x, y)) return mark;
    else if (mark.kind === "line" && near(mark.points, x, y)) return mark;
  }
  return null;
}

function within(points, x, y) {
  let odd = false;
  points.forEach(([ax, ay], i) => {
    const [bx, by] = points[(i + points.length - 1) % points.length];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) odd = !odd;
  });
  return odd;
}

function near(points, x, y) {
  return points.slice(1).some(([bx, by], i) => {
    const [ax, ay] = points[i], dx = bx - ax, dy = by - ay;
    const along = ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1);
    const t = Math.min(1, Math.max(0, along));
    return Math.hypot(x - ax - t * dx, y - ay - t * dy) < 4;
  });
}
