// Fills the section that the reader sees into the address of "Report this" (../report.py).

"use strict";

{
  const link = document.querySelector(".report-link");
  const headings = [...document.querySelectorAll("article :is(h1, h2, h3)")];

  function named(heading) {
    const copy = heading.cloneNode(true);
    copy.querySelector(".headerlink")?.remove();
    return copy.textContent.trim();
  }

  // The last heading that stands in the upper half of the window, or above it.
  const seen = () =>
    headings.findLast((one) => one.getBoundingClientRect().top < innerHeight / 2) ?? headings[0];

  const fill = () => {
    const section = encodeURIComponent(seen() ? named(seen()) : "");
    link.href = link.dataset.address.replaceAll("{section}", section);
  };
  for (const event of ["pointerdown", "focus", "contextmenu"]) link.addEventListener(event, fill);
}
