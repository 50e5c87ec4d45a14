"""What a World promises: sizes, several at once, nothing listening, no stranger let in."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from lib import World


def total():
    numbers = torch.ones(4)
    dist.all_reduce(numbers)
    return numbers[0].item()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16])
def test_sizes_up_to_16(size):
    with World(size) as world:
        assert world.run(total) == [float(size)] * size
        assert world.map(abs, range(-size, 0)) == list(range(size, 0, -1))


def test_map_wants_one_item_a_rank(worlds):
    with pytest.raises(ValueError, match="3 items for 4 ranks: give one to each rank"):
        worlds(4).map(abs, [1, 2, 3])


def test_two_worlds_at_once():
    with World(2) as small, World(3) as large:
        assert small.run(total) == [2.0, 2.0]
        assert large.run(total) == [3.0, 3.0, 3.0]
        assert small.run(total) == [2.0, 2.0]
        assert not {*small.run(os.getpid)} & {*large.run(os.getpid)}


def test_ranks_are_warm(worlds):
    world = worlds(4)
    assert world.run(os.getpid) == world.run(os.getpid)


def test_ranks_have_the_environment_and_the_path_of_the_notebook(monkeypatch):
    monkeypatch.setenv("COURSE", "many ranks")
    with World(2) as world:
        assert world.run(lambda: os.environ["COURSE"]) == ["many ranks"] * 2
        assert world.run(lambda: list(sys.path)) == [sys.path] * 2


def test_numbers_arrive_as_they_left(worlds):
    for dtype in (torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        numbers = torch.arange(-6, 6).reshape(3, 4).to(dtype)
        back = worlds(2).run(torch.clone, numbers.T)[1]
        assert back.dtype == dtype and torch.equal(back, numbers.T)
    assert worlds(2).run(torch.clone, torch.empty(0, 3))[0].shape == (0, 3)


def test_tied_weights_stay_tied_on_the_way():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with World(1) as world:
        back = world.run(same, model)[0]
    assert back[0].weight is back[1].weight


def same(model):
    assert model[0].weight is model[1].weight
    return model


# Who else can come in?


def listening(pids):
    """Give what these processes listen on, as the kernel's tables show it."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                inodes |= {target[8:-1]} if target.startswith("socket:") else set()
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{table}") as rows:
            for row in list(rows)[1:]:
                fields = row.split()
                if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                    found.append((table, fields[1]))
    return found


def make_groups():
    dist.new_group([0, 1])
    dist.new_group([1, 2])
    total()
    listener = socket.create_server(("127.0.0.1", 0))  # what `listening` would find
    sys.modules["__main__"].listener = listener
    return os.getpid()


def close_listener():
    sys.modules["__main__"].listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_listens_on_any_port():
    with World(3) as world:
        pids = world.run(make_groups)
        assert len(listening(pids)) == 3  # the three of the test itself: so the search does see
        world.run(close_listener)
        assert listening([*pids, os.getpid()]) == []
        assert world.run(total) == [3.0] * 3


def test_the_folder_is_the_owners_alone(worlds):
    folder = worlds(2)._processes.folder
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be nobody"
)
def test_a_stranger_on_the_same_machine_stays_outside(worlds):
    """Another user can neither list the folder, nor reach the server that ranks are forked from."""
    from multiprocessing import forkserver

    world = worlds(2)
    server = forkserver._forkserver._forkserver_address
    attempt = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: os.listdir(sys.argv[1]); print('listed')\n"
        "except PermissionError: print('kept out')\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[2]); print('connected')\n"
        "except (PermissionError, ConnectionRefusedError): print('kept out')\n"
    )
    assert isinstance(server, str) and not server.startswith("\0")
    done = subprocess.run(
        [sys.executable, "-I", "-c", attempt, world._processes.folder, server],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["kept out", "kept out"], done.stderr


@pytest.mark.quiet(again=False)
def test_what_a_killed_kernel_left_is_removed_by_the_next_world(worlds):
    mine = worlds(2)._processes.folder
    code = (
        "import os, signal, sys, lib\n"
        "world = lib.World(1); print(world._processes.folder, flush=True)\n"
        "for pid in [*world.run(os.getpid), os.getpid()]:\n"  # at once, as a machine may
        "    os.kill(pid, signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          start_new_session=True, timeout=60)  # fmt: skip
    left = done.stdout.strip()
    assert done.returncode == -9 and os.path.isdir(left)
    with World(1):
        assert not os.path.exists(left) and os.path.isdir(mine)


# Crowds, and full disks.

ONE_KERNEL = """
import sys, torch, torch.distributed as dist
from lib import World
def total():
    numbers = torch.ones(4); dist.all_reduce(numbers); return numbers[0].item()
with World(2) as world:
    assert world.run(total) == [2.0, 2.0]
    print("ready", flush=True)
    sys.stdin.readline()  # all of them at once
    for _ in range(20):
        assert world.run(total) == [2.0, 2.0]
print("done")
"""


@pytest.mark.quiet(again=False)
def test_twenty_kernels_on_one_machine_at_once():
    kernels = [
        subprocess.Popen([sys.executable, "-c", ONE_KERNEL], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]  # fmt: skip
    try:
        assert [kernel.stdout.readline() for kernel in kernels] == ["ready\n"] * 20
        told = [kernel.communicate("go\n", timeout=120)[0] for kernel in kernels]
    finally:
        for kernel in kernels:
            kernel.kill()
    assert told == ["done\n"] * 20


FULL = """
import os, torch
from lib import World
with World(2) as world:
    assert [r.sum().item() for r in world.run(torch.ones, 5_000_000)] == [5e6, 5e6]
try:
    open("/dev/shm/more", "wb").write(b"x" * 100_000)
except OSError as error:
    print("full" if error.errno == 28 else error)
"""


def test_a_full_dev_shm():
    if shutil.which("unshare") is None:
        pytest.skip("no `unshare` command: a full /dev/shm was not tried")
    fill = "mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 65536 /dev/zero > /dev/shm/full; "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", fill + 'exec "$0" -c "$1"', sys.executable, FULL],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "must be superuser" in done.stderr:
        pytest.skip("not allowed to mount here: a full /dev/shm was not tried")
    assert done.stdout == "full\n", done.stderr


@pytest.mark.quiet(again=False)
def test_500_multi_rank_calls_a_minute_and_far_more(worlds):
    world = worlds(4)
    began = time.monotonic()
    for _ in range(100):
        world.run(total)
    assert time.monotonic() - began < 12.0  # 500 a minute; seen: some thousands
