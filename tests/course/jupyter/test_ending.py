"""Ctrl-C in the terminal of `make lab`: one clear question, and an end in order."""

import json
import os
import re
import sys
import time
import urllib.request

import pytest
from jupyter_client import BlockingKernelClient

from lib.course.jupyter import ending
from tests.course.jupyter.terminal import CTRL_C, Terminal
from tests.course.tools.test_road import ROOT

RANKS = "import os; from lib import World; world = World(2); print(world.run(os.getpid))"


@pytest.fixture
def terminal(tmp_path):
    """JupyterLab as `make lab` starts it, in a terminal, with a home of its own."""
    home = {name: str(tmp_path / name) for name in ("HOME", "RANKS_HOME", "JUPYTER_RUNTIME_DIR")}
    (tmp_path / "HOME").mkdir()
    environ = {**os.environ, **home, "RANKS_DEVICE": "cpu"}
    words = [sys.executable, "-m", "lib.course.tools.lab", "--no-browser", "--port", "0"]
    made = Terminal(*words, cwd=ROOT, env=environ)
    yield made
    made.close()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def started(address: str, folder) -> list[int]:
    """Starts a kernel of that JupyterLab with two ranks; the processes of the ranks."""
    base, token = address.split("/lab")[0], address.split("token=")[1]
    request = urllib.request.Request(f"{base}/api/kernels?token={token}", b"{}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        kernel = json.load(answer)["id"]
    client = BlockingKernelClient(connection_file=str(folder / f"kernel-{kernel}.json"))
    client.load_connection_file()
    client.start_channels()
    said = []
    try:
        hook = lambda message: said.append(message["content"].get("text", ""))
        client.execute_interactive(RANKS, timeout=60, output_hook=hook)
    finally:
        client.stop_channels()
    return [int(pid) for pid in re.findall(r"\d+", "".join(said))]


def test_one_ctrl_c_asks_and_the_second_ends_all(terminal, tmp_path):
    """JupyterLab's own question was hidden, waited five seconds, and forgot the ranks."""
    said = terminal.wait_for("it asks first")
    address = re.search(r"http://\S+", said)[0]
    ranks = started(address, tmp_path / "JUPYTER_RUNTIME_DIR")
    assert len(ranks) == 2 and is_there(ranks[0])
    terminal.type(CTRL_C)
    said = terminal.wait_for("Ctrl-C again: yes)", 10)
    assert "This ends JupyterLab, 1 running kernel and its ranks; saved notebooks stay." in said
    terminal.type("n\n")
    terminal.wait_for("JupyterLab goes on.", 10)
    with urllib.request.urlopen(address, timeout=30) as page:
        assert "JupyterLab" in page.read().decode()
    terminal.type(CTRL_C)
    terminal.wait_for("Ctrl-C again: yes)", 10)
    terminal.type(CTRL_C)
    assert terminal.wait() == 0
    assert "Traceback" not in terminal.said
    end = time.monotonic() + 20
    while any(map(is_there, ranks)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_there, ranks)), "ranks stay behind"


@pytest.mark.parametrize(
    ("typed", "meant"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_an_answer_is_understood(typed, meant):
    """Without an answer it goes on."""
    code = "from lib.course.jupyter import ending; ending.SECONDS = 1; "
    code += "print('meant', ending.is_meant('End it? '))"
    terminal = Terminal(sys.executable, "-c", code, cwd=ROOT)
    terminal.wait_for("End it?")
    terminal.type(typed)
    said = terminal.wait_for("meant ", 30)
    assert terminal.wait() == 0
    assert f"meant {meant}" in terminal.said
    assert ("No answer in 1 s: JupyterLab goes on." in said) == (typed == "")
    terminal.close()


def test_where_nobody_can_be_asked_it_ends(monkeypatch):
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert ending.is_meant("End it? ")


def test_the_question_says_what_would_end():
    assert ending.question(0).startswith("This ends JupyterLab; saved notebooks stay. End it? y/n")
    assert "JupyterLab, 3 running kernels and their ranks; saved" in ending.question(3)
    assert ending.kernels({"port": 1, "token": "t"}) == 0


def test_a_jupyterlab_that_does_not_end_is_killed(monkeypatch):
    import signal
    import subprocess

    monkeypatch.setattr(ending, "PATIENCE", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
    stubborn = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE
    )
    stubborn.stdout.readline()
    before = signal.getsignal(signal.SIGINT)
    try:
        assert ending.end(stubborn) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert stubborn.poll() == -signal.SIGKILL
