"""What a front end is told while a call runs, and that nothing of it is stored."""

import re
import time

import nbformat
import pytest
from nbclient import NotebookClient

from lib.ranks.kernel import progress
from tests.ranks.test_notebook import Notebook

DEFINITIONS = """
import os, time, torch, torch.distributed as dist
from lib import World
def slow(seconds):
    print("before", dist.get_rank())
    time.sleep(seconds * dist.get_rank())
    print("after", dist.get_rank())
def waits():
    time.sleep(2 * dist.get_rank())
    dist.all_reduce(torch.ones(1))
def fails(seconds):
    print("trying")
    time.sleep(seconds)
    raise ValueError("so")
world = World(2)
"""
PRINTED = "".join(f"rank {r} │ {word} {r}\n" for r in (0, 1) for word in ("before", "after"))
OVER = {"over": True}


class Watched(Notebook):
    """A kernel that also gives what a front end is told of a cell's progress."""

    def watch(self, source, then=lambda: None):
        """Run a cell, and call `then` at the first sign; give what is shown, and (when, told)."""
        told, heard, sent = [], self.client.get_iopub_msg, self.send(source)

        def listening(**options):
            message = heard(**options)
            content = message["content"]
            if message["msg_type"] == "comm_msg" and content["comm_id"] == progress.NAME:
                assert message["parent_header"]["msg_id"] == sent
                told.append((time.monotonic(), content["data"]))
                if len(told) == 1:
                    then()
            return message

        self.client.get_iopub_msg = listening
        try:
            return self.read(sent), told
        finally:
            self.client.get_iopub_msg = heard


def watched(definitions: str):
    """A fixture: a notebook whose first cell has run, and whose progress is watched."""

    @pytest.fixture(scope="module")
    def notebook():
        opened = Watched()
        opened.cell(definitions)
        yield opened
        opened.close()

    return notebook


notebook = watched(DEFINITIONS)


def test_a_long_call_tells_who_is_done_and_what_was_printed(notebook):
    began = time.monotonic()
    shown, told = notebook.watch("world.run(slow, 2.5);")
    assert shown == PRINTED  # in rank order, as a short call prints it
    *during, (_, last) = told
    assert last == OVER
    assert 2 <= len(during) <= 12, "at most four times a second, from the first second on"
    assert during[0][0] - began > 0.9
    said = during[-1][1]
    assert (said["done"], said["ranks"]) == (1, 2)
    assert said["text"].startswith("1 of 2 ranks is done, ")
    assert said["text"].endswith(" s. Rank 1 is running.")
    assert said["lines"] == ["rank 0 │ before 0", "rank 0 │ after 0", "rank 1 │ before 1"]


def test_who_waits_is_told_with_what_it_waits_in(notebook):
    shown, told = notebook.watch("world.run(waits);")
    texts = [data["text"] for _, data in told[:-1]]
    waiting = r"0 of 2 ranks are done, 1\.\d s\. Rank 0 waits in all_reduce; rank 1 is running\."
    assert shown == "" and re.fullmatch(waiting, texts[0]) and told[-1][1] == OVER
    assert all(data["lines"] == [] for _, data in told[:-1])


def test_a_ranks_cell_and_a_recorded_call_show_life_too(notebook):
    shown, told = notebook.watch("%%ranks 1\nprint('here')\ntime.sleep(2)")
    assert shown == "rank 1 │ here\n"
    assert told[-2][1]["lines"] == ["rank 1 │ here"] and told[-1][1] == OVER
    assert told[-2][1]["ranks"] == 1
    shown, told = notebook.watch("world.record(slow, 1.6);")
    assert shown == PRINTED and told[-1][1] == OVER


def test_what_is_printed_as_it_comes_is_not_told_twice(notebook):
    shown, told = notebook.watch("world.live(slow, 1.8);")
    assert sorted(shown.splitlines()) == sorted(PRINTED.splitlines())
    assert len(told) > 2 and all(data["lines"] == [] for _, data in told[:-1])


def test_a_short_call_tells_nothing(notebook):
    assert notebook.watch("for _ in range(15): world.run(slow, 0.1);") == (15 * PRINTED, [])


def test_a_call_that_fails_and_one_that_is_stopped_are_over(notebook):
    shown, told = notebook.watch("world.run(fails, 1.6)")
    assert shown.startswith("rank 0 │ trying\nrank 1 │ trying\nRankError: ranks 0 and 1 raised")
    assert len(told) > 2 and told[-1][1] == OVER
    shown, told = notebook.watch("world.run(slow, 60)", notebook.manager.interrupt_kernel)
    assert shown.startswith("rank 0 │ before 0\nrank 0 │ after 0\nrank 1 │ before 1\nKeyboardInt")
    assert len(told) > 1 and told[-1][1] == OVER
    assert notebook.watch("world.run(slow, 0);") == (PRINTED, [])


def test_a_stored_notebook_is_the_same_however_long_it_took(monkeypatch):
    """What is live leaves no byte in what nbclient stores."""
    cells = [
        DEFINITIONS + "pause = float(os.environ['PAUSE'])",
        "print('mine'); world.run(slow, pause)",
        "%%ranks\nprint('here')\ntime.sleep(pause)\ndist.get_rank()",
        "world.run(fails, pause)",
    ]
    stored, comms = [], []

    class Client(NotebookClient):
        def handle_comm_msg(self, outputs, message, index):
            comms.append(message["content"]["comm_id"])
            return super().handle_comm_msg(outputs, message, index)

    for pause in ("0", "1.5"):
        monkeypatch.setenv("PAUSE", pause)
        made = [nbformat.v4.new_code_cell(cell, id=f"cell-{i}") for i, cell in enumerate(cells)]
        notebook = nbformat.v4.new_notebook(cells=made)
        options = {"allow_errors": True, "record_timing": False, "coalesce_streams": True}
        Client(notebook, kernel_name="python3", **options).execute()
        stored.append(nbformat.writes(notebook))
        assert set(comms) == (set() if pause == "0" else {progress.NAME})
    assert stored[0] == stored[1] and stored[0].count('"output_type"') == 5
