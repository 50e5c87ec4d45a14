"""Scripts that a launcher starts as SLURM does: each process has its own environment, no agent."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lib.ranks.gpus import devices
from tests.every import every

ROOT = str(Path(__file__).parents[3])
UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
UNSET += ("RANKS_DEVICE",)


def srun(tmp_path, script, size, seconds=60, **more):
    """Start `script` as `srun` would on this host; give (return code, stdout, stderr), by rank."""
    path = tmp_path / "script.py"
    path.write_text(script)
    kept = {k: v for k, v in os.environ.items() if k not in UNSET and not k.startswith("SLURM")}
    job = {
        "SLURM_NTASKS": str(size), "SLURM_TASKS_PER_NODE": str(size), "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "this-host", "SLURM_JOB_ID": f"{os.getpid()}{time.time_ns()}",
        "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=kept | job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(started, said, strict=True)]


def answers(said):
    assert every(code == 0 for code, _, _ in said), said
    return [json.loads(re.search(r"^ANSWER (.*)$", out, re.M)[1]) for _, out, _ in said]


RESULTS = """
import json
import torch, torch.distributed as dist
from lib import World

class Mine:
    def __init__(self, rank):
        self.weight = torch.nn.Parameter(torch.full((2,), float(rank)))
        self.weight.grad = torch.full((2,), rank + 0.5)

def limits():
    gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
    return gloo.options._timeout.total_seconds()

world = World.from_torchrun()
with world:
    mine = world.run(lambda: Mine(world.rank))
    same = [type(one) is Mine for one in mine]
    grads = [one.weight.grad.tolist() for one in mine]
    lock = __import__("threading").Lock()
    try:
        world.run(lambda: {"lock": lock})
    except TypeError as error:
        said = str(error)
    late = dist.new_group([0, 1], timeout=__import__("datetime").timedelta(seconds=7))
    chosen = late._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    print("ANSWER", json.dumps([world.rank, world.size, world.device, same, grads, said,
                                limits(), chosen, repr(world)]))
world.close()
try:
    world.run(int)
except RuntimeError as error:
    assert str(error).startswith("This World is closed. Make a new one"), error
with World.from_torchrun(timeout=99) as again:
    assert limits() == 99.0 and again.run(dist.get_rank) == [0, 1]
"""


def test_ranks_of_slurm_meet_and_give_each_other_what_they_made(tmp_path):
    """Without LOCAL_RANK, MASTER_ADDR and MASTER_PORT; the world is closed and made again."""
    said = srun(tmp_path, RESULTS, 2, RANKS_DEVICE="cpu")
    for rank, answer in enumerate(answers(said)):
        same, grads, error, limit, chosen, text = answer[3:]
        assert answer[:3] == [rank, 2, "cpu"]
        assert same == [True, True], "a class of the script is the script's own on every rank"
        assert grads == [[0.5, 0.5], [1.5, 1.5]]
        assert error.startswith(f"The result of rank {rank} cannot travel: the result['lock']")
        assert (limit, chosen) == (1800.0, 7.0), "PyTorch's own, and what a group was given"
        assert text == f"World of 2 ranks on the CPU with gloo; this is rank {rank}"
    assert [err for _, _, err in said] == ["", ""]


GPUS = """
import json, os, sys
from lib import World
from lib.ranks.groups import process_group
from lib.ranks.launched import gpu_choice, torchrun

seen = json.loads(os.environ["SEEN"])[int(os.environ["SLURM_PROCID"])]
gpu_choice._look = lambda local: gpu_choice.Sight("host/boot", local, seen)
gpu_choice.accelerator = torchrun.accelerator = lambda: "cuda"

class Joined(Exception):
    pass

def joined(rank, size, number, device, store, timeout):
    print("ANSWER", json.dumps([number, device]))
    store.set(f"joined {rank}", "")
    store.wait([f"joined {other}" for other in range(size)])
    if rank:
        store.set(f"left {rank}", "")
    else:  # the store lives in rank 0: who waits for an answer meanwhile would say that it lost it
        store.wait([f"left {other}" for other in range(1, size)])
    raise Joined

process_group.join_launched = joined
try:
    World.from_torchrun(device=os.environ.get("WISH"))
