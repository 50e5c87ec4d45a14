"""The stop button and sudden ends at every moment: the kernel never waits for what cannot come."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.transport import framing
from lib.ranks.transport.channel import Inbox, Outbox
from tests.ranks.test_failures import failing, total
from tests.stop import pressed_after


@pytest.fixture
def world(worlds):
    return worlds(4)


# What travels in pieces.


def test_a_message_that_arrives_in_pieces():
    """Case 22: the kernel's ends take what is there and never wait for the rest."""
    a, b = os.pipe()
    with os.fdopen(a, "rb") as reader, os.fdopen(b, "wb") as writer:
        outbox, inbox = Outbox(writer), Inbox(reader)
        big, sent, whole = bytes(range(256)) * 4096, False, None
        large = framing.pieces([b"head", memoryview(big), b""])
        assert not outbox.put(large)  # more than a pipe holds
        while whole is None:
            whole, sent = inbox.read(), sent or outbox.flush()
        assert sent and whole == [b"head", big, b""] and inbox.read() is None
        assert outbox.put(framing.pieces([b"x"])) and inbox.read() == [b"x"]
        assert inbox.read() is None
        writer.close()
        with pytest.raises(EOFError):
            inbox.read()


def scarce(limit):
    """Let buffers above `limit` bytes have no room in this process."""

    def allocate(size=0):
        if isinstance(size, int) and size > limit:
            raise MemoryError
        return bytearray(size)

    framing.bytearray = allocate


def plenty():
    del framing.bytearray


def test_a_result_without_room_in_the_kernel(world):
    """Case 22: a MemoryError while a result arrives is a sentence, and the next call works."""
    scarce(1 << 20)
    try:
        with pytest.raises(RankError, match="its answer is too large: 0.0 GB do not fit"):
            world.run(torch.ones, 1_000_000)
    finally:
        plenty()
    assert world.run(total) == [4.0] * 4


def test_an_argument_without_room_on_a_rank(world):
    """Case 22: a MemoryError while an argument arrives ends the call, not the rank."""
    pids = world.run(os.getpid)
    world.run(scarce, 1 << 20)
    with pytest.raises(RankError, match="ranks 0, 1, 2 and 3 raised TooLarge: 0.0 GB do not fit"):
        world.run(len, torch.ones(1_000_000))
    world.run(plenty)
    assert world.run(os.getpid) == pids


# The stop button.


def test_the_stop_button_while_an_argument_is_under_way():
    """Case 22: a rank that does not read keeps nobody from stopping; the others keep theirs."""
    with World(2) as world:
        pids = world.run(os.getpid)
        os.kill(pids[1], signal.SIGSTOP)
        began, numbers = time.monotonic(), torch.ones(1_000_000)
        anew = pytest.raises(KeyboardInterrupt, match="rank 1 was started anew")
        with anew, pressed_after(0.2):
            world.run(len, numbers)
        assert time.monotonic() - began < 12.0
        assert world.run(total) == [2.0, 2.0] and world.run(os.getpid)[0] == pids[0]


def chatter():
    while True:
        print("x" * 3000)


def test_the_stop_button_while_ranks_print_live(world, capsys):
    """Case 21: a rank that is stopped while it sends a line sends the line to its end."""
    pids = world.run(os.getpid)
    for _ in range(6):
        with pytest.raises(KeyboardInterrupt), pressed_after(0.15):
            world.live(chatter)
        capsys.readouterr()
    assert world.run(total) == [4.0] * 4 and world.run(os.getpid) == pids


def test_two_threads_on_one_world(world):
    """Case 21: a second call while one runs is refused in a sentence, from any thread."""
    refused = []

    def call():
        try:
            world.run(time.sleep, 0.2)
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert len(refused) == 3 and {text[:32] for text in refused} == {
        "This World is in a call already."
    }
    assert world.run(total) == [4.0] * 4


def fail():
    if dist.get_rank() == 2:
        raise ValueError("bad")
    total()


def test_the_stop_button_during_mending_costs_no_rank_its_life(world):
    """Case 22: stops at random moments of a failure and of what follows it lose no state."""
    pids, dice = world.run(os.getpid), random.Random(22)
    for _ in range(10):
        with suppress(KeyboardInterrupt), pressed_after(dice.random() * 0.1):
            with pytest.raises(RankError):
                world.run(fail)
    assert world.run(total) == [4.0] * 4 and world.run(os.getpid) == pids


# Folders and servers that go away.


def close_everything():
    os.closerange(3, 200)


def test_a_rank_without_descriptors_takes_nothing_with_it():
    """Case 21: a rank that ends while the kernel lives leaves the world's folder alone."""
    with World(2) as world:
        with pytest.raises(RankError):
            world.run(close_everything)
        assert os.path.isdir(world._processes.folder)
        assert world.run(total) == [2.0, 2.0]


