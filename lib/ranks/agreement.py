"""How ranks agree: on the model from which a method begins, its values, and on whether to step."""

import zlib
from itertools import zip_longest

import torch
import torch.distributed as dist


def same_everywhere(module, group, device=None) -> None:
    """Raise ValueError on every rank unless all have parameters with the same names and shapes.

    The comparison takes place on `device`, by default that of the first parameter.
    """
    own = [
        (name, f"{list(p.shape)} {p.dtype}, {'trained' if p.requires_grad else 'frozen'}")
        for name, p in module.named_parameters()
    ]
    device = device or next(module.parameters()).device
    checksum = torch.tensor([len(own), zlib.crc32(repr(own).encode())], device=device)
    checksums = [torch.empty_like(checksum) for _ in range(dist.get_world_size(group))]
    dist.all_gather(checksums, checksum, group)
    if all(torch.equal(other, checksums[0]) for other in checksums):
        return
    by_rank: list = [None] * len(checksums)  # names and shapes are sent only for this message
    dist.all_gather_object(by_rank, own, group)
    for rank, other in enumerate(by_rank):
        if other != by_rank[0]:
            pairs = zip_longest(by_rank[0], other, fillvalue=("no such parameter",))
            first, differing = next((a, b) for a, b in pairs if a != b)
            raise ValueError(
                f"The models differ: rank 0 of the group has {' '.join(first)}; rank {rank} has "
                f"{' '.join(differing)}. Build the same model on every rank."
            )


def from_first(tensor: torch.Tensor, group) -> None:
    """Give a tensor the values that it has on the group's first rank, whatever its dtype."""
    values = tensor.detach().contiguous().view(-1)
    dist.broadcast(values.view(torch.uint8), group=group, group_src=0)
    tensor.detach().copy_(values.view(tensor.shape))


def on_any_rank(flag: torch.Tensor, group=None) -> torch.Tensor:
    """Return the largest flag of all ranks, the same on all: [], one all_reduce of one number.

    `LossScaler(found_anywhere=on_any_rank)` so skips a step on every rank if one found infinity.
    All ranks of the group must call it equally often.
    """
    flag = flag.clone()
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return flag
