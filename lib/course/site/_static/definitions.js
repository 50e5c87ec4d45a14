// Shows the definition of a marked word beside it: under the pointer, with the keyboard's focus, or
// after a tap. In the book the marks are in the page and are links to the glossary's own page; in
// JupyterLab ../lab/glossary.js makes them. A plain script, for pages from file:// load no modules.

"use strict";

{
  const DELAY = 150, GRACE = 300; // milliseconds before it opens, and for the way into the box
  const MARGIN = 8; // pixels between box and window
  const box = document.createElement("span");
  let shown, timer, touched; // the mark whose definition is seen; whether a finger was the last

  const element = (name, text, options = {}) =>
    Object.assign(document.createElement(name), { textContent: text }, options);

  // The box stands behind its mark, so that Tab leads from the mark into the box.
  function show(mark, entry) {
    clearTimeout(timer);
    if (shown === mark) return;
    hide();
    shown = mark;
    const parts = [element("b", entry.name), `: ${entry.means} ${entry.more} Explained in `];
    entry.links.forEach(([text, href, open], place) => {
      const link = element("a", text, { href });
      if (open) link.addEventListener("click", (event) => (event.preventDefault(), open()));
      parts.push(place ? ", " : "", link);
    });
    box.replaceChildren(...parts, ".");
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
