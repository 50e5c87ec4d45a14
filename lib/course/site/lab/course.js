// The page "The course" in JupyterLab: every chapter with its minutes, what it needs and gives and
// what is solved of it, and the way back to where the reader stopped.
"use strict";

{
  const COMMAND = "many-ranks:course";
  const NAMESPACE = "many-ranks-course"; // JupyterLab looks only for what is before a colon
  const LABEL = "Many Ranks: The course";
  const ABOUT = "You write plain PyTorch in a cell and run it on real ranks; every operation, " +
    "wait and byte becomes visible. Your own copy of each chapter keeps what you do.";
  const HOUR = 60;

  // The plugin; `shared(name)` gives a module that JupyterLab shares.
  globalThis.manyRanksCourse = async (shared) => {
    const [application, apputils, { Widget }, { PageConfig }, { ILauncher }, { IMainMenu }, icons] =
      await Promise.all([
        "@jupyterlab/application",
        "@jupyterlab/apputils",
        "@lumino/widgets",
        "@jupyterlab/coreutils",
        "@jupyterlab/launcher",
        "@jupyterlab/mainmenu",
        "@jupyterlab/ui-components",
      ].map(shared));
    const { ICommandPalette, Notification, WidgetTracker } = apputils;
    const { ILayoutRestorer } = application;

    function activate(app, palette, launcher, menu, restorer) {
      const tracker = new WidgetTracker({ namespace: NAMESPACE });
      const report = (error) => void Notification.error(String(error.message ?? error));
      const ask = () => manyRanksAsk(shared, app, "course");
      const make = () => tab(new Widget(), ask, (path) => open(app, path).catch(report), report);
      let page;
      app.commands.addCommand(COMMAND, {
        label: LABEL,
        caption: "All chapters, and how far you are",
        icon: icons.listIcon,
        execute: async () => {
          if (!page || page.isDisposed) await tracker.add(page = make());
          if (!page.isAttached) app.shell.add(page, "main");
          app.shell.activateById(page.id);
          return page;
        },
      });
      palette?.addItem({ command: COMMAND, category: "Help" });
      launcher?.add({ command: COMMAND, category: "Other", rank: 0 });
      menu?.helpMenu.addGroup([{ command: COMMAND }], 0);
      void restorer?.restore(tracker, { command: COMMAND, name: () => "course" });
      void openFirst(app, ask).catch(() => {});
    }

    // JupyterLab opens on this page where its address names no notebook.
    async function openFirst(app, ask) {
      if (PageConfig.getOption("treePath")) return;
      const [{ chapters }] = await Promise.all([ask(), app.restored]);
      if (chapters) await app.commands.execute(COMMAND);
    }

    const optional = [ICommandPalette, ILauncher, IMainMenu, ILayoutRestorer];
    return { id: COMMAND, autoStart: true, optional, activate };
  };

  const open = (app, path) => app.commands.execute("docmanager:open", { path });

  // Makes a widget the page's tab, which asks anew whenever it is shown.
  function tab(widget, ask, open, report) {
    const { node, title } = widget;
    Object.assign(title, { label: "The course", closable: true, caption: LABEL });
    widget.id = "many-ranks-course";
    widget.addClass("many-ranks-course");
    node.tabIndex = -1;
    const render = (about) => {
      const focused = document.activeElement?.closest(`#${widget.id} a`)?.dataset.path;
      node.replaceChildren(...content(about, open));
      if (focused) node.querySelector(`a[data-path="${CSS.escape(focused)}"]`)?.focus();
    };
    widget.onAfterShow = () => void ask().then(render, report);
    widget.onAfterAttach = () => widget.isVisible && widget.onAfterShow();
    widget.onActivateRequest = () => node.focus();
    return widget;
  }

  function element(name, attributes, ...children) {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  function link(path, open, ...children) {
    const href = `tree/${path.split("/").map(encodeURIComponent).join("/")}`;
    const made = element("a", { href: new URL(href, labAddress()) }, ...children);
    made.dataset.path = path;
    made.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab of the browser
      event.preventDefault();
      open(path);
    });
    return made;
  }

  // Where JupyterLab is: before "tree/…", "workspaces/…" in the address of the page.
  const labAddress = () => location.href.replace(/(\/lab)(\/[^?#]*)?([?#].*)?$/, "$1/");

  function content({ title, chapters, last }, open) {
    if (!chapters) return [element("p", {}, "JupyterLab does not serve the course here.")];
    const here = chapters.find(({ name }) => name === last) ?? chapters[0];
    const verb = last ? "Continue" : "Begin";
    const go = link(here.path, open, `${verb}: Chapter ${here.number}, ${here.title}`);
    go.className = "many-ranks-go";
    const list = element("ol", {}, ...chapters.map((chapter) => card(chapter, open)));
    return [
      element("h1", {}, title),
      element("p", {}, ABOUT),
      element("p", {}, go),
      element("p", { className: "many-ranks-quiet" }, progress(chapters)),
      element("h2", {}, "Chapters"),
      list,
    ];
  }

  function progress(chapters) {
    const sum = (count) => chapters.reduce((total, chapter) => total + count(chapter), 0);
    const minutes = Math.round(sum((chapter) => chapter.minutes) / HOUR);
    const all = sum(({ exercises }) => exercises.length);
    const solved = sum((chapter) => chapter.solved.length);
    const done = all ? `; ${solved} of ${all} exercises solved` : "";
    return `${chapters.length} chapters, about ${minutes} hours${done}.`;
  }

  function card(chapter, open) {
    const { number, title, minutes, needs, gives, opened } = chapter;
    const facts = [`${minutes} minutes in all`, `you need ${needs}`];
    if (opened) facts.push(`last opened ${day(opened)}`);
    const heading = element("h3", {}, link(chapter.path, open, `${number}. ${title}`));
    return element(
      "li",
      {},
      heading,
      element("p", {}, `Then you can ${gives}.`),
      element("p", { className: "many-ranks-quiet" }, facts.join(" · ")),
      solvedOf(chapter),
    );
  }

  // "2 of 5 exercises solved" with a bar, and the name of each.
  function solvedOf({ title, exercises, solved }) {
    if (!exercises.length) return null;
    const text = `${solved.length} of ${exercises.length} exercises solved`;
    const bar = element("progress", { max: exercises.length, value: solved.length });
    bar.setAttribute("aria-label", `${title}: ${text}`);
    const names = exercises.map((name) => (solved.includes(name) ? `✓ ${name}` : name));
    return element("p", { className: "many-ranks-solved" }, bar, ` ${text}: ${names.join(", ")}`);
  }

  function day(seconds) {
    const then = new Date(seconds * 1000), today = new Date();
    if (then.toDateString() === today.toDateString()) return "today";
    const year = then.getFullYear() === today.getFullYear() ? undefined : "numeric";
    return `on ${then.toLocaleDateString("en", { day: "numeric", month: "long", year })}`;
  }
}