def test_a_process_that_is_closed_is_forgotten_once():
    """Its connections have no numbers any more, and the selector may hold others with theirs."""
    with World(2) as world:
        process = world._processes.by_rank[1]
        os.kill(process.process.pid, signal.SIGKILL)
        world._processes._forget(process)
        process.close()
        world._processes._forget(process)
        assert [failure.rank for failure in world._processes.unnoticed_deaths()] in ([], [1])


SERVER_KILLED = """
import os, signal, threading, time, lib
from multiprocessing import forkserver
from lib import World
if __name__ == "__main__":
    with World(2) as world:
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        time.sleep(0.3)
        try:
            world.run(len, "ab")
        except lib.RankError as error:
            print(str(error).split(":")[0])
        print(os.path.isdir(world._processes.folder), world.run(len, "ab"))
"""


def test_the_server_of_the_ranks_is_killed():
    """Case 21: ranks end with their server; the world starts others, in its old folder."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER_KILLED], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines()[-1] == "True [2, 2]", done.stderr
    assert done.stdout.splitlines()[-2] == "since the last call ranks 0 and 1 died"


def test_a_world_whose_folder_was_removed_says_so():
    """Case 21: a folder that is gone is a sentence at once, and the stop button stays alive."""
    import shutil

    with World(2) as world:
        shutil.rmtree(world._processes.folder)
        began = time.monotonic()
        with pytest.raises(RankError, match="was removed while it was in use. Make a new World"):
            world.run(one_raises_of_two)
        assert time.monotonic() - began < 10.0


def one_raises_of_two():
    if dist.get_rank() == 1:
        raise ValueError("bad")
    total()


# Several ends at once.


def remember():
    sys.modules["__main__"].kept = os.getpid()


def recall():
    return getattr(sys.modules["__main__"], "kept", None) == os.getpid()


@pytest.mark.parametrize("apart", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2])
def test_two_ranks_killed_a_moment_apart(world, apart):
    """Case 24: the message names all ranks that lost their state, and only these."""
    world.run(remember)
    pids = world.run(os.getpid)

    def kill():
        time.sleep(0.1)
        os.kill(pids[1], signal.SIGKILL)
        time.sleep(apart)
        os.kill(pids[3], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankError) as caught:
        world.run(time.sleep, 5.0)
    killer.join()
    time.sleep(0.05)
    text = " ".join(str(caught.value).split())
    try:
        kept = world.run(recall)
    except RankError as second:  # the later one died after the mending
        assert "rank 1 was started anew" in text and "rank 3 was started anew" in str(second)
    else:
        assert "ranks 1 and 3 were started anew" in text, text
        assert kept == [True, False, True, False] and "other ranks keep theirs" in text
    assert world.run(recall) == [True, False, True, False]


def work(dice):
    for _ in range(20):
        total()
        if dice.random() < 0.1:
            time.sleep(0.01)


def test_random_ends_and_stops():
    """Case 22: ranks killed, continued or stopped at random, and the stop button beside."""
    dice = random.Random(7)
    with World(3) as world:
        for _ in range(10):
            pids, moment = world.run(os.getpid), dice.random() * 0.15
            kind, victim = dice.choice(["kill", "press", "both"]), dice.choice(pids)
            kill = threading.Timer(moment, os.kill, (victim, signal.SIGKILL))
            press = pressed_after(dice.random() * 0.15) if kind != "kill" else nullcontext()
            if kind != "press":
                kill.start()
            began = time.monotonic()
            with suppress(KeyboardInterrupt), press, suppress(RankError):
                world.run(work, random.Random(1))
            assert time.monotonic() - began < 10.0
            if kind != "press":
                kill.join()
                time.sleep(0.2)  # until the system has ended it
            try:
                world.run(total)
            except RankError as error:
                assert "since the last call" in str(error)
            assert world.run(total) == [3.0] * 3


# A group is not ended while gloo still works for it.


class NeverOver:
    def is_completed(self):
        return False


def leaves(what):
    sys.modules["__main__"].left = weakref.ref(dist.group.WORLD)
    dist.all_reduce(torch.ones(4), async_op=True)  # nobody waits for it
    if dist.get_rank() == 1:
        return dist.barrier()
    if what == "what never ends":
        dist.group.WORLD.unfinished.append(NeverOver())
    raise ValueError("bad value")


def is_gone():
    gc.collect()
    return sys.modules["__main__"].left() is None


def test_a_group_whose_threads_never_come_back_is_not_ended(worlds):
    """Its end would wait for them in C++, wherever the last that holds it lets go of it."""
    world = worlds(2)
    failing(world, leaves, "what never ends")
    assert not world.run(is_gone)[0]
    gone = []
    while not any(gone) and len(gone) < 5:  # busy threads may not come back within the patience
        failing(world, leaves, "what ends")  # with groups that nobody else has used
        gone += [world.run(is_gone)[0]]
    assert any(gone)
