"""What the doctor says of GPUs, on pretended machines: who has them, who gets them, NCCL's room."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from lib.course.tools import doctor, doctor_gpus
from lib.ranks.gpus import devices, gpu_locks
from lib.ranks.gpus.devices import Gpu

ROOT = Path(__file__).parents[3]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(4)` is a machine with 4 GPUs; `used` says how full each is, `own` its backend."""
    monkeypatch.setattr(gpu_locks, "_FOLDER", str(tmp_path))
    monkeypatch.delenv("RANKS_DEVICE", raising=False)
    monkeypatch.delenv("RANKS_GPU_SHARES", raising=False)

    def of(count, used=(), own="nccl", shown=None):
        shares = dict(enumerate(used))
        gpus = [Gpu(i, f"GPU-{i}", shares.get(i), "H100", int(80e9)) for i in range(count)]
        monkeypatch.setattr(devices, "accelerator", lambda: "cuda" if count else None)
        monkeypatch.setattr(devices, "own_backend", lambda _: own)
        monkeypatch.setattr(devices, "visible", lambda _: gpus[:shown])
        doctor_gpus.seen.cache_clear()

    yield of
    doctor_gpus.seen.cache_clear()


def test_without_a_gpu_all_is_well_on_the_cpu(machine):
    machine(0)
    assert doctor.gpus() == ("ok", "none: ranks run on the CPU, slow motion plays the GPUs", "")
    assert doctor.worlds() == ("ok", "all run on the CPU with gloo", "")


def test_free_gpus_are_listed_with_the_worlds_that_take_them(machine):
    machine(4)
    assert doctor.gpus() == ("ok", "cuda:0–3 H100 80 GB; all are free", "")
    assert doctor.worlds()[1].startswith(
        "World(1) to World(4) run on GPUs with NCCL, larger ones on the CPU with gloo "
    )
    assert gpu_locks.GpuLock("GPU-0").is_free()  # looking takes nothing
    machine(1)
    assert doctor.worlds()[1].startswith("World(1) runs on a GPU with NCCL, larger ones on the CPU")


def test_shares_of_a_gpu_are_told(machine, monkeypatch):
    machine(4)
    monkeypatch.setenv("RANKS_GPU_SHARES", "4")
    assert "each stands for 4, as RANKS_GPU_SHARES says; all are free" in doctor.gpus()[1]
    monkeypatch.setenv("RANKS_GPU_SHARES", "four")
    verdict, found, remedy = doctor.worlds()
    assert verdict == "NO" and "RANKS_GPU_SHARES='four'" in found
    assert remedy == "unset RANKS_GPU_SHARES"
    monkeypatch.setattr(devices, "visible", lambda _: devices.shares())
    doctor_gpus.seen.cache_clear()
    assert doctor.gpus() == (verdict, found, remedy)


def test_it_says_what_four_ranks_would_take(machine, monkeypatch):
    """One line names backend and devices, on a machine with four GPUs, with one, and with none."""
    machine(0)
    assert doctor.four() == ("ok", "runs on the CPU, gloo", "")
    machine(4)
    assert doctor.four() == ("ok", "runs on cuda:0–3, NCCL", "")
    assert gpu_locks.GpuLock("GPU-0").is_free()  # looking takes nothing
    machine(1)
    shares = "RANKS_GPU_SHARES=4 make lab: then it runs on the GPUs, with NCCL"
    assert doctor.four() == ("ok", "runs on the CPU, gloo (this machine has 1 GPU)", shares)
    machine(3)
    assert doctor.four()[2].startswith("RANKS_GPU_SHARES=2 make lab")
    machine(4, used=[0.5])
    assert doctor.four() == ("ok", "runs on the CPU, gloo (3 of 4 GPUs are free)", "")
    monkeypatch.setenv("RANKS_GPU_SHARES", "four")
    assert doctor.four()[0] == "NO" and doctor.four()[2] == "unset RANKS_GPU_SHARES"


def test_shares_of_one_gpu_are_named_with_the_gpu(machine, monkeypatch):
    machine(1)
    monkeypatch.setenv("RANKS_GPU_SHARES", "4")
    parts = [Gpu(i, f"GPU-0-share-{i}", None, "H100", int(80e9)) for i in range(4)]
    monkeypatch.setattr(devices, "visible", lambda _: parts)
    doctor_gpus.seen.cache_clear()
    assert doctor.four()[1] == "runs on cuda:0–3, NCCL, where these are shares of cuda:0"


def test_gpus_that_are_not_free_are_listed_with_who_has_them(machine):
    machine(4, used=[0, 0.63])
    held = gpu_locks.GpuLock("GPU-3")
    held.hold()
    verdict, found, remedy = doctor.gpus()
    assert verdict == "note" and "unless it asks for them" in remedy
    assert "not free: cuda:1 (63 % of the memory in use), cuda:3 (held by another World)" in found
    assert doctor.worlds()[1].startswith("World(1) to World(2) run on GPUs with NCCL")
    machine(1, used=[0.5])
    assert doctor.worlds()[1:] == (
        "all run on the CPU with gloo now: no GPU is free",
        "wait, or share: World(n, device='cuda')",
    )


def test_the_process_and_the_user_that_hold_a_gpu_are_named(machine, monkeypatch):
    machine(1)
    held = gpu_locks.GpuLock("GPU-0")
    held.hold()
    monkeypatch.setattr(gpu_locks.GpuLock, "holders", lambda _: [os.getpid(), 2**30])
    assert f"(held by another World: process {os.getpid()} of " in doctor.gpus()[1]
    assert doctor.gpus()[1].endswith(f", process {2**30})")  # it has ended since


def test_what_keeps_ranks_from_gpus_is_told(machine, monkeypatch):
    machine(2, shown=0)
    assert doctor.gpus()[:2] == ("note", "PyTorch counts some, and the driver works with none")
    machine(2, own=None)
    assert "built without NCCL" in doctor.worlds()[1]
    machine(2)
    monkeypatch.setenv("RANKS_DEVICE", "cpu")
    assert doctor.worlds()[1] == "all run on the CPU with gloo, as RANKS_DEVICE=cpu is set"
    monkeypatch.setenv("RANKS_DEVICE", "gpu")
    assert doctor.worlds()[0] == "NO" and doctor.worlds()[2] == "unset RANKS_DEVICE"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /dev/shm")
@pytest.mark.parametrize(
    ("count", "own", "told"), [(0, "nccl", 0), (1, "nccl", 0), (4, None, 0), (4, "nccl", 1)]
)
def test_nccl_wants_room_in_shared_memory(machine, monkeypatch, count, own, told):
    machine(count, own=own)
    room = namedtuple("Usage", "total used free")
    for free, verdict in ((64e6, "note"), (500e6, "note" if told else "ok"), (2e9, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: room(free, 0, free))
        said = doctor.shared_memory()
        assert said[0] == verdict
        assert ("NCCL_SHM_DISABLE=1" in said[2]) == bool(told and free < 1e9)


def test_run_as_a_file_it_answers_with_torch_and_without():
    """`make doctor` may find a Python that has nothing installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words, unknown in (([], False), (["-S"], True)):
        done = subprocess.run(
            [sys.executable, *words, ROOT / "lib/course/tools/doctor.py"],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            cwd="/",
        )
        (line,) = [line for line in done.stdout.splitlines() if "Worlds " in line]
        assert ("not known" in line) is unknown, done.stderr
