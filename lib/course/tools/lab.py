"""`make lab`: opens JupyterLab on the reader's copy of a chapter, for any user, on a free port."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lib.course.tools import copies
from lib.course.tools.book import ROOT, BookError, chapters, find

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

    It is the copy of the first chapter, or of the one called `again`, which is then made again.
    Raises BookError where there is no such chapter.
    """
    file = Path((find(again, course) if again else chapters(course)[0]).file)
    copy = copies.of(course / file)
    lines = []
    try:
        if again:
            kept = copy.again()
            lines.append(f"{copy.title} starts again, as it is stored.")
            if kept:
                lines.append(f"What you had is kept as {kept.relative_to(course)}.")
        lines += copies.prepare(course)
    except OSError as error:
        why = f"{course / copies.FOLDER} cannot be written ({error.strerror})."
        remedy = "clone the course into a folder of yours to keep what you do"
        return file.as_posix(), [f"{why} JupyterLab opens the stored chapters: {remedy}."]
    return copy.path.relative_to(course).as_posix(), lines


def command(extra: list[str], first: str, *, root: bool, display: bool) -> list[str]:
    """Return the command that starts JupyterLab; `extra` is last, so the user's options win."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}"]
    words += [f"--LabApp.default_url=/lab/tree/{first}", "--log-level=WARN"]
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
            with socket.create_connection(("localhost", server["port"]), timeout=1):
                return server
        except (OSError, ValueError):  # not written yet, half of it, or nobody listens
            time.sleep(0.1)
    return None


def greeting(server: dict, first: str, *, display: bool) -> str:
    """Return the lines that say where the chapter is."""
    token = f"?token={server['token']}" if server.get("token") else ""
    where = f"http://localhost:{server['port']}{server.get('base_url', '/')}lab/tree/{first}{token}"
    chapter = copies.title(Path(first))
    lines = ["", f"{chapter} is open in your browser, at" if display else f"{chapter} is at"]
    lines += ["", f"    {where}", ""]
    if os.environ.get("SSH_CONNECTION"):
        port = server["port"]
        tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
        lines.append(f"From your own machine, first: {tunnel}")
    return "\n".join([*lines, "Ctrl-C ends JupyterLab and every rank.", ""])


def main(extra: list[str]) -> int:
    """Start JupyterLab, print its address and wait for its end; return its exit status."""
    again = ""
    if extra[:1] == ["--again"]:
        again, extra = extra[1], extra[2:]
    try:
        first, lines = opened(again)
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    display = has_display() and "--no-browser" not in extra
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    # A token of ours keeps JupyterLab from printing three addresses; `ps` shows no environment.
    environ = {"JUPYTER_TOKEN": secrets.token_hex(24), **os.environ}
    lab = subprocess.Popen(command(extra, first, root=root, display=display), cwd=ROOT, env=environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches JupyterLab, which asks first
    signal.signal(signal.SIGTERM, lambda *_: lab.terminate())
    if server := address(lab):
        print(greeting(server, first, display=display), flush=True)
    return lab.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
