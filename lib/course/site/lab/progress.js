// The progress of a long call on the ranks, below the cell that makes the call. The kernel tells of
// it (lib/ranks/kernel/progress.py), and a check of a long call of the reader's own function
// (lib/course/checks/watch.py). What is drawn here is no output, so no notebook can store it.

"use strict";

{
  const NAME = "many-ranks-progress";
  const STYLE = `
    .${NAME} {
      margin: 4px 0 4px calc(var(--jp-cell-collapser-width) + var(--jp-cell-prompt-width));
      padding: 0 var(--jp-code-padding);
      color: var(--jp-ui-font-color1);
      font: var(--jp-ui-font-size1) / 1.5 var(--jp-ui-font-family);
    }
    .${NAME} progress {
      width: 8em;
      margin-right: 1em;
      vertical-align: middle;
      accent-color: var(--jp-brand-color1);
    }
    .${NAME} pre {
      margin: 4px 0 0;
      padding-left: 8px;
      overflow: hidden;
      border-left: 2px solid var(--jp-border-color1);
      font-size: var(--jp-code-font-size);
      text-overflow: ellipsis;
    }
    .${NAME} pre:empty { display: none }
    @media (width <= 760px) { .${NAME} { margin-left: var(--jp-cell-collapser-width) } }`;

  // The bar, its sentence and the lines printed last, below a cell whose output is in `wrapper`.
  function drawn(wrapper) {
    if (!document.getElementById(NAME)) {
      document.head.append(element("style", { id: NAME, textContent: STYLE }));
    }
    const bar = element("progress", { ariaLabel: "Ranks that are done" });
    const sentence = element("span"), lines = element("pre");
    const label = { role: "group", ariaLabel: "Progress of the call" };
    const box = element("div", { className: NAME, ...label });
    box.append(bar, sentence, lines);
    wrapper.after(box);
    return {
      box,
      show(told) {
        bar.hidden = !told.ranks; // a check's own call is on no ranks
        Object.assign(bar, { max: told.ranks ?? 1, value: told.done ?? 0 });
        sentence.replaceChildren(...manyRanksBars.rich(told.text));
        lines.textContent = (told.lines ?? []).join("\n");
      },
    };
  }

  const element = (name, given) => Object.assign(document.createElement(name), given);

  globalThis.manyRanksProgress = ({ content: notebook, sessionContext }) => {
    let shown, request; // what is drawn, and the request of the front end that it belongs to
    const clear = () => (shown = shown?.box.remove());

    sessionContext.iopubMessage.connect((_, { header, parent_header, content }) => {
      if (header.msg_type !== "comm_msg" || content.comm_id !== NAME) return;
      const { msg_id } = parent_header, told = content.data;
      if (told.over || msg_id !== request) clear();
      if (told.over) return;
      const made = ({ outputArea }) => outputArea?.future?.msg.header.msg_id === msg_id;
      const cell = notebook.widgets.find(made);
      if (!cell) return; // another tab made it, or this page was loaded meanwhile
      request = msg_id;
      shown ??= drawn(cell.outputArea.node.closest(".jp-Cell-outputWrapper"));
      shown.show(told);
    });
    // Whatever becomes of the kernel, nothing stays.
    sessionContext.statusChanged.connect((_, status) => status !== "busy" && clear());
  };
}
