"""The accelerator's own backend, which is NCCL on NVIDIA's GPUs: made connected.

[Note: why by a collective]
NCCL connects a group at its first collective, in a call that nothing can end: so that is made here,
where it is known who must come. `eager_connect_single_device` would connect it too; but after that
PyTorch sends the messages of all pairs through the group's one communicator, in the order in which
they were called, between its collectives. The first step of an interleaved pipeline would then wait
for ever. Otherwise each two ranks that send outside a batch have a communicator for themselves,
made at their first message: who is left alone in that making cannot be released, and is ended.
Source: ProcessGroupNCCL::pointToPoint in pytorch's torch/csrc/distributed/c10d.
"""

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

from lib.ranks.gpus import devices
from lib.ranks.state.this_rank import this_rank

# PyTorch's watchdog would end the whole process when a partner has gone, and a monitor would do so
# when the watchdog is held up; all that a reader has made on the rank would be lost.
# Source: docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
_LEAVE_IT_TO_US = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


def make(kind: str, store, rank: int, size: int, timeout) -> tuple:
    """Make a group's backend for GPUs of type `kind`, connected; give it after its BackendType."""
    name = dist.Backend.default_device_backend_map[kind]
    store = dist.PrefixStore(name, store)
    if name == "nccl":
        backend = _nccl(store, rank, size, timeout)
    else:
        backend = dist.Backend._plugins[name.upper()].creator_fn(store, rank, size, timeout)
    _connect(backend, torch.device(kind, torch.accelerator.current_device_index()))
    return getattr(ProcessGroup.BackendType, name.upper(), ProcessGroup.BackendType.CUSTOM), backend


def _connect(backend, device: torch.device) -> None:
    """Let all members meet in a first collective; see the note above."""
    work = backend.allreduce([torch.zeros(1, device=device)], dist.AllreduceOptions())
    if work is not None:
        work.wait()


def _nccl(store, rank, size, timeout):
    from torch._C._distributed_c10d import ProcessGroupNCCL

    if this_rank.board:  # the kernel sees what fails, and ends it
        os.environ |= _LEAVE_IT_TO_US
    if this_rank.board and devices.shares() > 1:  # never beside a launcher, whose hosts are real
        os.environ |= {"NCCL_HOSTID": f"rank-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo"}
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)
