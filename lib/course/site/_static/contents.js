// On a phone the contents of a page are a drawer over it: who has chosen a section wants to see it.

"use strict";

document.addEventListener("click", ({ target }) => {
  target.closest("dialog[open] a[href*='#']")?.closest("dialog").close();
});

// With large letters the list of chapters is a drawer in wider windows too (narrow.css), while the
// theme's button asks only for the width in pixels whether it opens a drawer.
{
  const ask = globalThis.matchMedia.bind(globalThis);
  const isColumn = "(min-width: 992px)";
  globalThis.matchMedia = (query) =>
    ask(query === isColumn ? `${isColumn} and (min-width: 43.01em)` : query);
}
