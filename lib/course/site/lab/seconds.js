// Cells that take long say so below their code, as the book does: `make refresh TIMES=1` has stored
// the seconds in the cell's metadata. The note itself is stored nowhere.
"use strict";

{
  const NAME = "many-ranks-seconds";
  const STYLE = `
    .${NAME} {
      padding: 0 var(--jp-code-padding) 2px;
      color: var(--jp-ui-font-color1);
      font: var(--jp-ui-font-size1) / 1.5 var(--jp-ui-font-family);
      text-align: right;
    }`;

  // Puts a widget between the code of a cell and its output.
  globalThis.manyRanksAboveOutput = ({ layout }, widget) => {
    if (widget.isDisposed || !layout) return;
    const isOutput = (one) => one.hasClass("jp-Cell-outputWrapper");
    const at = [...layout.widgets].findIndex(isOutput);
    layout.insertWidget(at < 0 ? layout.widgets.length : at, widget);
  };

  globalThis.manyRanksSeconds = async ({ content: notebook }, context, shared) => {
    await context.ready;
    const { Widget } = await shared("@lumino/widgets");
    if (!document.getElementById(NAME)) {
      const style = Object.assign(document.createElement("style"), { id: NAME });
      style.textContent = STYLE;
      document.head.append(style);
    }
    for (const cell of notebook.widgets) {
      const seconds = cell.model.getMetadata("many_ranks")?.seconds;
      if (!seconds) continue;
      const note = new Widget();
      note.addClass(NAME);
      note.node.textContent = `takes about ${seconds} s`;
      void cell.ready.then(() => manyRanksAboveOutput(cell, note));
    }
  };
}
