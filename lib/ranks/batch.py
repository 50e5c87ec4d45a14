"""Sends and receives that leave together, as NCCL needs them.

NCCL carries out what one pair of ranks exchanges in order: two ranks that both send first would
wait for each other. `torch.distributed` makes a batch one launch, but only for its own group class.
"""

import torch.distributed as dist
from torch.distributed import distributed_c10d


def batch_isend_irecv(operations: list) -> list:
    """Do what dist.batch_isend_irecv does, in one launch, for an observed group too."""
    first = operations[0]
    group = first.group or dist.group.WORLD
    with distributed_c10d._coalescing_manager(group, first.tensor.device, async_ops=True) as whole:
        for operation in operations:
            end = "group_dst" if operation.op is dist.isend else "group_src"
            peer = {end: operation.group_peer}
            operation.op(operation.tensor, group=operation.group, tag=operation.tag, **peer)
    return whole.works


def install() -> None:
    """Let this process's `dist.batch_isend_irecv` be ours: its groups run on NCCL."""
    dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = batch_isend_irecv
