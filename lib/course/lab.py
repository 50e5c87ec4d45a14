"""`make lab`: JupyterLab on chapter 0, for any user, with a display or not, on a free port."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST = "lab/tree/chapters/00-ranks.ipynb"
PATIENCE = 120  # seconds for the first start on a slow machine


def has_display(environ=os.environ, platform: str = sys.platform) -> bool:
    """True where a browser started here would be seen by the person who typed the command."""
    if environ.get("BROWSER"):
        return True
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def command(extra: list[str], *, root: bool, display: bool) -> list[str]:
    """The words that start JupyterLab; `extra` comes last, so that the user's word counts."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}"]
    words += [f"--LabApp.default_url=/{FIRST}", "--log-level=WARN"]
    if root:
        words.append("--allow-root")  # a container's only user; the token still guards the door
    if not display:
        words.append("--no-browser")
    return words + extra


def address(lab: subprocess.Popen, patience: float = PATIENCE) -> dict | None:
    """What the server says of itself once it serves (port, token, base_url); None if it ended."""
    from jupyter_core.paths import jupyter_runtime_dir

    note = Path(jupyter_runtime_dir()) / f"jpserver-{lab.pid}.json"
    end = time.monotonic() + patience
    while time.monotonic() < end and lab.poll() is None:
        try:
            return json.loads(note.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not written yet, or half of it
            time.sleep(0.1)
    return None


def greeting(server: dict, *, display: bool) -> str:
    """The lines that say where chapter 0 is."""
    token = f"?token={server['token']}" if server.get("token") else ""
    where = f"http://localhost:{server['port']}{server.get('base_url', '/')}{FIRST}{token}"
    lines = ["", "Chapter 0 is open in your browser, at" if display else "Chapter 0 is at"]
    lines += ["", f"    {where}", ""]
    if os.environ.get("SSH_CONNECTION"):
        port = server["port"]
        tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
        lines.append(f"From your own machine, first: {tunnel}")
    return "\n".join([*lines, "Ctrl-C ends JupyterLab and every rank.", ""])


def main(extra: list[str]) -> int:
    """Starts JupyterLab, says where it is and stays with it; returns its exit status."""
    display = has_display() and "--no-browser" not in extra
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    # A token of ours keeps JupyterLab from printing three addresses; `ps` shows no environment.
    environ = {"JUPYTER_TOKEN": secrets.token_hex(24), **os.environ}
    lab = subprocess.Popen(command(extra, root=root, display=display), cwd=ROOT, env=environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches JupyterLab, which asks first
    signal.signal(signal.SIGTERM, lambda *_: lab.terminate())
    if server := address(lab):
        print(greeting(server, display=display), flush=True)
    return lab.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
