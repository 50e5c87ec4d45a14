"""Which elements of flat parameters all ranks have; each knows its own, and one gather tells."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.optimizers.places import Flat, Whole


def flat_spans(
    parameters: list[Tensor], places: Mapping[Tensor, Whole], group=None
) -> dict[Tensor, list[tuple[int, int]]]:
    """Return (first, behind the last) of each rank, for each parameter whose place is Flat.

    All ranks of the group come, with the same parameters in the same order: one all_gather of two
    numbers of 8 bytes for each of them. Raises ValueError where pieces overlap or leave a gap.
    """
    flat = [parameter for parameter in parameters if isinstance(places[parameter], Flat)]
    if not flat:
        return {}
    ends = [(places[parameter].first, places[parameter].last) for parameter in flat]
    own = torch.tensor(ends, dtype=torch.int64, device=flat[0].device)
    gathered = own.new_empty(dist.get_world_size(group), *own.shape)
    dist.all_gather_single(gathered.view(-1), own.view(-1), group=group)
    spans = {}
    for n, parameter in enumerate(flat):
        of_ranks = [(first, last) for first, last in gathered[:, n].tolist()]
        end = 0
        for first, last in of_ranks:
            if last > first:  # an empty piece may say any place
                if first != end:
                    raise ValueError(
                        f"The pieces of a parameter of the shape {list(places[parameter].shape)} do"
                        f" not follow one another: one begins at {first}, after one that ends at "
                        f"{end}. Order the ranks of the group as the pieces lie."
                    )
                end = last
        spans[parameter] = of_ranks
    return spans