except Joined:
    pass
except RuntimeError as error:
    print("ANSWER", json.dumps(str(error)))
"""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([["A", "B"], ["A", "B"]], [[0, "cuda"], [1, "cuda"]]),
        ([["A"], ["B"]], [[0, "cuda"], [0, "cuda"]]),
        ([["A"], ["A"]], [[0, "cpu"], [0, "cpu"]]),
        ([["A"], []], [[0, "cpu"], [0, "cpu"]]),  # only one of them lacks a GPU: both must know
    ],
)
def test_ranks_of_slurm_take_gpus_of_their_own_or_all_take_the_cpu(tmp_path, seen, expected):
    said = srun(tmp_path, GPUS, 2, SEEN=json.dumps(seen))
    assert answers(said) == expected
    short = expected[0][1] == "cpu"
    assert ("computes on the CPU, with gloo. Rank 1 finds no GPU" in said[0][2]) == short
    assert said[1][2] == "", "rank 0 alone says it"


def test_gpus_that_were_asked_for_and_are_missing_are_an_error(tmp_path):
    said = srun(tmp_path, GPUS, 2, SEEN='[["A"], ["A"]]', WISH="cuda")
    for text in answers(said):
        assert text.startswith("Rank 1 finds no GPU of its own on host host: it sees 1 GPU, and 2")


FAILS = """
import time
import torch, torch.distributed as dist
from lib import World

with World.from_torchrun(timeout={timeout}) as world:
    if world.rank == 1:
        {rank_1}
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        print("ANSWER", 1)
"""


def test_a_failure_in_a_launched_world_waits_for_nobody(tmp_path):
    began = time.monotonic()
    said = srun(tmp_path, FAILS.format(timeout=50, rank_1='raise ValueError("no")'), 2)
    assert time.monotonic() - began < 40
    assert [code for code, _, _ in said] == [1, 1]
    assert "ValueError: no" in said[1][2] and "ANSWER 1" in said[0][1]


def test_a_wait_in_a_launched_world_ends_at_its_time_limit(tmp_path):
    """No board watches there: what ended only after six hours ends after the given seconds."""
    began = time.monotonic()
    said = srun(tmp_path, FAILS.format(timeout=3, rank_1="time.sleep(7)"), 2)
    assert said[0][0] == 1 and "Timed out waiting 3000ms" in said[0][2], said
    assert time.monotonic() - began < 50


ON_GPUS = """
import json
import torch, torch.distributed as dist
from lib import World
from lib.ranks.gpus.devices import accelerator

def made():
    x = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    return {"x": x, "view": x[1:], "where": str(x.device)}

def sums():
    x = torch.ones(1000)
    for _ in range(3):
        dist.all_reduce(x)
    return x[0].item()

with World.from_torchrun() as world:
    results = world.run(made)
    ledger = world.record(sums)
    late = max(row.end - row.start for row in ledger if row.lane == "comm")
    print("ANSWER", json.dumps([
        world.device, [r["where"] for r in results], [str(r["x"].device) for r in results],
        [r["x"].tolist() for r in results], ledger.results, len(ledger) > 0, 0 <= late < 20,
        all(r["x"].untyped_storage().data_ptr() == r["view"].untyped_storage().data_ptr()
            for r in results)]))
assert str(torch.ones(1).device) == "cpu", "after the world nothing is made on a GPU by default"
"""


def test_on_gpus_each_rank_computes_on_its_own_and_results_come_back_on_the_cpu(tmp_path):
    kind = devices.accelerator()
    if kind is None or torch.accelerator.device_count() < 2:
        pytest.skip("this machine has no two GPUs, nor pretended ones")
    extra = [path for path in os.environ.get("PYTHONPATH", "").split(":") if "pretend" in path]
    path = ":".join([ROOT, *extra])
    for answer in answers(srun(tmp_path, ON_GPUS, 2, PYTHONPATH=path)):
        device, where, back, values, last, *rest = answer
        assert device == kind and where == [f"{kind}:0", f"{kind}:1"]
        assert back == ["cpu", "cpu"] and values == [[3.0] * 3] * 2
        assert last == [8.0, 8.0] and rest == [True, True, True]
