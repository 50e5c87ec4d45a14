"""Many kernels that choose GPUs at once, and Worlds on the GPUs that were chosen."""

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks import world
from lib.ranks.gpus import devices, gpu_locks
from lib.ranks.gpus.placement import Placement, choose
from lib.ranks.kernel.stop_button import patient
from tests.every import every
from tests.ranks.gpus.test_placement import SPEEDS

# Many kernels at once.


def all_at_once(sizes):
    """Let a process for each size choose at the same moment; give what each got.

    They hold their GPUs until all have chosen, and are killed then.
    """
    go, start = os.pipe()
    told, tell = os.pipe()
    children = []
    for size in sizes:
        child = os.fork()
        if not child:
            try:
                os.read(go, 1)
                place = choose(size)
                os.write(tell, (json.dumps([size, place.gpus]) + "\n").encode())
                time.sleep(60)
            finally:
                os._exit(1)
        children.append(child)
    os.write(start, b"!" * len(sizes))
    text = b""
    while text.count(b"\n") < len(sizes):
        text += os.read(told, 1 << 16)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for end in (go, start, told, tell):
        os.close(end)
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("sizes", [[1] * 30, [2] * 15, [4] * 4 + [1] * 4, [10, 10, 10]])
def test_thirty_kernels_never_take_the_same_gpu(machine, sizes):
    """Where enough are free, each gets as many as it needs; when they are killed all are free."""
    machine(sum(sizes))
    for _ in range(3):
        answers = all_at_once(sizes)
        assert every(len(numbers) == size for size, numbers in answers)
        assert sorted(n for _, numbers in answers for n in numbers) == list(range(sum(sizes)))


def test_where_all_gpus_are_too_few_somebody_gets_them_whole(machine):
    machine(4)
    for _ in range(5):
        answers = all_at_once([4] * 8)
        assert sorted(len(numbers) for _, numbers in answers) == [0] * 7 + [4]


# Worlds.


class ProcessesDouble:
    """Stands for the rank processes, which would need GPUs."""

    def __init__(self, size, placement, interrupts):
        self.placement = placement

    def close(self):
        self.placement.release()


@pytest.fixture
def no_processes(monkeypatch):
    monkeypatch.setattr(world, "Processes", ProcessesDouble)


def test_a_world_says_where_it_runs(machine, no_processes, capsys):
    machine(4)
    four = World(4)
    assert repr(four) == "World of 4 ranks on cuda:0–3, NCCL"
    assert (four.device, four.backend) == ("cuda", "nccl")
    assert capsys.readouterr().out == ""
    another = World(1)
    assert repr(another) == "World of 1 rank on the CPU, gloo (0 of 4 GPUs are free)"
    assert capsys.readouterr().out == (
        "World(1) runs on the CPU, since 0 of 4 GPUs are free: cuda:0–3 (held by another World). "
        "World(1, device='cuda') shares them.\n"
    )
    World(2, gpus=[2, 3])
    assert capsys.readouterr().out == (
        "World(2, gpus=[2, 3]) shares cuda:2–3 (held by another World).\n"
    )
    four.close()
    assert repr(four) == "World of 4 ranks on cuda:0–3, NCCL, closed"
    assert repr(World(4)) == "World of 4 ranks on cuda:0–3, NCCL"


def test_slow_motion_runs_on_the_cpu_and_says_so(machine, no_processes, capsys):
    machine(4)
    slow = World(2, slow_motion=SPEEDS)
    assert repr(slow) == (
        f"World of 2 ranks on the CPU, gloo (slow motion needs no GPU), in slow motion: {SPEEDS}"
    )
    assert capsys.readouterr().out == ""  # a chapter prints the same on every machine
    fast = World(2)
    with pytest.raises(ValueError) as error:
        fast.slow_motion = SPEEDS
    assert str(error.value) == (
        "Slow motion runs on CPU ranks, and this World runs on cuda:0–1, NCCL. "
        "Make another one with World(..., slow_motion=...): it takes the CPU."
    )
    assert fast.slow_motion is None
    fast.slow_motion = None
    machine(0)
    assert "(slow motion" not in repr(World(2, slow_motion=SPEEDS))


