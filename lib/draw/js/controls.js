// Real buttons and inputs with labels. A control is data: {kind, name, label, hidden, isFolded},
// or a function that makes it from the state. Each kind has a builder, which gives its node and
// what brings it up to date; `now()` is the control as it is now, `set(changes)` changes the state.
import { changesTo, jumpAhead, jumpBack, makeMotion } from "./motion.js";

const focusable = /^(button|input|select|textarea|summary|canvas|pre)$/;

// Makes a node of the page: attributes, `text`, listeners (`onclick`), children.
export function element(tag, more = {}, ...children) {
  const node = document.createElement(tag);
  // JupyterLab would cut the cell at an x; it asks the node that has the focus, not those around it
  if (focusable.test(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const [name, value] of Object.entries(more)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Builds a control: its node, and `update` to call when the state has changed.
export function buildControl(control, set, state, kernel, moving = []) {
  const now = () => (typeof control === "function" ? control(state) : control);
  const builder = builders[now().kind];
  if (!builder) throw new Error(`No control is called ${now().kind}.`);
  const [node, update] = builder(now, set, state, kernel, moving);
  return {
    node,
    isFolded: Boolean(now().isFolded),
    update() {
      node.hidden = Boolean(now().hidden);
      update();
    },
  };
}

const builders = { slider, choice, toggle, button, reset, entry, player, ask };

// A number on a line: {min, max, step, show: value => text}.
function slider(now, set, state) {
  const oninput = () => set({ [now().name]: Number(input.value) });
  const input = element("input", { type: "range", oninput });
  const value = element("output"), caption = element("span", { text: now().label });
  const node = element("label", { class: "mrom-slider" }, caption, input, value);
  return [node, () => {
    const { name, min, max, step = 1, show = String, label } = now();
    Object.assign(input, { min, max, step, value: state[name] });
    caption.textContent = label;
    value.textContent = show(state[name], state);
    input.setAttribute("aria-valuetext", value.textContent);
  }];
}

// One of several: {options: [[value, text], ...]}.
function choice(now, set, state) {
  const onchange = () => set({ [now().name]: now().options[input.selectedIndex][0] });
  const input = element("select", { onchange }), caption = element("span", { text: now().label });
  const node = element("label", { class: "mrom-choice" }, caption, input);
  let listed = "";
  return [node, () => {
    const { name, options } = now(), key = JSON.stringify(options);
    if (key !== listed) {
      input.replaceChildren(...options.map(([, text]) => element("option", { text })));
      listed = key;
    }
    input.selectedIndex = options.findIndex(([value]) => value === state[name]);
  }];
}

// Yes or no.
function toggle(now, set, state) {
  const onchange = () => set({ [now().name]: input.checked });
  const input = element("input", { type: "checkbox", onchange });
  const caption = element("span", { text: now().label });
  const node = element("label", { class: "mrom-toggle" }, input, caption);
  return [node, () => (input.checked = Boolean(state[now().name]))];
}

// Does something: press(state) returns what changes; off(state) tells when it cannot; `title` is
// its name where the label is a sign.
function button(now, set, state) {
  const node = element("button", { type: "button", onclick: () => set(now().press(state) || {}) });
  return [node, () => {
    const { label, off, title } = now();
    node.textContent = label;
    node.disabled = Boolean(off?.(state));
    if (title) node.setAttribute("aria-label", node.title = title);
  }];
}

// Begins anew, as a button does; until the next change it takes that back. What only moves over the
// picture is no change.
function reset(now, set, state, kernel, moving) {
  let before = null, after = {}; // the state before it was pressed, and just after
  const settled = () =>
    Object.fromEntries(Object.entries(state).filter(([name]) => !moving.includes(name)));
  const canUndo = () =>
    Boolean(before) && Object.keys(after).every((name) => state[name] === after[name]);
  const onclick = () => {
    const back = canUndo() ? before : null;
    before = back ? null : settled();
    set(back || now().press(state));
    after = settled();
  };
  const node = element("button", { type: "button", onclick });
  return [node, () => {
    node.textContent = canUndo() ? "Undo reset" : now().label;
    node.disabled = !canUndo() && Boolean(now().off?.(state));
  }];
}

// A line of text and a button: enter(text, state) returns what changes; given(state) is what the
// line holds from now on, undefined for what it holds; wrong(state) is the sentence that refuses
// what was entered. {action, hint, isNumber}
function entry(now, set, state) {
  const { label, action, hint = "", isNumber } = now();
  const give = () => set(now().enter(input.value, state) || {});
  const onkeydown = (event) => { // JupyterLab lets no form be submitted
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    give();
  };
  const inputmode = isNumber && hasPoint() ? "decimal" : null;
  const more = { type: "text", placeholder: hint, autocomplete: "off", inputmode };
  const input = element("input", { ...more, onkeydown });
  const id = `mrom-wrong-${Math.random().toString(36).slice(2)}`; // other texts are on the page too
  const trouble = element("span", { class: "mrom-wrong", id, role: "alert" });
  const submit = element("button", { type: "button", text: action, onclick: give });
  const caption = element("span", { text: label });
  const line = element("label", { class: "mrom-entry" }, caption, input);
  const onsubmit = (event) => event.preventDefault();
  const node = element("form", { onsubmit }, line, submit, trouble);
  return [node, () => {
    const wrong = now().wrong?.(state) || "";
    if (trouble.textContent !== wrong) trouble.textContent = wrong;
    for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", id]]) {
      if (wrong) input.setAttribute(name, value);
      else input.removeAttribute(name);
    }
    input.disabled = submit.disabled = Boolean(now().off?.(state));
    const given = now().given?.(state);
    if (given === undefined || wrong) return; // what was refused stands, to be mended
    if (document.activeElement !== input) input.value = given;
  }];
}

// Whether a phone's keys for numbers have the point that numbers are written with here; where it is
// a comma, they might have no other.
function hasPoint() {
  return (0.5).toLocaleString().includes(".");
}

// Runs state[name] from min to max in `seconds`, whole steps where `step` is given. With `jump` it
// moves all the time, and back and ahead go to the next multiple: ahead by moving there. `zoomed`
// is that of zoom.js, where a part of the time is shown; `moments()` are those at which something
// begins or ends, for readers who want no motion.
function player(now, set, state) {
  const { label } = now(), motion = makeMotion(now, set, state, () => node.isConnected);
  const sign = (text, name, onclick) =>
    element("button", { type: "button", text, "aria-label": `${label}: ${name}`, onclick });
  const back = sign("◂", "back", () => jumpBack(now, state, motion));
  const ahead = sign("▸", "ahead", () => jumpAhead(now, state, motion));
  const play = sign("Play", "play", motion.toggle);
  play.className = "mrom-play";
  const byHand = (changes) => {
    motion.isRunning = false;
    set(changesTo(now(), state, changes[now().name]));
  };
  const fine = () => ({ step: (now().max - now().min) / 500, ...now() });
  const [line, update] = slider(fine, byHand, state);
  const node = element("span", { class: "mrom-player" }, play, back, ahead, line);
  return [node, () => {
    play.textContent = motion.isRunning ? "Pause" : "Play";
    play.setAttribute("aria-label", `${label}: ${motion.isRunning ? "pause" : "play"}`);
    update();
  }];
}

// Asks the kernel, where one runs: it is sent the state, and new data come back.
function ask(now, set, state, kernel) {
  const onclick = () => kernel.ask(now().name, state);
  const button = element("button", { type: "button", onclick });
  const trouble = element("span", { class: "mrom-trouble", role: "status" });
  const node = element("span", { class: "mrom-ask" }, button, trouble);
  return [node, () => {
    button.disabled = !kernel.isAlive || kernel.isBusy;
    button.textContent = kernel.isBusy ? "running …" : now().label;
    const why = kernel.isAlive ? kernel.trouble : kernel.trouble || missingKernel();
    if (trouble.textContent !== why) trouble.textContent = why;
  }];
}

// What a reader does to have a kernel behind a picture that was stored.
function missingKernel() {
  const isInLab = document.querySelector(".jp-Notebook");
  return isInLab ? "Run the cell above first." : "This needs JupyterLab: open the chapter there.";
}

// Whoever had the keyboard in a picture's controls keeps it: what was pressed may be hidden now,
// and the first control that is shown gets it.
export function refocusControls() {
  const root = document.activeElement?.shadowRoot || document;
  const controls = root.activeElement?.closest(".mrom-controls");
  const first = ":is(input, button):not([hidden], [hidden] *)";
  const give = () => controls?.querySelector(first)?.focus();
  requestAnimationFrame(() => requestAnimationFrame(give));
}

// Copies a text to the clipboard; tells whether it could. Works from a file as well, and on pages
// that are not served by https.
export function copyText(text) {
  const area = element("textarea", {
    style: "position:fixed;top:0;opacity:0",
    "aria-hidden": "true",
  });
  let focus = document.activeElement;
  while (focus?.shadowRoot?.activeElement) focus = focus.shadowRoot.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focus?.focus();
  return isCopied;
}
