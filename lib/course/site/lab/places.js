// Where the reader is, and where things lie: a copy of a chapter opens at the cell where the reader
// stopped, its toolbar leads to the chapters before and after it and to the page of the course, and
// the tools of a picture open the file that makes it.
"use strict";

{
  const COURSE = "many-ranks:course";
  const PATIENCE = 1_000; // milliseconds at a cell before it is remembered
  const SETTLED = 5_000; // milliseconds after which a chapter that opens moves no more

  // Waits until a tab is seen: one that JupyterLab opens again may stand behind another.
  function seen({ node }) {
    return new Promise((done) => {
      const eye = new IntersectionObserver((entries) => {
        if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
        eye.disconnect();
        done();
      });
      eye.observe(node);
    });
  }

  // Shows the cell where the reader stopped, unless the reader is somewhere already.
  async function goTo(panel, cell) {
    const { content } = panel;
    await Promise.all([panel.revealed, seen(panel)]);
    const place = content.widgets.findIndex(({ model }) => model.id === cell);
    if (place <= 0 || content.activeCellIndex > 0) return;
    content.activeCellIndex = place;
    void stayAt(panel, place);
  }

  // Keeps a cell in sight while pictures above it are still being drawn, until the reader moves.
  async function stayAt(panel, place) {
    const { content, node } = panel, ending = new AbortController(), { signal } = ending;
    for (const kind of ["wheel", "keydown", "pointerdown"]) {
      node.addEventListener(kind, () => ending.abort(), { signal, capture: true });
    }
    const end = Date.now() + SETTLED;
    while (!signal.aborted && panel.isVisible && content.activeCellIndex === place) {
      await content.scrollToItem(place, "start");
      if (Date.now() > end) break;
      await new Promise((done) => setTimeout(done, 250));
    }
    ending.abort();
  }

  // Tells the server at which cell the reader is, once the reader stays there.
  function remember(panel, ask) {
    const { content } = panel;
    let waiting;
    const tell = () => {
      const cell = content.activeCell?.model.id;
      if (cell && panel.isVisible) ask({ cell }, "PUT").catch(() => {});
    };
    const wait = () => {
      clearTimeout(waiting);
      waiting = setTimeout(tell, PATIENCE);
    };
    content.activeCellChanged.connect(wait);
    panel.disposed.connect(() => clearTimeout(waiting));
    wait();
  }

  // Buttons for the neighbours; the first chapter has none before it, the last none after it.
  function lead(app, panel, { previous, next }, ToolbarButton) {
    const add = (name, label, tooltip, onClick) => {
      const button = new ToolbarButton({ label, tooltip, onClick });
      panel.toolbar.insertBefore("spacer", `many-ranks-${name}`, button);
    };
    const chapter = ({ title }) => title.split(":")[0];
    const go = ({ path }) => () => void app.commands.execute("docmanager:open", { path });
    if (previous) {
      add("previous", `← ${chapter(previous)}`, `Previous: ${previous.title}`, go(previous));
    }
    if (previous || next) {
      add("course", "The course", "All chapters", () => void app.commands.execute(COURSE));
    }
    if (next) add("next", `${chapter(next)} →`, `Next: ${next.title}`, go(next));
  }

  // Lets the pictures link to files of the library, which open beside the chapter.
  globalThis.manyRanksSources = (app) => {
    globalThis.manyRanksSource = `${app.serviceManager.serverSettings.baseUrl}lab/tree/{file}`;
    document.addEventListener("click", (event) => {
      const link = event.composedPath().find((node) => node.matches?.(".mrom-menu a[data-file]"));
      if (!link) return;
      event.preventDefault();
      const options = { mode: "split-right" };
      void app.commands.execute("docmanager:open", { path: link.dataset.file, options });
    });
  };

  // `ask(order, method)` asks the server about the chapter in `panel`.
  globalThis.manyRanksPlace = async (app, panel, chapter, ToolbarButton, ask) => {
    lead(app, panel, chapter, ToolbarButton);
    await goTo(panel, chapter.cell);
    remember(panel, ask);
  };
}
