"""A machine whose GPUs a test chooses."""

import pytest

from lib.ranks.gpus import devices, gpu_locks
from lib.ranks.gpus.devices import Gpu


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(4)` is a machine with 4 GPUs; `used` says how full each is, `own` its backend."""
    monkeypatch.setattr(gpu_locks, "_FOLDER", str(tmp_path))
    monkeypatch.delenv("RANKS_DEVICE", raising=False)
    monkeypatch.delenv("RANKS_GPU_SHARES", raising=False)

    def of(count, used=(), kind="cuda", own="nccl"):
        shares = dict(enumerate(used))
        gpus = [Gpu(i, f"GPU-{i}", shares.get(i)) for i in range(count)]
        monkeypatch.setattr(devices, "accelerator", lambda: kind if count else None)
        monkeypatch.setattr(devices, "own_backend", lambda _: own)
        monkeypatch.setattr(devices, "visible", lambda _: gpus)

    return of
