// The reader's copies of the chapters, in JupyterLab: a button, a command and two notices. What
// they do is done by lib/course/tools/lab_server.py.
"use strict";

{
  const COMMAND = "many-ranks:again";
  const LABEL = "Start This Chapter Again…";
  const GUESSED = "many-ranks-guess: "; // with the question: lib/draw/js/answers.js
  const copies = new WeakSet(); // the tabs that show one
  let jupyter, ask; // what JupyterLab shares: its dialogs, notifications and buttons; its server

  // The plugin; `shared(name)` gives a module that JupyterLab shares.
  globalThis.manyRanksCopies = async (shared) => {
    const [apputils, { IMainMenu }] = await Promise.all(
      ["@jupyterlab/apputils", "@jupyterlab/mainmenu"].map(shared),
    );
    jupyter = apputils;
    ask = (app, path, ...order) => {
      const chapter = `chapter?path=${encodeURIComponent(path)}`;
      return manyRanksAsk(shared, app, chapter, ...order);
    };
    return {
      id: "many-ranks:copies",
      autoStart: true,
      optional: [apputils.ICommandPalette, IMainMenu],
      activate,
    };
  };

  function activate(app, palette, menu) {
    manyRanksSources(app);
    const current = () => app.shell.currentWidget;
    app.commands.addCommand(COMMAND, {
      label: LABEL,
      isEnabled: () => copies.has(current()),
      execute: () => startAgain(app, current()).catch(showError),
    });
    palette?.addItem({ command: COMMAND, category: "Notebook Operations" });
    menu?.fileMenu.addGroup([{ command: COMMAND }], 20);
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel, context) => void attend(app, panel, context).catch(() => {}),
    });
  }

  function showError(error) {
    jupyter.Notification.error(String(error.message ?? error));
  }

  // Starts the chapter in `panel` again; what the reader has done is saved and kept first.
  async function startAgain(app, panel) {
    const { context } = panel;
    if (context.model.dirty) await context.save();
    const { title, changed } = await ask(app, context.path);
    if (!(await isConfirmed(title, changed))) return;
    const { copy, kept } = await ask(app, context.path, { again: true });
    await context.sessionContext.shutdown();
    forgetGuesses(context.model.toString());
    context.model.dirty = false; // it was saved, and is kept
    panel.close();
    await app.commands.execute("docmanager:open", { path: copy });
    const text = `What you had is kept as ${kept}.`;
    if (kept) jupyter.Notification.success(text, { autoClose: false });
  }

  // Forgets what pictures remember of the guesses that stand in a notebook.
  function forgetGuesses(text) {
    globalThis.manyRanksKept?.clear(); // until the page is closed, and in the browser
    for (const key of Object.keys(localStorage).filter((one) => one.startsWith(GUESSED))) {
      const question = JSON.stringify(key.slice(GUESSED.length)).slice(1, -1);
      if (text.includes(question)) localStorage.removeItem(key);
    }
  }

  async function isConfirmed(title, isChanged) {
    const { Dialog, showDialog } = jupyter;
    const fresh = "You get the chapter as it is stored, with a new kernel.";
    const body = isChanged ? `${fresh} What you have done is kept in a file beside it.` : fresh;
    const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: "Start again" })];
    const answer = await showDialog({ title: `Start ${title} again?`, body, buttons });
    return answer.button.accept;
  }

  // Looks at a notebook that was opened: a stored chapter offers the reader's copy, a copy can be
  // started again.
  async function attend(app, panel, context) {
    await context.ready;
    const chapter = await ask(app, context.path);
    if (!chapter.copy || panel.isDisposed) return;
    if (chapter.is_copy) attendCopy(app, panel, chapter);
    else offerCopy(app, panel, chapter);
  }

  function offerCopy(app, panel, { title }) {
    const open = async () => {
      const { copy } = await ask(app, panel.context.path, {});
      await app.commands.execute("docmanager:open", { path: copy });
      panel.close();
    };
    const actions = [{ label: "Open my copy", callback: () => open().catch(showError) }];
    const message = `This is ${title} as the course stores it. To work in it, open your own copy.`;
    jupyter.Notification.info(message, { actions, autoClose: 15_000 });
  }

  function attendCopy(app, panel, chapter) {
    const { Notification, ToolbarButton } = jupyter, label = "Start again";
    const { title, newer } = chapter, { path } = panel.context;
    const onClick = () => startAgain(app, panel).catch(showError);
    copies.add(panel);
    const button = new ToolbarButton({ label, onClick, tooltip: LABEL });
    panel.toolbar.insertBefore("spacer", "many-ranks-again", button);
    const askOfIt = (...order) => ask(app, path, ...order);
    manyRanksPlace(app, panel, chapter, ToolbarButton, askOfIt).catch(() => {});
    if (!newer) return;
    const message = `${title} has been revised since your copy was made. ` +
      "Your copy is as you left it.";
    const actions = [{ label, callback: onClick, displayType: "accent" }];
    Notification.info(message, { actions, autoClose: false });
  }
}
