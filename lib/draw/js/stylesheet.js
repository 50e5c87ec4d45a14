// What the frame looks like: one stylesheet for a page, in the colours of the palette.

// The room around a picture, in px.
export const PADDING = 12;

const FOOTER_RULES = `
.mrom-footer{display:flex;flex-wrap:wrap;gap:0 24px;margin:6px 0 0;color:var(--faint)}
.mrom-footer details[open]{flex-basis:100%;min-width:0}
.mrom-footer summary{cursor:pointer;width:max-content;min-height:24px}
.mrom-menu{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin:4px 0 0}
.mrom-menu a{display:inline-flex;align-items:center;min-height:24px;color:var(--link)}
.mrom-ask{display:inline-flex;flex-wrap:wrap;gap:4px 12px;align-items:center}
.mrom.mrom-full{position:fixed;inset:0;z-index:9999;max-width:none;border-radius:0;overflow:auto}`;

// A picture that is wider than its frame scrolls in it, and its tooltip does not.
const STAGE_RULES = `
.mrom-stage{position:relative;touch-action:pan-y}
.mrom-stage~.mrom-controls{margin:10px 0 2px 16px}
.mrom-stage~.mrom-controls~.mrom-status{margin-left:16px}
.mrom-sheet{position:relative}
.mrom-stage.mrom-wider{touch-action:pan-x pan-y}
.mrom-wider .mrom-roll{overflow:auto hidden;border-right:1px dashed var(--faint)}
.mrom-wider canvas:focus-visible{outline-offset:-2px}
.mrom-stage canvas{position:absolute;left:0;top:0;width:100%;display:block;
  -webkit-user-select:none;user-select:none;-webkit-touch-callout:none}
.mrom-tip{position:absolute;z-index:9;max-width:min(21.5em,100%);padding:5px 9px;
  white-space:pre-line;background:var(--ink);color:var(--paper);border-radius:5px;
  pointer-events:none}`;

const ENTRY_RULES = `
.mrom-controls form:has(.mrom-wrong:not(:empty)){width:100%}
.mrom-wrong{flex:1 1 200px}
.mrom-wrong:empty{display:none}
.mrom input[aria-invalid]{border:2px solid var(--wrong)}`;

// On a phone: sliders in two columns, and that of a player on a line of its own; what is rarely
// used is folded, and fingers find what they aim at.
const NARROW_RULES = `
.mrom-narrow .mrom-controls{gap:8px 9px}
.mrom-narrow .mrom-controls :is(button,select,input[type=text],summary){min-height:36px}
.mrom-narrow .mrom-controls .mrom-toggle{min-height:36px}
.mrom-narrow .mrom-controls>button{padding:2px 8px}
.mrom-fold summary{display:flex;align-items:center;gap:6px;cursor:pointer;color:var(--link)}
.mrom-fold summary::before{content:"▸"}
.mrom-fold[open] summary::before{content:"▾"}
.mrom-fold{flex:1 1 9em;line-height:1.3}
.mrom-fold[open]{flex-basis:100%}
.mrom-fold .mrom-controls{margin:4px 0}
.mrom-narrow .mrom-controls>.mrom-slider{flex:1 1 calc(50% - 9px);min-width:min(11em,100%)}
.mrom-narrow .mrom-controls>.mrom-slider output{white-space:normal}
.mrom-narrow .mrom-controls form label{flex:1 1 150px;flex-wrap:wrap;min-width:0}
.mrom-narrow .mrom-controls form input{flex:1 1 5em;min-width:0}
.mrom-narrow .mrom-wrong{flex-basis:100%}
.mrom-narrow .mrom-player{display:flex;flex-wrap:wrap;width:100%}
.mrom-narrow .mrom-player label{display:contents}
.mrom-narrow .mrom-player output{min-width:0;margin-left:auto}
.mrom-narrow .mrom-player input[type=range]{order:1;width:100%}`;

