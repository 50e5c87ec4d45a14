"""GPU checks of `make doctor`: which are free, who uses the others, which Worlds take them."""

import functools
import os

from lib.ranks.gpus import devices, gpu_locks, placement

OK, NOTE, NO = "ok", "note", "NO"


@functools.cache
def seen() -> tuple[str | None, list[devices.Gpu], dict[int, str]]:
    """Return the type of the GPUs, the GPUs, and why some are not free, from a single survey."""
    kind = devices.accelerator()
    visible = devices.visible(kind) if kind else []
    with gpu_locks.choosing():
        locks = [gpu_locks.GpuLock(gpu.name) for gpu in visible]
        taken = devices.busy(visible, locks)
        for index in taken:
            if holders := [_owner(pid) for pid in locks[index].holders()]:
                taken[index] += ": " + ", ".join(holders)
        for lock in locks:
            lock.release()
    return kind, visible, taken


def _owner(pid: int) -> str:
    """Return a process's number and user as text."""
    import pwd

    try:
        return f"process {pid} of {pwd.getpwuid(os.stat(f'/proc/{pid}').st_uid).pw_name}"
    except (OSError, KeyError):
        return f"process {pid}"


def gpus() -> tuple[str, str, str]:
    """Say which GPUs there are, which are free, and who uses the others."""
    try:
        kind, visible, taken = seen()
    except ValueError as error:
        return NO, str(error), "unset RANKS_GPU_SHARES"
    if not kind:
        return OK, "none: ranks run on the CPU, slow motion plays the GPUs", ""
    if not visible:
        remedy = "ranks run on the CPU; the driver may be too old for this PyTorch, or have failed"
        return NOTE, "PyTorch counts some, and the driver works with none", remedy
    models: dict[str, list[int]] = {}
    for gpu in visible:
        size = f" {gpu.total / 1e9:.0f} GB" if gpu.total else ""
        models.setdefault(f" {gpu.model}{size}".rstrip(), []).append(gpu.index)
    text = "; ".join(f"{devices.numbered(kind, n)}{model}" for model, n in models.items())
    if (times := devices.shares()) > 1:
        text += f"; each stands for {times}, as RANKS_GPU_SHARES says"
    if not taken:
        return OK, f"{text}; all are free", ""
    remedy = "a World leaves these alone, unless it asks for them: World(n, gpus=[...])"
    return NOTE, f"{text}; not free: {devices.reasons(kind, taken)}", remedy


def worlds() -> tuple[str, str, str]:
    """Say which sizes of World run on GPUs and which on the CPU."""
    try:
        forced = devices.cpu_forced()
        devices.shares()
    except ValueError as error:
        return NO, str(error), f"unset {str(error).partition('=')[0]}"
    if forced:
        return OK, "all run on the CPU with gloo, as RANKS_DEVICE=cpu is set", ""
    kind, visible, taken = seen()
    if not visible:
        return OK, "all run on the CPU with gloo", ""
    own, free = devices.own_backend(kind), len(visible) - len(taken)
    share = f"World(4, backend='gloo', device={kind!r}) lets ranks share GPUs"
    if not own:
        return NOTE, "all run on the CPU with gloo: this PyTorch was built without NCCL", share
    if not free:
        remedy = f"wait, or share: World(n, device={kind!r})"
        return NOTE, "all run on the CPU with gloo now: no GPU is free", remedy
    sizes = "World(1) runs on a GPU" if free == 1 else f"World(1) to World({free}) run on GPUs"
    return OK, f"{sizes} with {own.upper()}, larger ones on the CPU with gloo ({share})", ""


def four() -> tuple[str, str, str]:
    """Say what World(4), the size of most chapters, takes now: its backend and its GPUs."""
    try:
        times, placed = devices.shares(), placement.choose(4)
    except ValueError as error:
        return NO, str(error), f"unset {str(error).partition('=')[0]}"
    placed.release()
    if placed.gpus:
        whole = sorted({placed.gpu_of(rank) for rank in range(4)})
        shared = f", where these are shares of {devices.numbered(placed.device, whole)}"
        shared = shared if times > 1 else ""
        return OK, f"runs {placed}{shared}", ""
    there = 0 if devices.cpu_forced() else len(seen()[1]) // times
    if not 0 < there < 4 or not devices.own_backend(seen()[0]):
        return OK, f"runs {placed}", ""
    remedy = f"RANKS_GPU_SHARES={-(-4 // there)} make lab: then it runs on the GPUs, with NCCL"
    return OK, f"runs {placed}", remedy


def shared_memory(free: float) -> str:
    """Say what to do where NCCL may find too little room in /dev/shm; "" where there is enough.

    Without direct access from GPU to GPU (NVLink, or PCIe where the machine allows it) NCCL sends
    through files there, 10 MB for each connection; containers have 64 MB by default.
    """
    kind, visible, _ = seen()
    if len(visible) < 2 or not devices.own_backend(kind) or free >= 1e9:
        return ""
    return (
        "NCCL may need more between GPUs without direct access, and fails with 'unhandled system "
        "error' or 'Error while creating shared memory segment'. In a container: "
        "docker run --shm-size=1g, or --ipc=host; else NCCL_SHM_DISABLE=1, which is slower"
    )
