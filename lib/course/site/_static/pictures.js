// Revives the pictures of a page without a kernel. myst-nb writes into the page what a notebook
// stores: the state of all its widgets, and an id in each place where one is seen. For anywidgets.
// A plain script: a page from file:// may not load modules (it may import what it holds itself).

(() => {
  const find = (name) =>
    document.querySelectorAll(`script[type="application/vnd.jupyter.widget-${name}+json"]`);
  const signal = new AbortController().signal; // never ended: a picture lives as long as its page
  const models = new Map(); // by id
  const modules = new Map(); // by text: each is read once, however many pictures it draws
  const started = new Map(); // by model

  // What a widget's own code may ask of its model; `send` has nobody to reach.
  function revive({ state, buffers = [] }) {
    const values = { ...state };
    const heard = [];
    for (const { path, data } of buffers) {
      const holder = path.slice(0, -1).reduce((part, key) => part[key], values);
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      holder[path.at(-1)] = new DataView(bytes.buffer);
    }
    const model = {
      get: (key) => values[key],
      set(key, value) {
        const news = Object.entries(typeof key === "string" ? { [key]: value } : key);
        const changed = news.filter(([name, given]) => values[name] !== given);
        for (const [name, given] of changed) values[name] = given;
        for (const [name, given] of changed) tell(`change:${name}`, model, given);
        if (changed.length) tell("change", model);
      },
      on(names, call) {
        for (const name of names.split(" ")) heard.push({ name, call });
      },
      off(names, call) {
        const meant = ({ name, call: other }) =>
          (!names || names.split(" ").includes(name)) && (!call || call === other);
        heard.splice(0, heard.length, ...heard.filter((one) => !meant(one)));
      },
      save_changes() {},
      send() {},
      widget_manager: { get_model: async (id) => models.get(id) },
    };
    const tell = (name, ...words) =>
      heard.filter((one) => one.name === name).forEach((one) => one.call(...words));
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
    const { default: given } = await load(model.get("_esm"));
    const widget = typeof given === "function" ? await given() : given;
    await widget.initialize?.({ model, signal });
    return widget;
  }

  // Puts the living picture where its still stands; where that fails, the still remains.
  async function show(script) {
    const model = models.get(JSON.parse(script.textContent).model_id);
    if (!model?.get("_esm")) return;
    if (!started.has(model)) started.set(model, start(model));
    const widget = await started.get(model);
    const el = document.createElement("div");
    script.after(el);
    try {
      await widget.render?.({ model, el, signal });
    } catch (wrong) {
      el.remove();
      throw wrong;
    }
    script.parentElement.querySelector(".picture-still")?.remove();
  }

  for (const script of find("state")) {
    const { state } = JSON.parse(script.textContent);
    for (const [id, stored] of Object.entries(state)) models.set(id, revive(stored));
  }
  find("view").forEach(show);
})();
