// Keys that mean the notebook, also where our pictures and buttons keep keys from JupyterLab (an x
// there would cut their cell): Ctrl+S saves, Shift+Enter and its like run the cell, and Escape, or
// a click on the cell's number, leads from a picture back to its cell.
"use strict";

{
  const KEEPS_KEYS = "[data-lm-suppress-shortcuts]";
  const FULL = ".mrom-full"; // a picture that fills the window: Escape makes it small again
  const NUMBERS = ".jp-InputPrompt, .jp-OutputPrompt";

  const keepsKeys = ({ target }) => target.closest?.(KEEPS_KEYS);

  // The command that a key means in every notebook; none for other keys.
  function commandOf({ key, shiftKey, ctrlKey, metaKey, altKey }) {
    if (key !== "Enter") return null;
    if (shiftKey) return ctrlKey || metaKey || altKey ? null : "run-cell-and-select-next";
    if (ctrlKey || metaKey) return altKey ? null : "run-cell";
    return altKey ? "run-cell-and-insert-below" : null;
  }

  // Gives the keyboard from what is in a cell to the cell.
  function leaveFor({ content }, target) {
    const place = content.widgets.findIndex(({ node }) => node.contains(target));
    if (place < 0) return false;
    content.activeCellIndex = place;
    content.mode = "command";
    document.activeElement?.blur();
    content.activate();
    return true;
  }

  // `run(command)` carries out a command of JupyterLab's notebooks.
  function onKeyDown(event, panel, context, run) {
    if (!keepsKeys(event) || event.isComposing) return;
    const isSave = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";
    const saves = isSave && !event.shiftKey && !event.altKey, command = commandOf(event);
    if (!saves && !(command && leaveFor(panel, event.target))) return;
    event.preventDefault();
    event.stopPropagation();
    if (saves) void context.save();
    else void run(`notebook:${command}`);
  }

  globalThis.manyRanksKeys = (app, panel, context) => {
    const { node } = panel, run = (command) => app.commands.execute(command);
    node.addEventListener("keydown", (event) => onKeyDown(event, panel, context, run), true);
    node.addEventListener("keydown", (event) => { // what Escape closes has been closed before
      const isFree = event.key === "Escape" && !event.defaultPrevented && keepsKeys(event);
      if (isFree && !event.target.closest(FULL)) leaveFor(panel, event.target);
    });
    node.addEventListener("mousedown", ({ target }) => {
      const isOnNumber = target.closest?.(NUMBERS), held = document.activeElement;
      if (isOnNumber && held && keepsKeys({ target: held })) leaveFor(panel, target);
    });
  };
}
