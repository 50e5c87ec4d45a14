// A bar of buttons between a cell's code and its output, and what its buttons do with cells. No
// notebook stores a bar. Exercises have one (exercises.js), and so does a cell that misses a name
// (missing.js). How it looks is in course.css.
"use strict";

{
  const sourceOf = (cell) => cell.model.sharedModel.getSource();
  const codeCells = (panel) => panel.content.widgets.filter(({ model }) => model.type === "code");

  // An element with its text; with `work` it is a button that does that.
  function make(tag, text, work) {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    if (work) Object.assign(node, { type: "button", onclick: work });
    return node;
  }

  // Text whose parts between backticks are code.
  const rich = (text) =>
    text.split("`").map((part, number) =>
      number % 2 ? make("code", part) : document.createTextNode(part)
    );

  // Puts a bar with its parts into a cell, as a widget.
  function add(Widget, cell, label, parts) {
    const widget = new Widget(), { node } = widget;
    node.className = "mr-bar";
    node.setAttribute("role", "group");
    node.setAttribute("aria-label", label);
    node.setAttribute("data-lm-suppress-shortcuts", "true"); // keys here edit no cell
    for (const type of ["keydown", "dblclick"]) {
      node.addEventListener(type, (event) => event.key !== "Escape" && event.stopPropagation());
    }
    node.append(...parts);
    void cell.ready.then(() => manyRanksAboveOutput(cell, widget));
    return widget;
  }

  // Runs cells; false where one has failed.
  const runCells = (actions, { content, sessionContext }, cells) =>
    actions.runCells(content, cells, sessionContext);

  // Runs the code cells above one, on a kernel that it starts where none runs.
  async function runAbove(actions, panel, cell) {
    const { sessionContext } = panel, cells = codeCells(panel);
    if (!sessionContext.session?.kernel) {
      await sessionContext.changeKernel({ name: sessionContext.kernelPreference.name });
    }
    return await runCells(actions, panel, cells.slice(0, cells.indexOf(cell)));
  }

  // The names that a cell lacks although all cells above have run; a kernel that starts anew knows
  // of no run, and then the cells above are offered again.
  let lacks = new WeakMap();
  const inVain = {
    note: (cell, names) => void lacks.set(cell, names),
    has: (cell, name) => Boolean(lacks.get(cell)?.includes(name)),
    forgetWith: ({ statusChanged }) =>
      statusChanged.connect((_, status) => {
        if (!["busy", "idle"].includes(status)) lacks = new WeakMap();
      }),
  };

  globalThis.manyRanksBars = {
    add, codeCells, inVain, make, rich, runAbove, runCells, sourceOf,
  };
}
