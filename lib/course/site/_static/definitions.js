// Shows the definition of a marked word beside it: under the pointer, with the keyboard's focus, or
// after a tap. Tab stops at one word of a section; the arrow keys lead from it to the other words,
// and into the open box with its links. In the book the marks are in the page and are links to the
// glossary's own page; in JupyterLab ../lab/glossary.js makes them. A plain script, for pages from
// file:// load no modules.

"use strict";

{
  const DELAY = 150, GRACE = 300; // milliseconds before it opens, and for the way into the box
  const MARGIN = 8; // pixels between box and window
  const KEYS = "Arrow keys: ↓ to the links in this box, → to the next word.";
  const GROUP = "section, details, .jp-Cell"; // each has one word at which Tab stops
  const box = document.createElement("span");
  let shown, timer, touched; // the mark whose definition is seen; whether a finger was the last

  const element = (name, text, options = {}) =>
    Object.assign(document.createElement(name), { textContent: text }, options);

  // The box stands behind its mark, so that Tab leads from its links to what follows the mark.
  function show(mark, entry) {
    clearTimeout(timer);
    if (shown === mark) return;
    hide();
    shown = mark;
    const parts = [element("b", entry.name), `: ${entry.means} ${entry.more} Explained in `];
    entry.links.forEach(([text, href, open], place) => {
      const link = element("a", text, { href, tabIndex: -1 });
      if (open) link.addEventListener("click", (event) => (event.preventDefault(), open()));
      parts.push(place ? ", " : "", link);
    });
    if (mark.matches(":focus-visible")) parts.push(".", element("small", KEYS));
    else parts.push(".");
    box.replaceChildren(...parts);
    mark.after(box);
    mark.setAttribute("aria-describedby", box.id);
    box.showPopover?.();
    place();
  }

  function hide() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = undefined;
    box.remove();
  }

  const later = (call, wait) => {
    clearTimeout(timer);
    timer = setTimeout(call, wait);
  };

  // Below the mark, or above it where there is no room; never beyond the window's sides.
  function place() {
    if (!shown) return;
    const [line] = shown.getClientRects();
    const { width, height } = box.getBoundingClientRect();
    const room = document.documentElement;
    const left = Math.min(line.left, room.clientWidth - width - MARGIN);
    const below = line.bottom + height + MARGIN < room.clientHeight || line.top < height + MARGIN;
    box.style.left = `${Math.max(MARGIN, left)}px`;
    box.style.top = `${below ? line.bottom + 2 : line.top - height - 2}px`;
  }

  const seenMarks = (root) =>
    [...root.querySelectorAll("a.term")].filter((a) => a.checkVisibility());

  // Tab stops at the word that has the focus, and at the first one of each other group.
  function setStops(root) {
    const focused = box.contains(document.activeElement) ? shown : document.activeElement;
    const stops = new Map([[focused?.closest(GROUP), focused]]);
    if (!focused?.matches("a.term")) stops.clear();
    for (const mark of seenMarks(root)) {
      const group = mark.closest(GROUP);
      if (!stops.has(group)) stops.set(group, mark);
      mark.tabIndex = stops.get(group) === mark ? 0 : -1;
    }
  }

  // Where an arrow key leads from a word, or from a link in its open box; undefined for nowhere.
  function beside(root, node, key) {
    const line = box.contains(node) || shown === node ? [shown, ...box.querySelectorAll("a")] : [];
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step) return line[line.indexOf(node) + step];
    const marks = seenMarks(root), place = marks.indexOf(line[0] ?? node);
    return marks[place + { ArrowRight: 1, ArrowLeft: -1 }[key]];
  }

  // Lets the marks inside `root` show what `look(anchor)` gives: {name, means, more, links}.
  globalThis.manyRanksTerms = (root, look) => {
    const markOf = ({ target }) => target.closest?.("a.term");
    const open = (mark) => {
      const entry = look(new URL(mark.href).hash.slice(1));
      if (entry) show(mark, entry);
    };
    root.addEventListener("pointerover", (event) => {
      const mark = markOf(event);
      if (event.pointerType === "touch") return;
      if (mark && mark !== shown) later(() => open(mark), DELAY);
      else if (mark || box.contains(event.target)) clearTimeout(timer);
    });
    root.addEventListener("pointerout", (event) => {
      if (event.pointerType === "touch" || !(markOf(event) || box.contains(event.target))) return;
      if (!shown?.contains(document.activeElement)) later(hide, GRACE);
    });
    root.addEventListener("focusin", (event) => {
      const mark = markOf(event);
      if (mark?.matches(":focus-visible")) open(mark);
      else if (shown && !box.contains(event.target) && mark !== shown) hide();
    });
    root.addEventListener("keydown", (event) => {
      if (!/^Arrow/.test(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
      if (!markOf(event) && !box.contains(event.target)) return;
      const node = beside(root, event.target, event.key);
      if (!node) return;
      event.preventDefault();
      event.stopPropagation();
      node.focus();
    });
    addEventListener("keydown", ({ key }) => key === "Tab" && setStops(root), true);
    setStops(root);
    root.addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"));
    // The first tap shows the definition, the second one follows the link.
    root.addEventListener("click", (event) => {
      const mark = markOf(event);
      if (!mark || !touched || mark === shown) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      open(mark);
    }, true);
  };

  Object.assign(box, { id: "glossary-definition", className: "term-definition" });
  box.setAttribute("popover", "manual");
  box.setAttribute("role", "note");
  box.dataset.lmSuppressShortcuts = "true"; // JupyterLab's keys do nothing in it
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown) return;
    event.stopPropagation();
    if (box.contains(document.activeElement)) shown.focus({ focusVisible: false });
    hide();
  }, true);
  document.addEventListener("pointerdown", ({ target }) => {
    if (shown && target !== shown && !box.contains(target)) hide();
  });
  document.addEventListener("focusout", ({ relatedTarget }) => {
    if (shown && relatedTarget && relatedTarget !== shown && !box.contains(relatedTarget)) hide();
  });
  addEventListener("scroll", place, { capture: true, passive: true });
  addEventListener("resize", place);

  const stored = document.getElementById("glossary-definitions");
  if (stored) {
    const definitions = JSON.parse(stored.textContent);
    manyRanksTerms(document.querySelector("article") ?? document, (anchor) => definitions[anchor]);
  }
}
