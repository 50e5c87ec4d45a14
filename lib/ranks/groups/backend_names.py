"""What `dist.get_backend` answers for an observed group: the backend that carries its operations.

PyTorch's own code asks it too, to choose between what gloo and what NCCL can do: monitored_barrier,
and the backward pass of torch.distributed.nn. Our own backend's name, "ranks", would mean nothing.
"""

import functools

import torch.distributed as dist
from torch.distributed import distributed_c10d

OURS = "ranks"
_get_backend = distributed_c10d.get_backend


@functools.wraps(_get_backend)
def get_backend(group=None):
    """Do what dist.get_backend does; of a group on a GPU's own backend and gloo name the first."""
    name = _get_backend(group)
    if name != OURS:
        return name
    group = group or dist.group.WORLD
    names = {group._get_backend(device).name() for device in group._device_types}
    own = names - {"gloo"} or names
    return dist.Backend(own.pop())


def install() -> None:
    """Let this process's `dist.get_backend` be ours."""
    dist.get_backend = distributed_c10d.get_backend = get_backend
