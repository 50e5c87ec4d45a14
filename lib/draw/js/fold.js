// The panel of a picture's controls. On a narrow page those that are rarely used are folded under
// one line that names what it holds; elsewhere all of them stand open.
import { element } from "./controls.js";

// A button that cannot be pressed any more loses the keyboard, so the picture gets it, where its
// own keys go on.
function toPicture(node) {
  node.closest("figure")?.querySelector("canvas[tabindex]")?.focus({ preventScroll: true });
}

// Gives {node, update(), arrange(isNarrow)} of controls as buildControl makes them; `name(state)`
// is what stands on the fold. The keyboard goes through a panel as it is seen.
export function makePanel(controls, name, state) {
  const handle = element("summary"), inside = element("div", { class: "mrom-controls" });
  const fold = element("details", { class: "mrom-fold" }, handle, inside);
  const nodes = (some) => some.map((control) => control.node);
  const node = element("div", { class: "mrom-controls" }, ...nodes(controls));
  const folded = controls.filter((control) => control.isFolded);
  const first = controls.indexOf(folded[0]);
  const isKept = (control) => !control.isFolded;
  const arrange = (isNarrow) => {
    if (!folded.length || isNarrow === fold.isConnected) return;
    const focus = node.getRootNode().activeElement;
    inside.replaceChildren(...(isNarrow ? nodes(folded) : []));
    const [before, after] = [controls.slice(0, first), controls.slice(first)]
      .map((some) => nodes(some.filter(isKept)));
    node.replaceChildren(...(isNarrow ? [...before, fold, ...after] : nodes(controls)));
    if (node.contains(focus)) focus.focus();
  };
  const update = () => {
    const focus = node.getRootNode().activeElement;
    for (const control of controls) control.update();
    if (node.contains(focus) && focus.disabled) toPicture(focus);
    if (folded.length) handle.textContent = name(state);
  };
  return { node, update, arrange };
}
