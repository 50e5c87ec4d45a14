"""The stop button, what cannot travel, and worlds that cannot be."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.kernel import launch
from lib.ranks.kernel.processes import Processes
from lib.ranks.shared import folders
from tests.ranks.test_failures import failing, recall, remember, total
from tests.stop import pressed_after


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture
def kept(world):
    """Something made on the ranks before the failure, which must still be there after it."""
    world.run(remember)
    yield
    assert world.run(recall) == [0, 10, 20, 30]


# The stop button.


def endless():
    while True:
        pass


def asleep():
    time.sleep(100)


def one_endless():
    if dist.get_rank() == 0:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass
    total()


def stubborn():
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


@pytest.mark.parametrize("step", [endless, asleep, one_endless])
def test_the_stop_button_in_a_call(world, kept, step):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught, pressed_after(0.3):
        world.run(step)
    assert time.monotonic() - began < 3.0
    assert "rank 0 was at test_stop_button.py, line " in str(caught.value)
    if step is one_endless:
        assert "rank 1 waited in all_reduce (group world, number" in str(caught.value)
    assert world.run(total) == [4.0] * 4


def test_the_stop_button_against_code_that_swallows_it(world):
    with pytest.raises(KeyboardInterrupt, match="started anew"), pressed_after(0.3):
        world.run(stubborn)
    assert world.run(total) == [4.0] * 4


@pytest.mark.parametrize("seconds", [0.005, 0.02, 0.05, 0.1])
def test_the_stop_button_in_start_up(seconds):
    launch.warm()
    before = set(folders._locks)
    with contextlib.suppress(KeyboardInterrupt), pressed_after(seconds):
        World(4).close()
    assert set(folders._locks) == before
    with World(2) as fresh:
        assert fresh.run(total) == [2.0, 2.0]


COLD = """
import os, signal, threading
os.setsid()  # a terminal and JupyterLab send the signal to the whole process group
from lib import World
timer = threading.Timer({seconds}, lambda: os.killpg(0, signal.SIGINT))
timer.start()
try:
    World(4)
    timer.join()
except KeyboardInterrupt as told:
    print("stopped")
with World(2) as world:
    print(world.run(len, "ab"))
"""


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.8])
def test_the_stop_button_while_the_first_world_of_a_kernel_still_loads_torch(seconds):
    source = COLD.format(seconds=seconds)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith("World(")]
    assert told == ["stopped", "[2, 2]"], done.stderr  # besides on which device a World is
    assert done.stderr == ""


def test_the_stop_button_in_the_last_moment_of_start_up(monkeypatch):
    """The ranks have met by then, so there is nothing left to wait for that would notice it."""
    meet, before = Processes.recover, set(folders._locks)

    def pressed_then(processes, *given):
        os.kill(os.getpid(), signal.SIGINT)
        return meet(processes, *given)

    monkeypatch.setattr(Processes, "recover", pressed_then)
    with pytest.raises(KeyboardInterrupt, match="was stopped while it was starting"):
        World(2)
    assert set(folders._locks) == before


# What travels.


def test_a_result_of_100_megabytes(world):
    results = world.run(torch.ones, 25_000_000)
    assert [result.sum().item() for result in results] == [25e6] * 4


def test_an_argument_of_100_megabytes(world):
    numbers = torch.ones(25_000_000)
    assert world.run(torch.Tensor.sum, numbers) == [torch.tensor(25e6)] * 4


def returns_a_lock():
    return {"model": [1, threading.Lock()]}


def test_a_result_that_cannot_be_pickled(world, kept):
    error = failing(world, returns_a_lock)
    assert "returned what cannot travel to the notebook" in str(error)
    assert "the result['model'][1] (lock): cannot pickle" in str(error)


def test_an_argument_that_cannot_be_pickled(world):
    with pytest.raises(RankError, match=r"the arguments\[0\]\[1\] \(lock\)"):
        world.run(print, [1, threading.Lock()])
    assert world.run(total) == [4.0] * 4


def test_100_000_printed_lines_from_each_rank(world, capsys):
    world.run(prints_a_lot)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "rank 0 │ line 0 of rank 0"
    assert shown[500] == "rank 0 │ … 99,500 more lines: world.printed[0] holds them all"
    assert len(shown) == 4 * 501
    assert [text.count("\n") for text in world.printed] == [100_000] * 4


def prints_a_lot():
    for i in range(100_000):
        print(f"line {i} of rank {dist.get_rank()}")


def test_what_child_processes_print_arrives_too(world, capsys):
    world.run(os.system, "echo from a child")
    assert capsys.readouterr().out.splitlines() == [f"rank {r} │ from a child" for r in range(4)]


# Worlds that cannot be.


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "4", 65])
def test_a_world_of_a_size_that_cannot_be(size):
    with pytest.raises(ValueError, match="the number of ranks is a whole number from 1 to 64"):
        World(size)


def test_a_closed_world_says_so():
    world = World(1)
    world.close()
    with pytest.raises(RuntimeError, match="This World is closed"):
        world.run(total)


def test_a_call_inside_a_call_is_refused(world):
    with pytest.raises(RankError, match="cannot travel"):
        world.run(lambda: world.run(total))
