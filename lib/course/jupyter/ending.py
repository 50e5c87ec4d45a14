"""Ctrl-C in the terminal of `make lab`: it asks once, says what would end, and ends it in order."""

import contextlib
import json
import select
import signal
import subprocess
import sys
import urllib.request

from lib.course.jupyter import reach

SECONDS = 10  # for an answer
PATIENCE = 30  # seconds for kernels and their ranks to end


def attend(lab: subprocess.Popen, server: dict | None) -> int:
    """Wait for the end of JupyterLab, and return its exit status; Ctrl-C asks whether to end it."""
    while True:
        try:
            return lab.wait()
        except KeyboardInterrupt:
            try:
                meant = is_meant(question(kernels(server) if server else 0))
            except KeyboardInterrupt:  # the second one
                print()
                meant = True
            if meant:
                return end(lab)


def end(lab: subprocess.Popen) -> int:
    """End JupyterLab, which ends its kernels, which end their ranks; return 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # asked and answered
    lab.terminate()
    try:
        lab.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        lab.kill()  # kernels notice that it is gone
        lab.wait()
    return 0


def kernels(server: dict) -> int:
    """Return how many kernels run; 0 where the server does not answer."""
    address = reach.address(server, "api/kernels")
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen(address, timeout=2) as answer:
            return len(json.load(answer))
    return 0


def question(count: int) -> str:
    """Return the question, which says what would end and what stays."""
    running = {0: "", 1: ", 1 running kernel and its ranks"}
    what = running.get(count, f", {count} running kernels and their ranks")
    return f"This ends JupyterLab{what}; saved notebooks stay. End it? y/n (Ctrl-C again: yes) "


def is_meant(text: str) -> bool:
    """Ask, and return True for "y" and where nobody is there to be asked."""
    if not sys.stdin.isatty():
        return True
    print(f"\n{text}", end="", flush=True)
    answered = select.select([sys.stdin], [], [], SECONDS)[0]
    answer = sys.stdin.readline().strip().lower() if answered else None
    if answer in ("y", "yes"):
        return True
    print(f"\nNo answer in {SECONDS} s: " * (answer is None) + "JupyterLab goes on.", flush=True)
    return False
