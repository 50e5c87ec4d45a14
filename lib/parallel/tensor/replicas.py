"""Are the replicated parameters still equal? A checksum of each tells it, at little cost.

[Note: silent divergence]
Nothing fails when a replicated parameter becomes another one on each rank. A forgotten sum of its
gradients, or dropout with other seeds on a replicated tensor, changes its last digits first; after
a hundred steps the ranks train different models, of which none is the one that was meant.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.tensor.placements import Replicated
from lib.parallel.tensor.transform import placements

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits, read as whole numbers: [] int64.

    It reads the tensor once and needs no memory. Two tensors that differ in one number have
    different checksums; two with the same numbers in another order have the same one.
    """
    values = tensor.detach().contiguous()
    if values.is_complex():
        values = torch.view_as_real(values)
    return values.view(_INTEGERS[values.element_size()]).sum(dtype=torch.int64)


def assert_replicated(model: nn.Module, group=None) -> None:
    """Raise AssertionError on every rank, unless what ranks of a group share is equal, bit for bit.

    Of a model that `tensor_parallel` has split, that is every replicated parameter and buffer, and
    the keys and values that neighbours share; of any other model all parameters and buffers. It
    sends one number of 8 bytes for each of them, so it is cheap enough to be called during
    training. The error names the first parameter and rank that diverged, and by how much.
    """
    shared = _shared(model, group)
    if hasattr(model, "tensor_parallel_group") and group is None:
        group = model.tensor_parallel_group
    if not shared:
        return
    sums = torch.stack([checksum(tensor) for _, tensor, _ in shared])
    by_rank = [torch.empty_like(sums) for _ in range(dist.get_world_size(group))]
    dist.all_gather(by_rank, sums, group)
    for number, (name, tensor, sharers) in enumerate(shared):
        for rank, other in enumerate(by_rank):
            first = rank // sharers * sharers
            if other[number] != by_rank[first][number]:
                raise AssertionError(_diverged(name, tensor, first, rank, group))


def _shared(model, group) -> list[tuple[str, Tensor, int]]:
    """Return name, values and number of neighbouring ranks of what several ranks have."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if hasattr(model, "tensor_parallel_group"):
        places = placements(model)
    else:
        places = dict.fromkeys(state, Replicated(dist.get_world_size(group)))
    parts = [(name, places[name].shared(t), places[name].sharers) for name, t in state.items()]
    return [part for part in parts if part[1].numel()]


def _diverged(name: str, tensor: Tensor, first: int, rank: int, group) -> str:
    """Return the message, for which all ranks send this one tensor."""
    by_rank = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(by_rank, tensor.contiguous(), group)
    apart = (by_rank[rank].double() - by_rank[first].double()).abs().max().item()
    return (
        f"{name} is not replicated any more: on rank {rank} of the group it differs from rank "
        f"{first}, by at most {apart:.2g}. Look for gradients that are not summed over the ranks, "
        "and for dropout on a replicated tensor with another seed on each rank."
    )
