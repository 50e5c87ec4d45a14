"""A GPU that is none, as `torch` loads it: the device "pretend", `torch.pretend`, and its NCCL."""

import contextlib
import os
import sys
import types

import torch

_inside = None


def become_accelerator() -> None:
    """Register the device with torch; `import torch` calls this where it finds this folder."""
    global _inside
    if _inside is not None:
        return
    import pretend_c

    _inside = pretend_c
    torch.utils.rename_privateuse1_backend("pretend")
    _inside.become_accelerator()
    torch._register_device_module("pretend", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_packed_sequence=False)
    _register_nccl()


def _register_nccl() -> None:
    import torch.distributed as dist

    dist.Backend.register_backend("pretend_nccl", nccl, devices=["pretend"])


def nccl(store, rank, size, timeout):
    """Make the backend that behaves as NCCL does."""
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    gloo = ProcessGroupGloo(PrefixStore("bytes", store), rank, size, options)
    return _inside.like_nccl(PrefixStore("lanes", store), rank, size, gloo)


# What torch asks of a device's module.


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def init() -> None:
    pass


def device_count() -> int:
    return _inside.count()


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(which) -> None:
    torch.accelerator.set_device_index(which)


@contextlib.contextmanager
def device(which):
    before = current_device()
    if which is not None and which != -1:
        set_device(which)
    try:
        yield
    finally:
        set_device(before)


def synchronize(which=None) -> None:
    torch.accelerator.synchronize(which)


def current_stream(which=None):
    return torch.accelerator.current_stream(which)


def set_stream(which) -> None:
    torch.accelerator.set_stream(which)


@contextlib.contextmanager
def stream(which):
    if which is None:
        yield
        return
    before = current_stream(which.device)
    set_stream(which)
    try:
        yield
    finally:
        set_stream(before)


def Stream(device=None, priority=0):
    return torch.Stream(device=device or "pretend", priority=priority)


def Event(enable_timing=False, blocking=False, interprocess=False):
    return torch.Event("pretend", enable_timing=enable_timing)


memory_allocated = torch.accelerator.memory_allocated
max_memory_allocated = torch.accelerator.max_memory_allocated
memory_reserved = torch.accelerator.memory_reserved
reset_peak_memory_stats = torch.accelerator.reset_peak_memory_stats


def get_device_properties(which):
    """Name a GPU so that the machines that PRETEND_MACHINE tells apart do not share it."""
    identity = f"{os.environ.get('PRETEND_MACHINE', 'machine')}-{which}"
    return types.SimpleNamespace(name="Pretended GPU", uuid=identity, total_memory=1 << 30)


def empty_cache() -> None:
    pass


def _generator(which="pretend"):
    index = torch.device(which).index if not isinstance(which, int) else which
    return _inside.default_generator(current_device() if index is None else index)


def manual_seed(seed) -> None:
    _generator().manual_seed(seed)


def manual_seed_all(seed) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def get_rng_state(which="pretend"):
    return _generator(which).get_state()


def set_rng_state(state, which="pretend") -> None:
    _generator(which).set_state(state)


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]
