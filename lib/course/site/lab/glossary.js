// The glossary in JupyterLab: words of a chapter are marked where its text is shown, and a command
// lists all of them. Only the page is changed, never the notebook; ../_static/definitions.js shows
// what a word means, and lib/course/tools/lab_server.py says what is marked.
"use strict";

{
  const COMMAND = "many-ranks:glossary";
  const LABEL = "Many Ranks: Glossary";
  const TAB = "many-ranks-glossary";
  const PAUSE = 200; // milliseconds from a change of the page to the marks
  const HEADING = "h1, h2, h3, h4, h5, h6";
  const LEFT_OUT = `${HEADING}, a, code, pre, summary, mjx-container, .term-definition`;
  const here = document.currentScript.src;
  let jupyter; // what JupyterLab shares: its widgets, notifications and its server
  let tab, folder = "my-chapters"; // the list, and where the chapters that were opened last are

  globalThis.manyRanksGlossary = async (shared) => {
    const [apputils, { ServerConnection }, { Widget }] = await Promise.all(
      ["@jupyterlab/apputils", "@jupyterlab/services", "@lumino/widgets"].map(shared),
    );
    jupyter = { ...apputils, ServerConnection, Widget };
    const optional = [apputils.ICommandPalette];
    return { id: COMMAND, autoStart: true, optional, activate };
  };

  function activate(app, palette) {
    const style = { rel: "stylesheet", href: new URL("definitions.css", here).href };
    document.head.append(Object.assign(document.createElement("link"), style));
    app.commands.addCommand(COMMAND, {
      label: LABEL,
      execute: ({ anchor }) => openList(app, anchor).catch(showError),
    });
    palette?.addItem({ command: COMMAND, category: "Help" });
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel, context) => void attend(app, panel, context).catch(() => {}),
    });
  }

  async function ask(app, path = "") {
    const { ServerConnection } = jupyter, settings = app.serviceManager.serverSettings;
    const address = `${settings.baseUrl}many-ranks/glossary?path=${encodeURIComponent(path)}`;
    const answer = await ServerConnection.makeRequest(address, {}, settings);
    if (!answer.ok) throw await ServerConnection.ResponseError.create(answer);
    return answer.json();
  }

  function showError(error) {
    jupyter.Notification.error(String(error.message ?? error));
  }

  // Marks the text of a chapter now, and whenever a cell is rendered anew.
  async function attend(app, panel, context) {
    await context.ready;
    const glossary = await ask(app, context.path);
    if (!glossary.prose || panel.isDisposed) return;
    const { node } = panel.content;
    node.classList.add("many-ranks-chapter"); // for course.css
    folder = context.path.split("/").slice(0, -1).join("/");
    manyRanksTerms(node, (anchor) => told(app, glossary.entries[anchor]));
    node.addEventListener("click", (event) => {
      const mark = event.target.closest?.("a.term");
      if (!mark) return;
      event.preventDefault();
      void app.commands.execute(COMMAND, { anchor: mark.hash.slice(1) });
    });
    let timer;
    const soon = () => {
      clearTimeout(timer);
      timer = setTimeout(() => (markAll(node, glossary), dropEmptyHeaders(node)), PAUSE);
    };
    const observer = new MutationObserver(soon);
    observer.observe(node, { childList: true, subtree: true });
    panel.disposed.connect(() => observer.disconnect());
    soon();
  }

  // A header of a table without a word names no column, as a screen reader would say.
  function dropEmptyHeaders(root) {
    for (const header of root.querySelectorAll(".jp-RenderedMarkdown th")) {
      if (!header.textContent.trim()) header.replaceWith(document.createElement("td"));
    }
  }

  // Marks what is not marked yet: a second time it finds the same words, and changes nothing.
  function markAll(root, { prose, tables, explained, most }) {
    const begin = (heading) => ({ seen: new Set(explained[heading]), left: most });
    let section = begin("");
    for (const part of root.querySelectorAll(".jp-MarkdownCell .jp-RenderedMarkdown")) {
      for (const node of [...nodesOf(part)]) {
        if (node.nodeType === Node.TEXT_NODE) {
          const isInTable = node.parentElement.closest("table");
          markText(node, section, isInTable ? tables : prose);
        } else if (node.matches(HEADING)) {
          section = begin(node.textContent.replace(/¶$/, ""));
        } else {
          section.seen.add(node.hash.slice(1));
          section.left--;
        }
      }
    }
  }

  // The headings, the marks and the texts of a cell in their order. A text with a dollar sign may
  // be a formula that is not set yet; when it is, the page changes and this is called again.
  function* nodesOf(part) {
    const walker = document.createTreeWalker(part, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.nodeType === Node.TEXT_NODE) {
        const holder = node.parentElement;
        const block = holder.closest("p, li, td, th, dd") ?? holder;
        if (!holder.closest(LEFT_OUT) && !block.textContent.includes("$")) yield node;
      } else if (node.matches(`${HEADING}, a.term`)) yield node;
    }
  }

  function markText(node, section, { expression, anchors }) {
    const text = node.data, parts = [];
    let end = 0;
    for (const match of text.matchAll(new RegExp(expression, "g"))) {
      const anchor = anchors[match.findIndex((group, place) => place && group !== undefined) - 1];
      if (!section.left || section.seen.has(anchor)) continue;
      section.seen.add(anchor);
      section.left--;
      const mark = document.createElement("a");
      Object.assign(mark, { className: "term", href: `#${anchor}`, textContent: match[0] });
      mark.dataset.lmSuppressShortcuts = "true"; // Enter follows it, and does not edit the cell
      parts.push(text.slice(end, match.index), mark);
      end = match.index + match[0].length;
    }
    if (parts.length) node.replaceWith(...parts, text.slice(end));
  }

  // An entry with links that open the chapters that explain it.
  function told(app, { places, ...entry }) {
    const links = places.map(([name, file, heading]) => {
      const open = () => openChapter(app, `${folder}/${file}`, heading).catch(showError);
      return [name, `#${heading}`, open];
    });
    return { ...entry, links };
  }

  async function openChapter(app, path, heading) {
    const panel = await app.commands.execute("docmanager:open", { path });
    if (!panel) throw new Error(`There is no notebook ${path}.`);
    app.shell.activateById(panel.id);
    panel.setFragment(`#${heading}`);
  }

  // Opens the list of all words beside the chapter, at one of them.
  async function openList(app, anchor) {
    if (!tab || tab.isDisposed) {
      const { entries } = await ask(app);
      const content = new jupyter.Widget();
      content.node.append(listed(app, entries));
      tab = new jupyter.MainAreaWidget({ content });
      Object.assign(tab, { id: TAB });
      Object.assign(tab.title, { label: "Glossary", closable: true });
    }
    if (!tab.isAttached) app.shell.add(tab, "main", { mode: "split-right" });
    app.shell.activateById(tab.id);
    await tab.revealed;
    requestAnimationFrame(() => document.getElementById(anchor)?.focus());
  }

  function listed(app, entries) {
    const element = (name, ...parts) => {
      const made = document.createElement(name);
      made.append(...parts);
      return made;
    };
    const list = element("dl");
    for (const [anchor, entry] of Object.entries(entries)) {
      const { name, means, more, links } = told(app, entry);
      const term = Object.assign(element("dt", name), { id: anchor, tabIndex: -1 });
      const parts = links.flatMap(([text, href, open], place) => {
        const link = Object.assign(element("a", text), { href });
        link.addEventListener("click", (event) => (event.preventDefault(), open()));
        return [place ? ", " : "", link];
      });
      list.append(term, element("dd", `${means} ${more} Explained in `, ...parts, "."));
    }
    const page = element("div", element("h1", "Glossary"), list);
    page.className = "jp-RenderedHTMLCommon term-list";
    return page;
  }
}
