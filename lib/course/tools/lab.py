"""`make lab`: opens JupyterLab on the page of the course, for any user, on a free port."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lib.course.jupyter import ending, landing, reach
from lib.course.tools import copies
from lib.course.tools.book import ROOT, BookError, chapters, find
from lib.predict import readers_folder

PATIENCE = 120  # seconds for the first start on a slow machine


def has_display(environ=os.environ, platform: str = sys.platform) -> bool:
    """Return True where the person who typed the command would see a browser started here."""
    if environ.get("BROWSER"):
        return True
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def opened(again: str = "", course: Path = ROOT) -> tuple[str, list[str]]:
    """Return the notebook that JupyterLab opens, relative to the course, and notes for the reader.

    It is "", for the page of the course, or the copy of the chapter called `again`, which is then
    made again. Raises BookError where there is no such chapter.
    """
    file = Path((find(again, course) if again else chapters(course)[0]).file)
    copy = copies.of(course / file)
    lines = []
    try:
        if again:
            kept = copy.again()
            landing.note(copy, "")
            lines.append(f"{copy.title} starts again, as it is stored.")
            if kept:
                lines.append(f"What you had is kept as {kept.relative_to(course)}.")
        lines += copies.prepare(course)
    except OSError as error:
        why = f"{course / copies.FOLDER} cannot be written ({error.strerror})."
        remedy = "clone the course into a folder of yours to keep what you do"
        return file.as_posix(), [f"{why} JupyterLab opens the stored chapters: {remedy}."]
    return copy.path.relative_to(course).as_posix() if again else "", lines


def at_home(course: Path) -> list[str]:
    """Make the reader's own folder where the clone cannot be written; return notes for the reader.

    Raises BookError where that folder cannot be made.
    """
    if course == ROOT:
        return []
    try:
        readers_folder.link(course)
    except OSError as error:
        why = f"{course} cannot be your folder of the course ({error.strerror})."
        raise BookError(f"{why} RANKS_HOME=/another/folder names one that can.") from error
    return [f"What you do is kept in {course}, with links to the course in {ROOT}."]


def page(first: str) -> str:
    """Return where JupyterLab has a notebook, in its address; of "" the page of the course."""
    return f"lab/tree/{first}" if first else "lab"


def workspaces(course: Path) -> dict[str, str]:
    """Return the variable by which JupyterLab keeps what is open in the course's own folder.

    In its usual place all clones of a user share it, and one opens the chapters of another. Return
    nothing where the folder cannot be written.
    """
    mine = course / copies.FOLDER
    if not os.access(mine, os.W_OK):
        return {}
    return {"JUPYTERLAB_WORKSPACES_DIR": str(mine / ".workspaces")}


def command(
    extra: list[str], first: str, *, root: bool, display: bool, course: Path = ROOT
) -> list[str]:
    """Return the command that starts JupyterLab; `extra` is last, so the user's options win."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={course}"]
    words += [f"--LabApp.default_url=/{page(first)}", "--log-level=WARN"]
    if root:
        words.append("--allow-root")  # a container's only user; the token still guards the door
    if not display:
        words.append("--no-browser")
    return words + extra


def address(lab: subprocess.Popen, patience: float = PATIENCE) -> dict | None:
    """Return the server's description once it answers (port, token, base_url); None if it ended.

    The server writes it before it listens, and an address that nobody answers is of no use.
    """
    from jupyter_core.paths import jupyter_runtime_dir

    note = Path(jupyter_runtime_dir()) / f"jpserver-{lab.pid}.json"
    end = time.monotonic() + patience
    while time.monotonic() < end and lab.poll() is None:
        try:
            server = json.loads(note.read_text(encoding="utf-8"))
            with socket.create_connection((reach.host(server), server["port"]), timeout=1):
                return server
        except (OSError, ValueError):  # not written yet, half of it, or nobody listens
            time.sleep(0.1)
    return None


def greeting(server: dict, first: str, *, display: bool) -> str:
    """Return the lines that say where the page is, and how to reach and to end JupyterLab."""
    what = copies.title(Path(first)) if first else "The course"
    lines = ["", f"{what} is open in your browser, at" if display else f"{what} is at"]
    lines += ["", f"    {reach.address(server, page(first))}", ""]
    lines += [] if display else reach.advice(server, page(first))
    return "\n".join([*lines, "Ctrl-C ends JupyterLab and every rank; it asks first.", ""])


def main(extra: list[str]) -> int:
    """Start JupyterLab, print its address and wait for its end; return its exit status."""
    again, course = "", readers_folder.course()
    if extra[:1] == ["--again"]:
        again, extra = extra[1], extra[2:]
    try:
        lines = at_home(course)
        first, more = opened(again, course)
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    lines += more
    print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    display = has_display() and "--no-browser" not in extra
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    # A token of ours keeps JupyterLab from printing three addresses; `ps` shows no environment.
    environ = {"JUPYTER_TOKEN": secrets.token_hex(24)} | workspaces(course) | os.environ
    words = command(extra, first, root=root, display=display, course=course)
    # In a group of its own, a Ctrl-C does not reach JupyterLab, and it reads no key.
    lab = subprocess.Popen(words, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, process_group=0)
    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, lambda *_: lab.terminate())
    try:
        if server := address(lab):
            print(greeting(server, first, display=display), flush=True)
    except KeyboardInterrupt:  # nothing runs yet
        return ending.end(lab)
    return ending.attend(lab, server)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
