// Searches the sections of the book, whose texts `search-sections.js` holds (made by
// ../sections.py when the book is built): [[page, [[anchor, heading, text], ...]], ...].
// A plain script, and nothing is fetched: the page may come from file://.

"use strict";

{
  const SHOWN = 40; // results, the best
  const WIDTH = 240; // letters of an excerpt
  const LETTER = "[\\p{L}\\p{N}]";

  // A pattern for each word: the last may go on, as somebody types it. "all-reduce" is all_reduce.
  function patterns(query) {
    const words = query.trim().split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word));
    return words.map((word, place) => {
      const parts = word.match(/[\p{L}\p{N}]+/gu).join("[-_ .]?");
      const end = place < words.length - 1 ? `s?(?!${LETTER})` : "";
      return new RegExp(`(?<!${LETTER})${parts}${end}`, "giu");
    });
  }

  const count = (text, pattern) => [...text.matchAll(pattern)].length;

  // How well a section answers; 0 where it lacks a word. A heading counts ten times.
  function score([, heading, text], wanted) {
    const each = wanted.map((one) => 10 * count(heading, one) + Math.min(count(text, one), 5));
    return each.every(Boolean) ? each.reduce((sum, one) => sum + one) : 0;
  }

  function search(query) {
    const wanted = patterns(query);
    if (!wanted.length) return [];
    return globalThis.manyRanksSections.flatMap(([page, sections]) =>
      sections.map((section) => ({
        page,
        section,
        chapter: sections[0][1],
        score: score(section, wanted),
      }))
    ).filter((result) => result.score).sort((a, b) => b.score - a.score);
  }

  const ranges = (text, wanted) =>
    wanted.flatMap((one, word) =>
      [...text.matchAll(one)].map(({ index, 0: found }) => [index, index + found.length, word])
    ).sort((a, b) => a[0] - b[0]);

  // The piece of the text that has the most of the words.
  function excerpt(text, wanted) {
    const found = ranges(text, wanted);
    const words = (from) =>
      new Set(found.filter(([a, b]) => a >= from && b <= from + WIDTH).map((one) => one[2])).size;
    const starts = found.map(([at]) => Math.max(0, Math.min(at - 60, text.length - WIDTH)));
    const most = Math.max(...starts.map(words));
    const start = starts.find((one) => words(one) === most) ?? 0;
    const from = start ? text.indexOf(" ", start) + 1 : 0;
    const end = text.indexOf(" ", start + WIDTH);
    return `${from ? "… " : ""}${text.slice(from, end < 0 ? undefined : end)}${
      end < 0 ? "" : " …"
    }`;
  }

  function make(tag, name, ...children) {
    const node = document.createElement(tag);
    if (name) node.className = name;
    node.append(...children);
    return node;
  }

  function marked(tag, name, text, wanted) {
    const node = make(tag, name);
    let done = 0;
    for (const [from, to] of ranges(text, wanted)) {
      if (from < done) continue;
      node.append(text.slice(done, from), make("mark", "", text.slice(from, to)));
      done = to;
    }
    node.append(text.slice(done));
    return node;
  }

  function row({ page, section: [anchor, heading, text], chapter }, wanted) {
    const link = marked("a", "", heading, wanted);
    link.href = `${document.documentElement.dataset.content_root}${page}#${anchor}`;
    const item = make("li", "", link);
    if (chapter !== heading) item.append(make("p", "search-chapter", chapter));
    if (text) item.append(marked("p", "search-excerpt", excerpt(text, wanted), wanted));
    return item;
  }

  function sentence(query, found) {
    if (!query.trim()) return "";
    if (!found) return "No section has all of these words.";
    const many = found === 1 ? "1 section has" : `${found} sections have`;
    const words = query.trim().includes(" ") ? "all of these words" : "this word";
    return `${many} ${words}${found > SHOWN ? `; these are the best ${SHOWN}` : ""}.`;
  }

  const here = document.querySelector("#search-results");
  const status = make("p", "search-status");
  status.setAttribute("role", "status");
  const list = make("ol", "search-list");
  here.append(status, list);

  function show(query) {
    const found = search(query);
    const wanted = patterns(query);
    list.replaceChildren(...found.slice(0, SHOWN).map((one) => row(one, wanted)));
    status.textContent = sentence(query, found.length);
  }

  const field = document.querySelector(".bd-search-container input[name=q]");
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  field.addEventListener("input", () => show(field.value));
  show(field.value);
  field.focus();
  field.select();
}
