// Real buttons and inputs with labels. A control is data: {kind, name, label, ...}, or a function
// that makes it from the state; `build` gives its node and what brings it up to date.

const hears = /^(button|input|select|textarea|summary|canvas|pre)$/; // may have the focus

export function make(tag, more = {}, ...children) {
  const node = document.createElement(tag);
  // JupyterLab would cut the cell at an x; it asks the node that has the focus, not those around it
  if (hears.test(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const [name, value] of Object.entries(more)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const builders = {
  // A number on a line: {min, max, step, show: value => words}.
  slider(now, set, state) {
    const input = make("input", {
      type: "range",
      oninput: () => set({ [now().name]: Number(input.value) }),
    });
    const value = make("output");
    const words = make("span", { text: now().label });
    const node = make("label", { class: "mrom-slider" }, words, input, value);
    return [node, () => {
      const { name, min, max, step = 1, show = String, label } = now();
      Object.assign(input, { min, max, step, value: state[name] });
      words.textContent = label;
      value.textContent = show(state[name], state);
      input.setAttribute("aria-valuetext", value.textContent);
    }];
  },

  // One of several: {options: [[value, words], ...]}.
  choice(now, set, state) {
    const input = make("select", {
      onchange: () => set({ [now().name]: now().options[input.selectedIndex][0] }),
    });
    const node = make("label", { class: "mrom-choice" }, make("span", { text: now().label }), input);
    let listed = "";
    return [node, () => {
      const { name, options } = now(), text = JSON.stringify(options);
      if (text !== listed) {
        input.replaceChildren(...options.map(([, words]) => make("option", { text: words })));
        listed = text;
      }
      input.selectedIndex = options.findIndex(([value]) => value === state[name]);
    }];
  },

  // Yes or no.
  toggle(now, set, state) {
    const input = make("input", {
      type: "checkbox",
      onchange: () => set({ [now().name]: input.checked }),
    });
    const node = make("label", { class: "mrom-toggle" }, input, make("span", { text: now().label }));
    return [node, () => (input.checked = Boolean(state[now().name]))];
  },

  // Does something: press(state) returns what changes; off(state) says when it cannot; `says` is
  // its name where the label is a sign.
  button(now, set, state) {
    const node = make("button", { type: "button", onclick: () => set(now().press(state) || {}) });
    return [node, () => {
      node.textContent = now().label;
      node.disabled = Boolean(now().off?.(state));
      if (now().says) node.setAttribute("aria-label", (node.title = now().says));
    }];
  },

  // A line of text and a button: enter(text, state) returns what changes. {action, hint, type}
  entry(now, set, state) {
    const { label, action, hint = "", type = "text" } = now();
    const give = () => set(now().enter(input.value, state) || {});
    const onkeydown = (event) => { // JupyterLab lets no form be submitted
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      give();
    }; // prettier-ignore
    const more = { type, placeholder: hint, autocomplete: "off", inputmode: now().mode };
    const input = make("input", { ...more, onkeydown });
    const button = make("button", { type: "button", text: action, onclick: give });
    const words = make("label", { class: "mrom-entry" }, make("span", { text: label }), input);
    const node = make("form", { onsubmit: (event) => event.preventDefault() }, words, button);
    return [node, () => {
      input.disabled = button.disabled = Boolean(now().off?.(state));
      const given = now().given?.(state);
      if (given !== undefined && document.activeElement !== input) input.value = given;
    }];
  },

  // Runs state[name] from min to max in `seconds`, whole steps where `step` is given. With `jump`
  // it moves all the time, and back and ahead go to the next multiple: ahead by moving there.
  player(now, set, state) {
    let last = 0, running = false, carried = 0, until = null;
    const { label, name } = now();
    const go = (to) => {
      const { min, max } = now();
      set({ [name]: Math.min(max, Math.max(min, to)) });
    };
    const hold = () => ((running = false), set({}));
    const tick = (time) => {
      if (!running || !node.isConnected) return void (running = false);
      const { min, max, step, seconds } = now();
      carried += ((time - (last || time)) / 1000 / seconds) * (max - min);
      last = time;
      const moved = step ? Math.floor(carried / step) * step : carried, end = until ?? max;
      if (moved) (carried -= moved), go(Math.min(end, state[name] + moved));
      if (state[name] >= end) return hold();
      requestAnimationFrame(tick);
    };
    const start = (end) => {
      const waits = !running; // else a tick is on its way
      [running, last, carried, until] = [true, 0, 0, end];
      set({});
      if (waits) requestAnimationFrame(tick);
    };
    const play = () => {
      if (running) return hold();
      if (state[name] >= now().max) go(now().min);
      start(null);
    };
    const jump = (way) => () => {
      const { min, max, step, jump: by } = now();
      if (by && way > 0 && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
        if (running && until !== null) go(until); // pressed again: no need to watch it
        if (state[name] < max) start((Math.floor(state[name] / by + 1e-9) + 1) * by);
        return;
      }
      running = false;
      if (!by) return go(state[name] + way * (step || (max - min) / 50));
      const at = state[name] / by;
      go((way > 0 ? Math.floor(at + 1e-9) + 1 : Math.ceil(at - 1e-9) - 1) * by);
    };
    const fine = () => ({ step: (now().max - now().min) / 500, ...now() });
    const back = make("button", { type: "button", text: "◂", "aria-label": `${label}: back`, onclick: jump(-1) });
    const toggle = make("button", { type: "button", class: "mrom-play", onclick: play });
    const ahead = make("button", { type: "button", text: "▸", "aria-label": `${label}: ahead`, onclick: jump(1) });
    const [line, update] = builders.slider(fine, (change) => ((running = false), set(change)), state);
    const node = make("span", { class: "mrom-player" }, toggle, back, ahead, line);
    return [node, () => {
      toggle.textContent = running ? "Pause" : "Play";
      toggle.setAttribute("aria-label", `${label}: ${running ? "pause" : "play"}`);
      update();
    }];
  },

  // Asks the kernel, where one runs: ask(state) is what it is told; new data come back.
  ask(now, set, state, kernel) {
    const node = make("button", { type: "button", onclick: () => kernel.ask(now().name, state) });
    return [node, () => {
      node.disabled = !kernel.alive || kernel.busy;
      node.textContent = kernel.busy ? "running …" : now().label;
      node.title = kernel.alive ? "" : "needs a running kernel: open the chapter in JupyterLab";
    }];
  },
};

export function build(control, set, state, kernel) {
  const now = () => (typeof control === "function" ? control(state) : control);
  const made = builders[now().kind];
  if (!made) throw new Error(`No control is called ${now().kind}.`);
  const [node, update] = made(now, set, state, kernel);
  return {
    node,
    update: () => {
      node.hidden = Boolean(now().hidden);
      update();
    },
  };
}