def test_on_the_cpu_slow_motion_can_be_set_and_taken_back(worlds):
    cpu = worlds(2)
    assert repr(cpu) == "World of 2 ranks on the CPU, gloo"
    cpu.slow_motion = SPEEDS
    try:
        assert "in slow motion: SlowMotion('H100'" in repr(cpu)
        assert cpu.record(torch.ones, 3).source == "slow motion"
    finally:
        cpu.slow_motion = None
    assert cpu.record(torch.ones, 3).source == "measured"


def test_ranks_that_could_not_start_give_the_gpus_back(machine, monkeypatch):
    machine(2)

    def fails(*_, **__):
        raise OSError("no process can be started")

    for name in ("lib.ranks.shared.folders.make", "lib.ranks.kernel.launch.start"):
        with monkeypatch.context() as broken:
            broken.setattr(name, fails)
            with pytest.raises(OSError) as kept:  # with its frames, as a notebook keeps it
                World(2)
        assert choose(2).gpus == (0, 1), kept


def test_a_world_that_takes_the_cpu_works(machine, capsys):
    machine(4, used=[1, 1, 1, 1])
    with World(2) as cpu:
        assert cpu.run(dist.get_rank) == [0, 1]
        assert cpu.run(torch.get_default_device) == [torch.device("cpu")] * 2
    assert "World(2) runs on the CPU, since 0 of 4 GPUs are free" in capsys.readouterr().out


def note_what_is_taken():
    """Let the ranks of a test note the calls that would take a GPU."""
    import builtins

    from lib.ranks.groups import process_group

    builtins.calls = []
    torch.accelerator.set_device_index = lambda number: builtins.calls.append(number)
    process_group.make_default = lambda device: builtins.calls.append(device)
    process_group.lead_threads = lambda device: builtins.calls.append(f"threads on {device}")
    leave = process_group.leave
    process_group.leave = lambda why: (builtins.calls.append("leave"), leave(why))


def read_what_was_taken():
    import builtins

    return builtins.calls


def test_a_rank_takes_the_gpu_that_the_world_chose_before_anything_else(monkeypatch):
    monkeypatch.delenv("RANKS_GPU_SHARES", raising=False)
    with World(3, device="cpu") as three:
        three.run(note_what_is_taken)
        three._processes.placement = Placement("pretend", "gloo", (5, 7))
        with patient() as interrupts:
            three._processes.recover([], "the test wants it", interrupts)
        assert three.run(read_what_was_taken) == [
            [number, f"pretend:{number}", f"threads on pretend:{number}", "leave"]
            for number in (5, 7, 5)
        ]


pretended = pytest.mark.skipif(
    devices.accelerator() != "pretend", reason="_build/pretend is not on PYTHONPATH"
)


@pretended
def test_ranks_work_on_the_gpus_that_were_chosen(tmp_path, monkeypatch):
    monkeypatch.delenv("RANKS_DEVICE", raising=False)
    monkeypatch.setattr(gpu_locks, "_FOLDER", str(tmp_path))
    with World(3, gpus=[3, 1], backend="gloo") as three:
        assert repr(three) == "World of 3 ranks on pretend:3, 1, gloo"
        gpus = [torch.device(f"pretend:{number}") for number in (3, 1, 3)]
        assert three.run(torch.get_default_device) == gpus
        assert three.run(torch.accelerator.current_device_index) == [3, 1, 3]
        with pytest.raises(RankError, match="rank 1 died"):
            three.run(end_rank_1)
        assert three.run(torch.get_default_device) == gpus  # the rank that was started anew too
        assert choose(2).gpus == (0, 2)


def end_rank_1():
    if dist.get_rank() == 1:
        os._exit(1)
