// A JupyterLab extension without a build. JupyterLab loads this file, which loads the others:
// pictures.js, saving.js (what a notebook's file holds), keys.js (those that mean the notebook),
// copies.js (the reader's own chapters), places.js (where the reader is in them), course.js (the
// first page), asking.js (the server), seconds.js (what takes long says so), bars.js (buttons in a
// cell), exercises.js (those of an exercise), missing.js (those of a cell that misses a name),
// progress.js (what is told of a long call), and definitions.js and glossary.js (marked words).
//
// JupyterLab's widgets read what a notebook stores of them only once it has a kernel: with
// "No Kernel" they say "Loading widget..." for ever (jupyter-widgets/ipywidgets issues 3773 and
// 3970). Here a trusted notebook's pictures live all the same, from what it stores; what runs
// later, on a kernel, is JupyterLab's own again.

"use strict";

{
  const VIEW = "application/vnd.jupyter.widget-view+json";
  const STATE = "application/vnd.jupyter.widget-state+json";
  let shelf; // the modules that JupyterLab shares

  const shared = async (name) => (await Object.values(shelf[name])[0].get())();

  // JupyterLab's own renderers of widgets in a notebook: each waits for a `manager`.
  const renderers = ({ content }) =>
    content.widgets
      .filter((cell) => cell.model.type === "code")
      .flatMap((cell) => cell.outputArea.widgets.flatMap((output) => [...output.children()]))
      .filter((renderer) => renderer._manager);

  async function attend(panel, context) {
    const { sessionContext, model } = context;
    await Promise.all([context.ready, sessionContext.ready]);
    const trusted = [...model.cells].every((cell) => cell.type !== "code" || cell.trusted);
    const stored = model.getMetadata("widgets")?.[STATE]?.state;
    if (sessionContext.session?.kernel || !trusted || !stored || panel.isDisposed) return;
    const [{ Widget }, { registerWidgetManager }] = await Promise.all(
      ["@lumino/widgets", "@jupyter-widgets/jupyterlab-manager"].map(shared),
    );
    const pictures = manyRanksStored(stored);
    const manager = {
      restoredStatus: true,
      restored: { connect() {} },
      async get_model(id) {
        if (!pictures.has(id)) throw new Error(`The notebook stores no picture ${id}.`);
        return id;
      },
      async create_view(id) {
        const luminoWidget = new Widget();
        await pictures.show(id, luminoWidget.node);
        return { luminoWidget };
      },
    };
    const { rendermime } = panel.content;
    const factory = rendermime.getFactory(VIEW);
    const give = (renderer) => Object.assign(renderer, { manager });
    rendermime.removeMimeType(VIEW);
    rendermime.addFactory(
      { ...factory, mimeTypes: [VIEW], createRenderer: (o) => give(factory.createRenderer(o)) },
      -10,
    );
    renderers(panel).forEach(give);
    const handOver = (_, { newValue: kernel }) => {
      if (!kernel) return;
      sessionContext.kernelChanged.disconnect(handOver);
      registerWidgetManager(context, rendermime, renderers(panel));
    };
    sessionContext.kernelChanged.connect(handOver);
  }

  const extension = {
    id: "many-ranks:stored",
    autoStart: true,
    activate(app) {
      app.docRegistry.addWidgetExtension("Notebook", {
        createNew(panel, context) {
          void manyRanksSaving(panel, context);
          void attend(panel, context);
          manyRanksProgress(panel);
          manyRanksKeys(app, panel, context);
          void manyRanksSeconds(panel, context, shared);
        },
      });
    },
  };

  const here = document.currentScript.src;
  function load(name) {
    const loader = document.createElement("script");
    loader.src = new URL(name, here);
    loader.async = false; // in the order of `names`: each uses what those before it made
    document.head.append(loader);
    return new Promise((done) => loader.addEventListener("load", done));
  }
  const names = ["pictures", "saving", "keys", "asking", "copies", "places", "course"];
  names.push("seconds", "bars", "exercises", "missing", "progress", "definitions", "glossary");
  const loaded = Promise.all(names.map((name) => load(`${name}.js`)));
  const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet" });
  sheet.href = new URL("course.css", here);
  document.head.append(sheet);

  (window._JUPYTERLAB ??= {})["many-ranks"] = {
    init: (scope) => (shelf = scope) && loaded,
    async get() {
      const others = [manyRanksCopies, manyRanksCourse, manyRanksExercises, manyRanksMissing];
      const made = [...others, manyRanksGlossary].map((plugin) => plugin(shared));
      const plugins = [extension, ...(await Promise.all(made))];
      return () => plugins;
    },
  };
}
