// Help for a cell that asks for a name which a cell above defines, as after a kernel's restart: a
// sentence and a button below its code. Exercises have their own help (exercises.js).
"use strict";

{
  const MISSING = /^name '([A-Za-z_]\w*)' is not defined/;
  const { add, codeCells, inVain, make, rich, runAbove, runCells, sourceOf } = manyRanksBars;
  let jupyter; // what JupyterLab shares

  // The plugin; `shared(name)` gives a module that JupyterLab shares.
  globalThis.manyRanksMissing = async (shared) => {
    const names = ["@jupyterlab/notebook", "@lumino/widgets"];
    const [notebook, widgets] = await Promise.all(names.map(shared));
    jupyter = { ...notebook, ...widgets };
    return { id: "many-ranks:missing", autoStart: true, activate };
  };

  function activate(app) {
    app.docRegistry.addWidgetExtension("Notebook", { createNew: (panel) => attend(panel) });
  }

  // Tells, after each cell that ran, what it misses, and takes back what was told of it before.
  function attend(panel) {
    const bars = new Map(); // cell widget -> bar
    const ran = (_, { notebook, cell }) => {
      if (notebook !== panel.content) return;
      bars.get(cell)?.dispose();
      bars.delete(cell);
      const name = missingName(cell);
      if (!name || inVain.has(cell, name) || !isDefinedAbove(panel, cell, name)) return;
      bars.set(cell, bar(panel, cell, name));
    };
    jupyter.NotebookActions.executed.connect(ran);
    inVain.forgetWith(panel.sessionContext);
    panel.disposed.connect(() => jupyter.NotebookActions.executed.disconnect(ran));
  }

  // The name that a cell's last run has missed.
  function missingName({ model }) {
    const outputs = model.sharedModel.outputs ?? [];
    const error = outputs.find(({ ename }) => ename === "NameError");
    return error?.evalue.match(MISSING)?.[1];
  }

  // Whether a cell above assigns, imports or defines a name; what no cell defines is a slip.
  function isDefinedAbove(panel, cell, name) {
    const cells = codeCells(panel), above = cells.slice(0, cells.indexOf(cell));
    const list = String.raw`(?:[\w.*()\[\]]+, *)*\(?${name}\b[\w.*,()\[\] ]*`;
    const forms = [
      String.raw`^ *(?:(?:async )?def|class) ${name}\b`,
      `^ *(?:for )?${list}(?:(?::[^=]+)?=[^=]| in )`,
      String.raw`^ *(?:from [\w.]+ )?import [^\n(]*\b${name}\b`,
      String.raw`^from [\w.]+ import \([^)]*\b${name}\b`,
      String.raw`\bas ${name}\b`,
    ];
    return above.some((one) => new RegExp(forms.join("|"), "m").test(sourceOf(one)));
  }

  function bar(panel, cell, name) {
    const said = make("div"), { NotebookActions, Widget } = jupyter;
    said.className = "mr-bar-said";
    said.setAttribute("role", "status");
    const say = (text) => said.replaceChildren(...rich(text));
    say(`A cell above defines \`${name}\`, but this kernel does not know it.`);
    let isBusy = false;
    const work = async () => {
      if (isBusy) return;
      isBusy = true;
      button.setAttribute("aria-disabled", "true");
      say("The cells above run…");
      try {
        const isDone = await runAbove(NotebookActions, panel, cell);
        if (isDone) {
          inVain.note(cell, [name]); // the cell's own run tells whether it is so
          await runCells(NotebookActions, panel, [cell]);
        } else say("A cell above has failed: see what it says.");
      } catch (error) {
        say(String(error.message ?? error));
      }
      isBusy = false;
      button.removeAttribute("aria-disabled");
    };
    const button = make("button", "Run the cells above, then this one", () => void work());
    return add(Widget, cell, "A name is missing", [said, button]);
  }
}
