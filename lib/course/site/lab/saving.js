// What a notebook's file keeps of its pictures. JupyterLab's widgets (their setting `saveState`)
// would store only what a kernel has made since it started, and drop the pictures of every cell
// that was not run; and they would call a notebook changed as soon as it is opened. So that
// setting is off, and a file holds the widgets that its outputs show and all that those point to:
// as they are now where a kernel has them, else as the file had them.

"use strict";

{
  const VIEW = "application/vnd.jupyter.widget-view+json";
  const STATE = "application/vnd.jupyter.widget-state+json";
  const POINTER = "IPY_MODEL_";
  const PATIENCE = 30_000; // milliseconds for JupyterLab to read what a notebook stores
  const attended = new WeakSet(); // a notebook may be seen in two tabs

  const storedBy = (widgets) => widgets?.[STATE]?.state ?? {};

  // The ids of the widgets that outputs or a widget's state point to, at any depth.
  function* targets(part) {
    if (typeof part === "string") {
      if (part.startsWith(POINTER)) yield part.slice(POINTER.length);
    } else if (part && typeof part === "object") {
      if (part[VIEW]) yield part[VIEW].model_id;
      for (const value of Object.values(part)) yield* targets(value);
    }
  }

  // {id: state} of what the cells show; `look(id)` gives the state of one, undefined for none.
  function shown(cells, look) {
    const states = {};
    const visit = (part) => {
      for (const id of targets(part)) {
        const state = id in states ? undefined : look(id);
        if (state) visit((states[id] = state).state);
      }
    };
    for (const { outputs } of cells) visit(outputs);
    return states;
  }

  // The state of one widget as JupyterLab would store it, with its kernel or without.
  function serialized(manager, id) {
    const model = Object.create(manager._modelsSync.get(id), { comm_live: { value: true } });
    const alone = { _modelsSync: new Map([[id, model]]) };
    return manager.get_state_sync.call(alone, { drop_defaults: true }).state[id];
  }

  // JupyterLab's widgets are reached through the renderers of their pictures, to which they are
  // given. From then on `managers` knows them by notebook, and they wait for what is stored: on a
  // slow start they would look for a picture before they have read it, and call it "not found".
  const managers = new WeakMap();
  let listening = false;
  function listen(rendermime) {
    const renderer = listening
      ? null
      : rendermime.getFactory(VIEW)?.createRenderer({ mimeType: VIEW });
    if (!renderer) return;
    listening = true;
    const kind = Object.getPrototypeOf(renderer);
    const { set } = Object.getOwnPropertyDescriptor(kind, "manager");
    const give = function (manager) {
      if (manager.context && managers.get(manager.context) !== manager) attend(manager);
      set.call(this, manager);
    };
    Object.defineProperty(kind, "manager", { set: give, configurable: true });
    renderer.dispose();
  }

  function attend(manager) {
    const { context } = manager;
    managers.set(context, manager);
    const find = manager.get_model.bind(manager);
    manager.get_model = async (id) => {
      const end = Date.now() + PATIENCE;
      const stored = () =>
        !manager.isDisposed && storedBy(context.model.getMetadata("widgets"))[id];
      while (!manager.has_model(id) && stored() && Date.now() < end) {
        await new Promise((done) => setTimeout(done, 20));
      }
      return find(id);
    };
  }

  globalThis.manyRanksSaving = async (panel, context) => {
    const { content: { rendermime } } = panel, { model, saveState } = context;
    listen(rendermime);
    if (attended.has(context)) return;
    attended.add(context);
    await context.ready;
    listen(rendermime);

    // A chapter does not store which Python ran it: that would differ from machine to machine.
    const bare = model.getMetadata("kernelspec")?.name && !model.getMetadata("language_info")?.name;
    const plain = model.toJSON.bind(model);
    model.toJSON = () => {
      const notebook = plain();
      const { metadata, cells } = notebook;
      const stored = storedBy(metadata.widgets), manager = managers.get(context);
      const state = shown(cells, (id) => {
        const live = manager?._modelsSync?.get(id);
        return live && (live.comm_live || !stored[id]) ? serialized(manager, id) : stored[id];
      });
      const whole = { state, version_major: 2, version_minor: 0 };
      if (Object.keys(state).length) metadata.widgets = { ...metadata.widgets, [STATE]: whole };
      else if (metadata.widgets) delete metadata.widgets[STATE];
      if (bare) delete metadata.language_info;
      return notebook;
    };

    // A kernel writes of itself into the notebook: that alone is no change that wants saving.
    let saved = model.toString(), saving;
    saveState.connect((_, stage) => {
      if (stage === "started") saving = model.toString();
      if (stage === "completed") saved = saving;
    });
    context.fileChanged.connect(() => (saved = model.toString())); // also after a revert
    const settle = () => {
      if (model.dirty && model.toString() === saved) model.dirty = false;
    };
    model.stateChanged.connect((_, { name }) => name === "dirty" && settle());
    settle();
  };
}
