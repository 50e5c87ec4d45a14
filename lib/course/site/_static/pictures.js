// Revives pictures without a kernel, from what a notebook stores: the state of all its widgets. In
// the book myst-nb writes that into the page, and an id in each place where a picture is seen; in
// JupyterLab ../lab/stored.js calls `manyRanksStored`. For anywidgets.
// A plain script: a page from file:// may not load modules (it may import what it holds itself).

"use strict";

{
  const signal = new AbortController().signal; // never ended: a picture lives as long as its page
  const modules = new Map(); // by text: each is read once, however many pictures it draws
  const started = new Map(); // by model

  // What a widget's own code may ask of its model; `send` has nobody to reach.
  function revive({ state, buffers = [] }, widget_manager) {
    const values = { ...state };
    const listeners = [];
    for (const { path, data } of buffers) {
      const holder = path.slice(0, -1).reduce((part, key) => part[key], values);
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      holder[path.at(-1)] = new DataView(bytes.buffer);
    }
    const model = {
      get: (key) => values[key],
      set(key, value) {
        const news = Object.entries(typeof key === "string" ? { [key]: value } : key);
        const changed = news.filter(([name, value]) => values[name] !== value);
        for (const [name, value] of changed) values[name] = value;
        for (const [name, value] of changed) notify(`change:${name}`, model, value);
        if (changed.length) notify("change", model);
      },
      on(names, call) {
        for (const name of names.split(" ")) listeners.push({ name, call });
      },
      off(names, call) {
        const isMeant = ({ name, call: other }) =>
          (!names || names.split(" ").includes(name)) && (!call || call === other);
        listeners.splice(0, listeners.length, ...listeners.filter((one) => !isMeant(one)));
      },
      save_changes() {},
      send() {},
      widget_manager,
    };
    const notify = (name, ...details) =>
      listeners.filter((one) => one.name === name).forEach((one) => one.call(...details));
    return model;
  }

  function load(text) {
    if (!modules.has(text)) {
      const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      modules.set(text, import(address).finally(() => URL.revokeObjectURL(address)));
    }
    return modules.get(text);
  }

  async function start(model) {
    const { default: exported } = await load(model.get("_esm"));
    const widget = typeof exported === "function" ? await exported() : exported;
    await widget.initialize?.({ model, signal });
    return widget;
  }

  // stored: {id: {state, buffers}}. `has` is whether a picture can be shown; `show` draws it.
  globalThis.manyRanksStored = (stored) => {
    const models = new Map();
    const manager = { get_model: async (id) => models.get(id) };
    for (const [id, one] of Object.entries(stored)) models.set(id, revive(one, manager));
    return {
      has: (id) => Boolean(models.get(id)?.get("_esm")),
      async show(id, el) {
        const model = models.get(id);
        if (!started.has(model)) started.set(model, start(model));
        await (await started.get(model)).render?.({ model, el, signal });
      },
    };
  };

  // The book: the living picture takes the place of its still, which is kept for paper; where that
  // fails, the still remains.
  const find = (name) =>
    document.querySelectorAll(`script[type="application/vnd.jupyter.widget-${name}+json"]`);
  const read = (script) => JSON.parse(script.textContent);
  const pictures = manyRanksStored(
    Object.assign({}, ...[...find("state")].map((s) => read(s).state)),
  );
  for (const script of find("view")) {
    const { model_id: id } = read(script);
    if (!pictures.has(id)) continue;
    const el = document.createElement("div");
    script.after(el);
    // A cell may show several pictures side by side in one element: the still that follows is ours.
    const stills = [...script.parentElement.querySelectorAll(".picture-still")];
    const follows = (node) =>
      script.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING;
    const still = stills.find(follows);
    pictures.show(id, el).then(
      () => {
        el.classList.toggle("picture-living", Boolean(still));
        still?.classList.replace("picture-still", "picture-printed");
        still?.querySelector("img")?.classList.remove("picture-still"); // where it stands in a link
      },
      (wrong) => {
        el.remove();
        throw wrong;
      },
    );
  }
}
