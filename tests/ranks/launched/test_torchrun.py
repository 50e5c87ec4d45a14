"""The same function under World and under torchrun, on two "hosts"."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib import World
from lib.ranks.gpus.devices import accelerator

SCRIPT = """
import json, sys
from lib import World
from tests.ranks.launched.test_torchrun import step

with World.from_torchrun() as world:
    ledger = world.record(step, 3)
    mapped = world.map(abs, [-1, -2, -3, -4])
    if world.rank == 0:
        totals = [[t["rank"], t["op"], t.count, t.bytes] for t in ledger.totals(lanes=("comm",))]
        late = max(row.moving for row in ledger if row.lane == "comm")
        print("ANSWER", json.dumps([ledger.results, mapped, totals, late]))
"""


def step(amount):
    """An ordinary function: it knows nothing of who started its ranks."""
    numbers = torch.full((4,), float(dist.get_rank() + amount))
    dist.all_reduce(numbers)
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty(4)
    sends = dist.P2POp(dist.isend, numbers, (rank + 1) % size)
    receives = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    return [rank, received.sum().item()]


def agents(tmp_path, endpoint, hosts):
    """Start one torchrun agent a host, each with two ranks; give what the first rank printed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[3])
    started = []
    for number, (prefix, address) in enumerate(hosts):
        command = [
            *prefix, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
            "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
            f"--local-addr={address}", "--rdzv-id=two-hosts",
            f"--rdzv-conf=is_host={number == 0}", str(script),
        ]  # fmt: skip
        started.append(subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
    try:
        told = [process.communicate(timeout=60) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    lines = "".join(out for out, _ in told).splitlines()
    return json.loads(next(line for line in lines if line.startswith("ANSWER"))[7:])


def check(answer, worlds):
    results, mapped, totals, late = answer
    ledger = worlds(4).record(step, 3)
    assert results == ledger.results == [[rank, 72.0] for rank in range(4)]
    assert mapped == [1, 2, 3, 4]
    assert totals == [
        [t["rank"], t["op"], t.count, t.bytes] for t in ledger.totals(lanes=("comm",))
    ]
    assert 0.0 < late < 1.0  # one clock: two hosts' rows overlap as they did


def free_port():
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


def test_two_agents_on_loopback(tmp_path, worlds):
    hosts = [([], "127.0.0.1"), ([], "127.0.0.1")]
    check(agents(tmp_path, f"127.0.0.1:{free_port()}", hosts), worlds)


@pytest.fixture
def two_hosts():
    """Two network namespaces joined by a cable: two hosts as far as any program can tell."""
    tag = f"{os.getpid() % 100000}"
    names = [f"mr{tag}a", f"mr{tag}b"]
    setup = [["ip", "netns", "add", name] for name in names]
    setup += [["ip", "link", "add", f"v{tag}a", "type", "veth", "peer", "name", f"v{tag}b"]]
    for name, cable, address in zip(names, (f"v{tag}a", f"v{tag}b"), ("1", "2"), strict=True):
        inside = ["ip", "netns", "exec", name, "ip"]
        setup += [
            ["ip", "link", "set", cable, "netns", name],
            [*inside, "addr", "add", f"10.77.0.{address}/24", "dev", cable],
            [*inside, "link", "set", cable, "up"],
            [*inside, "link", "set", "lo", "up"],
        ]
    try:
        if shutil.which("ip") is None:
            pytest.skip("no `ip` command: two hosts in network namespaces were not tried")
        for command in setup:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces ({done.stderr.strip()}): two hosts not tried")
        yield [(["ip", "netns", "exec", n], f"10.77.0.{i}") for i, n in enumerate(names, 1)]
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_two_hosts_in_network_namespaces(tmp_path, worlds, two_hosts):
    check(agents(tmp_path, "10.77.0.1:29533", two_hosts), worlds)


def test_without_a_launcher_it_says_how_to_start(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match=r"RANK is not set. Start it as: torchrun --nproc-per"):
        World.from_torchrun()


def test_clocks_of_two_hosts_are_brought_together(worlds):
    """A rank whose clock is an hour ahead is found out to the millisecond."""
    offsets = worlds(2).run(clock_behind, 3600.0)
    assert offsets[0] == 0.0 and abs(offsets[1] + 3600.0) < 0.05


def clock_behind(ahead):
    from lib.ranks.launched import torchrun

    real = time.monotonic_ns
    torchrun.time.monotonic_ns = lambda: real() + int(ahead * 1e9) * dist.get_rank()
    try:
        return torchrun._behind_rank_0()
    finally:
        torchrun.time.monotonic_ns = real


def test_the_environment_keeps_a_launched_world_on_the_cpu_too(monkeypatch):
    monkeypatch.setenv("RANKS_DEVICE", "cpu")
    with pytest.raises(ValueError, match="RANKS_DEVICE=cpu in the environment keeps every World"):
        World.from_torchrun(device=accelerator() or "cuda")