// Adds the stylesheet to the page, or to the shadow root, that holds a node; once.
export function addStylesheet(el) {
  const root = el.getRootNode() instanceof ShadowRoot ? el.getRootNode() : document.head;
  if (root.querySelector("#mrom-stylesheet")) return;
  const sheet = document.createElement("style");
  sheet.id = "mrom-stylesheet";
  const shades = (i) =>
    ["paper", "ink", "faint", "grid"].map((name) => `--${name}:${style[name][i]}`).join(";") +
    `;--link:${style.compute.forward[i]};--wrong:${style.comm.all_reduce[i]}`;
  sheet.textContent = `
.mrom{${shades(0)};box-sizing:border-box;margin:0;padding:${PADDING}px;border-radius:6px;
  max-width:${1200 + 2 * PADDING}px;background:var(--paper);color:var(--ink);color-scheme:light;
  font:${style.size}px/1.45 ${style.font};text-align:left;overflow:hidden}
.mrom.mrom-dark{${shades(1)};color-scheme:dark}
.mrom *{box-sizing:border-box;font:inherit}
.mrom [hidden]{display:none!important}
.mrom-controls{display:flex;flex-wrap:wrap;gap:8px 18px;align-items:end;margin:0 0 10px}
.mrom-controls label,.mrom-player,.mrom-controls form{display:inline-flex;align-items:center;
  gap:8px;margin:0}
.mrom-player{gap:6px;max-width:100%}
.mrom-player label{min-width:0}
.mrom-controls form,.mrom-choice{flex-wrap:wrap}
.mrom-controls>*{max-width:100%}
.mrom-controls>.mrom-toggle{min-height:28px}
.mrom .mrom-controls>.mrom-slider{display:inline-grid;grid-template-columns:1fr auto;gap:0 8px;
  min-width:min(150px,calc(50% - 9px))}
.mrom .mrom-controls>.mrom-slider input{grid-row:2;grid-column:1/3;width:100%}
.mrom .mrom-controls>.mrom-slider output{grid-row:1;grid-column:2;min-width:0}
.mrom button,.mrom select,.mrom input[type=text]{min-height:28px;padding:2px 10px;color:var(--ink);
  background:var(--paper);border:1px solid var(--faint);border-radius:5px;margin:0;width:auto;
  box-shadow:none;line-height:1.3}
.mrom button{cursor:pointer}
.mrom button:hover:not(:disabled){background:var(--grid)}
.mrom button:disabled,.mrom input:disabled{opacity:.55;cursor:default}
.mrom :is(button,select){max-width:100%}
.mrom .mrom-play{min-width:64px}
.mrom input[type=range]{width:140px;min-width:48px;accent-color:var(--link);margin:0;
  min-height:28px}
.mrom input[type=checkbox]{width:16px;height:16px;accent-color:var(--link);margin:0}
.mrom output{min-width:48px;white-space:nowrap;font-variant-numeric:tabular-nums}
${ENTRY_RULES}${NARROW_RULES}
.mrom :focus-visible{outline:2px solid var(--link);outline-offset:2px}
${STAGE_RULES}
.mrom-status{margin:8px 0 0;white-space:pre-line}
.mrom-heading{margin:0 0 8px;overflow-wrap:anywhere}
.mrom-caption,.mrom-covers{margin:6px 0 0;color:var(--faint);overflow-wrap:anywhere}
.mrom-status:empty,.mrom-heading:empty,.mrom-caption:empty{display:none}
.mrom-announcement{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.mrom-printed{display:none;margin:8px 0 0}
@media print{.mrom-printed{display:block}.mrom-controls,.mrom-summary,.mrom-tools{display:none}}
${FOOTER_RULES}
.mrom-summary pre{margin:4px 0 0;padding:0;overflow-x:auto;background:none;border:0;
  color:var(--ink);
  font:.923em/1.5 ui-monospace,"DejaVu Sans Mono",monospace;white-space:pre}
`;
  root.append(sheet);
}
