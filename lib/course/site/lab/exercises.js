// Buttons below the exercises of a chapter, beside the code way: Check runs the cell, and the cells
// that define the attempt; Hint asks the kernel for the next hint. Nothing of this is stored in the
// notebook. What the kernel answers is in lib/course/exercise_bar.py.
"use strict";

{
  const IMPORT = /^from (lib\.course\.\w+\.exercises) import (?:\(([^)]*)\)|(.*))$/gm;
  const CHECK = /\b([A-Za-z_]\w*)\.check\(/g;
  const { codeCells, inVain, make, rich, runAbove, runCells, sourceOf } = manyRanksBars;
  const NOW = "✓ Solved", EARLIER = "✓ Solved earlier";
  const OLD = "What the cell shows below is of an earlier run.";
  const SLIPS = /NameError|SyntaxError/;
  const QUOTES = '"""';
  const MOVED = "The picture has moves that the text in the cell has not, and Check would lose " +
    "them. Copy the picture's text between the quotes, or press Reset in the picture.";
  let jupyter; // what JupyterLab shares

  // The plugin; `shared(name)` gives a module that JupyterLab shares.
  globalThis.manyRanksExercises = async (shared) => {
    const names = ["@jupyterlab/notebook", "@jupyterlab/services", "@lumino/widgets"];
    const [notebook, services, widgets] = await Promise.all(names.map(shared));
    jupyter = { ...notebook, ...services, ...widgets };
    return { id: "many-ranks:exercises", autoStart: true, activate };
  };

  function activate(app) {
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel, context) => void attend(app, panel, context).catch(console.warn),
    });
  }

  // Keeps the bars of a notebook where its exercises are, whatever is typed or moved.
  async function attend(app, panel, context) {
    await context.ready;
    const bars = new Map(); // cell widget -> bar
    let timer = 0, remembered = [];
    const renew = () => !panel.isDisposed && renewBars(panel, bars, remembered);
    context.model.contentChanged.connect(() => {
      clearTimeout(timer);
      timer = setTimeout(renew, 200);
    });
    const ran = (_, { cell }) => void bars.get(cell)?.ran().catch(() => {}); // a kernel that ended
    jupyter.NotebookActions.executed.connect(ran);
    panel.disposed.connect(() => jupyter.NotebookActions.executed.disconnect(ran));
    renew();
    remembered = await solvedOf(app, context.path);
    renew();
  }

  // The names of the exercises that the reader has solved in a chapter, as the server knows them.
  async function solvedOf(app, path) {
    const { ServerConnection } = jupyter, settings = app.serviceManager.serverSettings;
    const address = `${settings.baseUrl}many-ranks/chapter?path=${encodeURIComponent(path)}`;
    const answer = await ServerConnection.makeRequest(address, {}, settings);
    return answer.ok ? ((await answer.json()).solved ?? []) : [];
  }

  // What a pasted solution lacks that its cell had: the imports, and what stood behind the last
  // function or class, if it calls the check.
  function frameOf(source, name) {
    const imports = source.match(/^(?:from \S+ )?import (?:\([^)]*\)|.*)$/gm) ?? [];
    const blocks = source.split(/^(?=\S)/m); // a statement at the margin, with its inner lines
    const isHead = (block) => /^(?:@|(?:async )?def |class )/.test(block);
    const tail = blocks.slice(blocks.findLastIndex(isHead) + 1).join("").trim();
    return { imports, tail: blocks.some(isHead) && calls(tail, name) ? tail : "" };
  }

  const calls = (source, name) =>
    [...source.matchAll(CHECK)].some(([, called]) => called === name);

  // The source with what it lacks.
  function completed(source, { imports, tail }, name) {
    const missing = imports.filter((line) => !source.includes(line));
    const parts = [missing.join("\n"), source.trim(), calls(source, name) ? "" : tail];
    return parts.filter(Boolean).join("\n\n\n");
  }

  function renewBars(panel, bars, remembered) {
    const cells = codeCells(panel), sources = cells.map(sourceOf);
    const modules = new Map(); // name of an exercise -> the module that has it
    for (const [, module, inside, line] of sources.join("\n").matchAll(IMPORT)) {
      for (const name of (inside ?? line).match(/\w+/g) ?? []) modules.set(name, module);
    }
    for (const cell of [...bars.keys()].filter((cell) => !cells.includes(cell))) bars.delete(cell);
    cells.forEach((cell, place) => {
      const names = [...sources[place].matchAll(CHECK)].map(([, name]) => name);
      const name = names.find((name) => modules.has(name));
      const bar = bars.get(cell);
      if (bar) bar.isCut = !name && Boolean(sources[place].trim());
      if (bar?.isCut) return; // Check puts back what is missing
      if (bar?.name !== name) {
        bar?.dispose();
        bars.delete(cell);
        if (name) bars.set(cell, new Bar(panel, cell, modules.get(name), name));
      }
      if (name) bars.get(cell).frame = frameOf(sources[place], name);
      if (name && remembered.includes(name)) bars.get(cell).remember();
    });
  }

  // The cells that Check runs: the cell itself, and those above that define what it is given.
  function cellsOf(panel, cell) {
    const cells = codeCells(panel), place = cells.indexOf(cell), source = sourceOf(cell);
    const call = source.slice(source.search(CHECK)); // a keyword in it, `sent=3`, names no variable
    const words = new Set(call.match(/(?<![.\w])[A-Za-z_]\w*\b(?!\s*=(?!=))/g));
    const defines = (text, word) => {
      const line = new RegExp(`^(?:(?:async )?def|class) ${word}\\b|^${word} *=[^=]`, "m");
      return line.test(text) && !text.includes("World(");
    };
    const imports = (word) =>
      new RegExp(`^(?:from \\S+ )?import .*\\b${word}\\b`, "m").test(source);
    const found = new Set([cell]);
    for (const word of words) {
      if (defines(source, word) || imports(word)) continue;
      const above = cells.slice(0, place).reverse().find((one) => defines(sourceOf(one), word));
      if (above) found.add(above);
    }
    return cells.filter((one) => found.has(one));
  }

  // The sources of the cells above one.
  function sourcesAbove(panel, cell) {
    const cells = codeCells(panel);
    return cells.slice(0, cells.indexOf(cell)).map(sourceOf);
  }

  class Bar {
    constructor(panel, cell, module, name) {
      Object.assign(this, { panel, cell, module, name, isBusy: false });
      const button = (label, work) => make("button", label, () => this.act(work));
      this.check = button("Check", () => this.runChecked());
      this.hint = button("Hint", () => this.askHint());
      this.mark = make("span");
      this.mark.className = "mr-bar-solved";
      this.said = make("div");
      this.said.className = "mr-bar-said";
      this.said.setAttribute("role", "status");
      this.above = button("Run the cells above, then check", () => this.runAbove());
      this.above.hidden = true;
      this.hints = make("ol");
      this.hints.setAttribute("aria-live", "polite");
      const parts = [this.check, this.hint, this.mark, this.said, this.above, this.hints];
      this.widget = manyRanksBars.add(jupyter.Widget, cell, `Exercise ${name}`, parts);
    }

    dispose() {
      this.widget.dispose();
    }

    get kernel() {
      return this.panel.sessionContext.session?.kernel;
    }

    // Does one thing at a time; what goes wrong is said below the buttons.
    async act(work) {
      if (this.isBusy) return;
      this.setBusy(true);
      try {
        await work();
      } catch (error) {
        this.say(String(error.message ?? error));
      } finally {
        this.setBusy(false);
      }
    }

    setBusy(isBusy) {
      this.isBusy = isBusy;
      const isLast = this.hints.childElementCount === this.total;
      this.check.setAttribute("aria-disabled", String(isBusy));
      this.hint.setAttribute("aria-disabled", String(isBusy || isLast));
      this.hint.textContent = isLast ? "No more hints" : "Hint";
    }

    say(text, withAbove = false) {
      this.said.replaceChildren(...rich(text));
      this.above.hidden = !withAbove;
    }

    // It was solved, and what the cell holds now is perhaps another attempt.
    remember() {
      this.mark.textContent ||= EARLIER;
    }

    // What `lib.course.exercise_bar` answers, without a trace in the notebook or in its history.
    async ask(question, ...words) {
      const given = words.map((word) => JSON.stringify(word)).join(", ");
      const answer = `__import__("lib.course.exercise_bar", fromlist=["_"]).${question}(${given})`;
      const future = this.kernel.requestExecute({
        code: "",
        silent: true,
        store_history: false,
        allow_stdin: false,
        user_expressions: { answer },
      });
      const { content } = await future.done;
      const said = content.user_expressions?.answer;
      if (said?.status !== "ok") {
        const why = said?.evalue ?? content.evalue ?? "it was stopped";
        throw new Error(`The kernel cannot answer: ${why}.`);
      }
      return said.data["application/json"];
    }

    async askHint() {
      if (!this.kernel) {
        this.say("The kernel gives the hints, and none runs yet.", true);
        return;
      }
      this.say(this.kernel.status === "idle" ? "" : "Waiting for the kernel…");
      const { shown, hints } = await this.ask("hint", this.module, this.name);
      this.say(hints ? "" : "There is no hint for this exercise.");
      this.show(shown, hints);
    }

    show(shown, total) {
      this.total = total;
      shown.slice(this.hints.childElementCount).forEach((text) => {
        const item = document.createElement("li");
        const number = this.hints.childElementCount + 1;
        item.append(...rich(`Hint ${number} of ${total}: ${text}`));
        this.hints.append(item);
      });
    }

    // A solution that was pasted over the whole cell gets the imports and the call of the check.
    complete() {
      if (!this.isCut) return;
      const whole = completed(sourceOf(this.cell), this.frame, this.name);
      this.cell.model.sharedModel.setSource(whole);
    }

    // Moves in a picture of the cell become the cell's text, as the cell draws the picture anew.
    // False where the cell has a text that the picture does not know.
    takeMoves() {
      const figures = [...this.cell.node.querySelectorAll("figure.mrom")];
      const moved = figures.map(({ picture }) => picture?.shape.moved?.(picture.state));
      const parts = sourceOf(this.cell).split(QUOTES), texts = moved.find(Boolean);
      if (!texts || parts.length !== 3) return true;
      const bare = (text) => text.replace(/\s/g, ""), here = bare(parts[1]);
      if (here === bare(texts[1])) return true;
      if (here && here !== bare(texts[0])) return false;
      const whole = [parts[0], `\n${texts[1]}\n`, parts[2]].join(QUOTES);
      this.cell.model.sharedModel.setSource(whole);
      return true;
    }

    // `isRun`: all cells above have run. What is missing even so has to be seen as an error.
    async runChecked(isRun = false) {
      if (!this.kernel) {
        this.say("No kernel runs yet, and no cell of this chapter has run.", true);
        return;
      }
      this.complete();
      if (!this.takeMoves()) {
        this.say(MOVED);
        return;
      }
      const cells = cellsOf(this.panel, this.cell);
      this.say(this.kernel.status === "idle" ? "" : "Waiting for the kernel…");
      const above = sourcesAbove(this.panel, this.cell);
      const missing = await this.ask("missing", cells.map(sourceOf), above);
      if (isRun) inVain.note(this.cell, missing.names);
      const names = missing.names.filter((name) => !inVain.has(this.cell, name));
      if (names.length) {
        const [are, they] = names.length > 1 ? ["are", "they"] : ["is", "it"];
        const list = names.map((name) => `\`${name}\``).join(", ");
        const old = this.cell.model.outputs.length ? ` ${OLD}` : "";
        const first = `${list} ${are} not known to the kernel yet. Run the cells above first.`;
        this.say(first + old, true);
        return;
      }
      this.say("");
      await runCells(jupyter.NotebookActions, this.panel, cells);
    }

    async runAbove() {
      this.say("The cells above run…");
      const isDone = await runAbove(jupyter.NotebookActions, this.panel, this.cell);
      this.say(isDone ? "" : "A cell above has failed: see what it says.");
      if (isDone) await this.runChecked(true);
    }

    // The cell has run, by a button or by a key.
    async ran() {
      const { solved, shown, hints } = await this.ask("state", this.module, this.name);
      if (solved || this.mark.textContent) this.mark.textContent = solved ? NOW : EARLIER;
      this.show(shown, hints);
      this.setBusy(this.isBusy);
      this.say(await this.advice());
    }

    // A sentence on a slip for which the cell shows an error; else "".
    async advice() {
      if (!SLIPS.test(JSON.stringify(this.cell.model.outputs.toJSON()))) return "";
      const sources = cellsOf(this.panel, this.cell).map(sourceOf);
      const { text } = await this.ask("advice", sources, sourcesAbove(this.panel, this.cell));
      return text;
    }
  }
}
