"""A JupyterLab of the tests' own: its server, its trust, its pages."""

import json
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat

from lib.course.tools.steps import surroundings
from tests.browser.seen import PATIENCE, Seen, alive

NAMES = sorted(path.stem for path in (Path(__file__).parent / "cells").glob("*.py"))
# JupyterLab's page as a server gives it that starts no kernel for a notebook.
NO_KERNELS = """new MutationObserver((_, eye) => {
    const settings = document.querySelector("#jupyter-config-data");
    if (!settings?.textContent.trim().endsWith("}")) return;
    const changed = { ...JSON.parse(settings.textContent), notebookStartsKernel: "false" };
    settings.textContent = JSON.stringify(changed);
    eye.disconnect();
}).observe(document, { childList: true, subtree: true });"""


class Lab:
    """A JupyterLab that runs, and its pages."""

    def __init__(self, folder: Path, home: Path, new_page):
        self.folder, self.home, self._new_page = folder, home, new_page
        names = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
        environ = {f"JUPYTER_{key}_DIR": str(home / name) for key, name in names.items()}
        environ |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings")}
        environ |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces")}
        environ |= {"IPYTHONDIR": str(home / "ipython"), "JUPYTER_TOKEN": secrets.token_hex(16)}
        words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        words += [f"--ServerApp.root_dir={folder}", "--ip=127.0.0.1", "--port=0"]
        words += ["--expose-app-in-browser", "--log-level=ERROR"]
        self._log = open(home / "log", "w")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(words, env={**surroundings(), **environ}, cwd=folder,
                                         stdout=self._log, stderr=self._log)  # fmt: skip
        self._token, self._address = environ["JUPYTER_TOKEN"], ""

    @property
    def address(self) -> str:
        """Where it serves; waits for that."""
        note = self.home / "runtime" / f"jpserver-{self._process.pid}.json"
        deadline = time.monotonic() + PATIENCE
        while not self._address and time.monotonic() < deadline:
            assert self._process.poll() is None, (self.home / "log").read_text()
            try:
                self._address = f"http://127.0.0.1:{json.loads(note.read_text())['port']}"
                urllib.request.urlopen(f"{self._address}/api?token={self._token}", timeout=10)
            except (OSError, ValueError):
                self._address = ""
                time.sleep(0.1)
        assert self._address, "JupyterLab did not start in time"
        return self._address

    def notebook(self, name: str, source: Path, *, trust: bool) -> str:
        """A copy of a notebook that is the only one of its content, so that trust is its own."""
        from nbformat.sign import NotebookNotary

        notebook = nbformat.read(source, as_version=4)
        notebook.cells[0].source += f" ({name})"
        nbformat.write(notebook, self.folder / f"{name}.ipynb")
        if trust:  # what `jupyter trust` does
            (self.home / "data").mkdir(exist_ok=True)  # JupyterLab may not have begun yet
            notary = NotebookNotary(data_dir=str(self.home / "data"))
            notary.sign(notebook)
            notary.store.close()
        return name

    def open(self, name: str, *, kernel: bool = True, **options):
        """A page with that notebook; with `kernel` one starts, as JupyterLab does it."""
        page = self._new_page(**options)
        if not kernel:
            page.add_init_script(NO_KERNELS)
        page.goto(f"{self.address}/lab/tree/{name}.ipynb?reset&token={self._token}")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function("() => jupyterapp.shell.currentWidget?.sessionContext?.isReady")
        return page

    def first_page(self, **options):
        """A page of JupyterLab as it opens where no notebook is named."""
        page = self._new_page(**options)
        page.goto(f"{self.address}/lab?reset&token={self._token}")
        return page

    def run_all(self, page) -> None:
        """Run All Cells, and waits until they have run."""
        page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function("""() => {
            const { content, sessionContext } = jupyterapp.shell.currentWidget;
            const code = content.widgets.filter((cell) => cell.model.type === "code");
            return sessionContext.session?.kernel?.status === "idle" &&
                code.every((cell) => cell.model.executionCount > 0) &&
                !document.body.innerText.includes("[*]:");
        }""")

    def run_cell(self, page, name: str) -> Seen:
        """Runs the gallery's cell called `name`, and gives its picture."""
        page.evaluate(
            """async (place) => {
                const { content } = jupyterapp.shell.currentWidget;
                content.activeCellIndex = place;
                const old = content.widgets[place].node.querySelector("figure.mrom");
                old?.classList.replace("mrom", "old"); // never to be taken for the new one
                await jupyterapp.commands.execute("notebook:run-cell");
            }""",
            self.place(name),
        )
        return self.picture(page, name)

    def picture(self, page, name: str) -> Seen:
        """The living picture of the gallery's cell called `name`, scrolled to."""
        return alive(self.cell(page, name).locator("figure.mrom"), name)

    def pictures(self, page) -> list[Seen]:
        """All the living pictures of the gallery, each waited for."""
        return [self.picture(page, name) for name in NAMES]

    def cell(self, page, name: str):
        """The gallery's cell called `name`."""
        return page.locator(".jp-Notebook .jp-Cell").nth(self.place(name))

    def place(self, name: str) -> int:
        """The title is cell 0, and each picture has a heading."""
        return 2 + 2 * NAMES.index(name)

    def turn(self, page, *, dark: bool) -> None:
        """Turns JupyterLab light or dark."""
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })", theme
        )
        body = f'body[data-jp-theme-light="{str(not dark).lower()}"]'
        page.wait_for_selector(body, state="attached")

    def close(self) -> None:
        """Ends it and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
