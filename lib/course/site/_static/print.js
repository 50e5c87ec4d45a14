// Paper is white: a page that is printed in the dark theme takes the light one meanwhile.

"use strict";

{
  const page = document.documentElement;
  let theme = page.dataset.theme;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
  });
  addEventListener("afterprint", () => (page.dataset.theme = theme));
}
