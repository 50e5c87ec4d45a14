// On a phone the contents of a page are a drawer over it: who has chosen a section wants to see it.

"use strict";

document.addEventListener("click", ({ target }) => {
  target.closest("dialog[open] a[href*='#']")?.closest("dialog").close();
});
