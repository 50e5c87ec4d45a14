// Colours, all from the palette that lib/draw/parts/live.py writes as `style`: a pair each, on
// light paper and on dark.
import { roundHalfEven } from "./numbers.js";

// Gives the name under which an operation has its colour: "send" is a message, "F" is forward.
export function colourKey(op) {
  const name = style.same[op] || op;
  return name in style.compute || name in style.comm ? name : "compute";
}

// Gives the colour of an operation.
export function colourOf(op) {
  const name = colourKey(op);
  return style.compute[name] || style.comm[name];
}

// The share of the full colour that a rank's first stage has, its second ..., and their names.
export const LEVEL_SHARES = [1, 0.5, 0.3, 0.15];
const LEVEL_NAMES = ["1st", "2nd", "3rd", "4th and later"];

// Gives the keys [name, colour] of a rank's second stage to the one of level `most`.
export function levelKeys(most) {
  const names = LEVEL_NAMES.slice(1, most + 1), forward = colourOf("F");
  return names.map((name, i) => [`${name} stage of a rank`, tint(forward, LEVEL_SHARES[i + 1])]);
}

// Gives the colour of a rank's piece; the colours repeat where there are many ranks.
export function pieceColour(rank) {
  return style.pieces[rank % style.pieces.length];
}

// Gives the colour of letters on top of a shade: whichever of black and white stands out more.
export function lettersOn(shade) {
  return shade.map((colour) => (light(colour) > 0.18 ? "#000000" : "#ffffff"));
}

// The relative luminance of a colour, by WCAG 2.
function light(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Mixes a shade with paper: share 0 is paper, 1 is the full colour.
export function tint(full, share) {
  return full.map((colour, dark) => {
    const parts = [1, 3, 5].map((i) => {
      const [c, p] = [colour, style.paper[dark]].map((v) => parseInt(v.slice(i, i + 2), 16));
      return roundHalfEven(p + (c - p) * share).toString(16).padStart(2, "0");
    });
    return `#${parts.join("")}`;
  });
}
