"""What a rank's code starts ends with the rank; data loaders work there as in the notebook."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lib import RankError, World
from tests.every import every


def start_children(sessions=(False, True)):
    """Start a child of a child, in the rank's session and in one of its own."""
    script = "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    children = [
        subprocess.Popen([sys.executable, "-c", script], start_new_session=session)
        for session in sessions
    ]
    me, expected = psutil.Process(), 2 * len(children)
    while len(found := me.children(recursive=True)) < expected:
        time.sleep(0.02)
    return [child.pid for child in found]


def all_gone(pids, seconds=3.0):
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    return not psutil.wait_procs(alive, timeout=seconds)[1]


def test_children_end_with_the_world():
    """Case 29: at close nothing is left of what a step has started, whatever its session."""
    with World(2) as world:
        started = sum(world.run(start_children), [])
        assert len(started) == 8 and all(psutil.pid_exists(pid) for pid in started)
    assert all_gone(started)


def test_children_end_with_a_rank_that_dies():
    """Case 29: killed or ended by its own code, a rank leaves nobody of its session behind."""
    with World(2) as world:
        started, kept = world.run(start_children, [False])
        os.kill(world.run(os.getpid)[0], signal.SIGKILL)
        with pytest.raises(RankError, match="rank 0 died"):
            for _ in range(100):
                world.run(time.sleep, 0.05)
        assert all_gone(started)
        assert every(
            psutil.pid_exists(pid) for pid in kept
        )  # the other rank lives, and its own too
        with pytest.raises(RankError, match="rank 1 died"):
            world.run(end_rank_1)
        assert all_gone(kept)


def end_rank_1():
    if torch.distributed.get_rank() == 1:
        os._exit(3)


KERNEL = """
import time
from lib import World
from tests.ranks.process.test_child_processes import start_children
world = World(2)
print(*sum(world.run(start_children), []), flush=True)
time.sleep(300)
"""


def test_children_end_with_a_killed_kernel():
    """Case 29: the ranks hear that the kernel is gone, and take their children with them."""
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {"PYTHONPATH": os.getcwd()})  # fmt: skip
    with kernel:
        started = [int(pid) for pid in kernel.stdout.readline().split()]
        kernel.kill()
    assert len(started) == 8 and all_gone(started)


IN_A_NOTEBOOK = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 3: print("item 3")
        return torch.tensor(i * i)
def total(**options):
    loader = DataLoader(Squares(), batch_size=2, num_workers=2, **options)
    return [sum(int(batch.sum()) for batch in loader) for _ in range(2)]
"""


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_a_dataset_of_the_notebook_is_loaded_by_workers_of_a_rank(options):
    """Case 29: workers are forked, so that a Dataset of a cell serves; they end with the call."""
    names = {"__name__": "__main__"}
    exec(IN_A_NOTEBOOK, names)
    with World(2) as world:
        assert world.run(names["total"], **options) == [[140, 140]] * 2
        assert world.printed == ["item 3\nitem 3\n"] * 2
        assert all_gone(sum(world.run(children), []))


def children():
    return [child.pid for child in psutil.Process().children(recursive=True)]


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def keep_a_loader():
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    sys.modules["__main__"].loader = loader
    return sum(int(batch.sum()) for batch in loader), children()


def test_persistent_workers_that_a_name_holds_live_on_and_end_with_the_world():
    """Case 29: they stay between calls, and nothing of them stays after the world's end."""
    with World(2) as world:
        before = semaphores()
        (total, first), (_, second) = world.run(keep_a_loader)
        assert total == 28 and len(first) == len(second) == 2  # no server, no tracker beside them
        assert world.run(lambda: sum(int(b.sum()) for b in sys.modules["__main__"].loader)) == [
            28,
            28,
        ]
        assert world.run(children) == [first, second]
    assert all_gone(first + second)
    assert semaphores() <= before


def semaphores():
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir("/dev/shm") if name.startswith(("sem.", "torch_"))}
    return set()
