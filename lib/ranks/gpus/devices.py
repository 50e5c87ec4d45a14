"""The GPUs of this machine: of which type they are, which of them are free, what they are called.

This is the one place that knows the accelerator. Nothing here initialises it: the notebook's own
process may be forked from later, and a forked CUDA is dead. A GPU is free if no other World of this
machine holds its lock (gpu_locks.py) and less than a tenth of its memory is in use.

[Note: shares]
With RANKS_GPU_SHARES=4 in the environment each GPU stands for four, numbered one after the other:
those of GPU 0 are 0 to 3. So a World of four ranks runs with NCCL on a machine that has one GPU.
NCCL refuses two ranks of one host on one GPU; each rank tells it a host of its own, and it sends by
sockets. That is slower by far than what it does between GPUs, but every operation is NCCL's.
What is in use of the memory says nothing of one share: only locks tell which are free.
Source: NCCL_HOSTID in docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import groupby

import torch
import torch.distributed as dist

from lib.ranks.gpus import gpu_locks, survey

_FULL = 0.1  # of a GPU's memory in use: somebody works on it
_SHARES = "RANKS_GPU_SHARES"
_SURVEY_LIMIT = 60.0  # seconds; without persistence mode a driver takes a second for each GPU


@dataclass(frozen=True)
class Gpu:
    """One GPU as PyTorch numbers it; `name` is its own on this machine, `used` a share or None."""

    index: int
    name: str
    used: float | None = None
    model: str = ""
    total: int | None = None  # bytes


def accelerator() -> str | None:
    """Give the type of this machine's GPUs, such as "cuda"; None where ranks can use none.

    Ranks use NCCL, and backends that were registered for a device as torch.distributed foresees.
    So Apple's MPS does not count, which has no collectives of its own, nor Intel's XPU.
    """
    kind = torch.accelerator.current_accelerator()
    name = kind and dist.Backend.default_device_backend_map.get(kind.type, "gloo")
    if kind is None or not (name == "nccl" or name.upper() in dist.Backend._plugins):
        return None
    # Of a part of a GPU (MIG) PyTorch would ask CUDA itself, which initialises it.
    part = kind.type == "cuda" and os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    return kind.type if part or torch.accelerator.device_count() else None


def own_backend(kind: str) -> str | None:
    """Give the accelerator's own backend, "nccl" for CUDA; None where this PyTorch lacks it."""
    name = dist.Backend.default_device_backend_map[kind]
    return name if dist.is_backend_available(name) else None


def visible(kind: str) -> list[Gpu]:
    """Look at the GPUs of a type that ranks would see, in the order of their numbers."""
    gpus, times = _whole(kind), shares()
    if times == 1:
        return gpus
    parts = [(gpu, part) for gpu in gpus for part in range(times)]
    return [
        replace(gpu, index=index, name=f"{gpu.name}-share-{part}", used=None)
        for index, (gpu, part) in enumerate(parts)
    ]


def _whole(kind: str) -> list[Gpu]:
    lines = _survey() if kind == "cuda" else None
    if lines is None:  # not NVIDIA's
        return [Gpu(index, _name(kind, index)) for index in range(torch.accelerator.device_count())]
    gpus = []
    for index, line in enumerate(lines):
        name, used, total, model = line.split(" ", 3)
        share = int(used) / int(total) if int(total) > 0 else None
        gpus.append(Gpu(index, name, share, model, int(total) if share is not None else None))
    return gpus


def shares() -> int:
    """Give for how many GPUs each one stands; see the note above. Raise ValueError for nonsense."""
    text = os.environ.get(_SHARES, "").strip() or "1"
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ValueError(
            f"{_SHARES}={text!r} is set in the environment. It is for how many GPUs each GPU of "
            "this machine stands, a whole number from 1 to 64. Without it each stands for itself."
        )
    return int(text)


def _name(kind: str, index: int) -> str:
    """Give a GPU's own name where its module knows one, else its number; CUDA must not be asked."""
    module = None if kind == "cuda" else getattr(torch, kind, None)
    properties = getattr(module, "get_device_properties", lambda index: None)(index)
    return f"{kind}-{getattr(properties, 'uuid', index)}"


def _survey() -> list[str] | None:
    """Give what survey.py prints in a process of its own; None where there is no driver."""
    words = [sys.executable, "-I", "-S", survey.__file__]
    limits = {"timeout": _SURVEY_LIMIT, "check": True}
    try:
        return subprocess.run(words, capture_output=True, text=True, **limits).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None


def busy(gpus: list[Gpu], locks: list[gpu_locks.GpuLock]) -> dict[int, str]:
    """Give the number of each GPU that is not free, and why; take the locks of the others."""
    reasons = {}
    for gpu, lock in zip(gpus, locks, strict=True):
        if not lock.is_free():
            reasons[gpu.index] = "held by another World"
        elif gpu.used is not None and gpu.used >= _FULL:
            reasons[gpu.index] = f"{100 * gpu.used:.0f} % of the memory in use"
    return reasons


def numbered(kind: str, numbers) -> str:
    """Write the numbers of GPUs: `cuda:0–3`, `cuda:1, 4–6`."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return f"{kind}:" + ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in ends)


def reasons(kind: str, why: dict[int, str]) -> str:
    """Write why GPUs are not free: `cuda:0–1 (held by another World)`."""
    numbers: dict[str, list[int]] = {}
    for index, reason in sorted(why.items()):
        numbers.setdefault(reason, []).append(index)
    return ", ".join(f"{numbered(kind, found)} ({reason})" for reason, found in numbers.items())


def cpu_forced() -> bool:
    """Tell whether the environment keeps every World on the CPU; raise ValueError for nonsense."""
    forced = os.environ.get("RANKS_DEVICE", "").strip().lower()
    if forced not in ("", "cpu"):
        raise ValueError(
            f"RANKS_DEVICE={forced!r} is set in the environment. It can be 'cpu', which keeps "
            "every World on the CPU; without it a World takes GPUs where enough of them are free."
        )
    return forced == "cpu"
