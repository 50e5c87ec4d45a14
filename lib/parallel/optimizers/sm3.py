"""SM3 of parameters of which each rank has a part: the same step as on one device.

    W [N/g, M]   rows [N/g], columns [M]: max over g      W [N, M/g]   rows [N]: max over g

The maximum of a slice is the largest of the maxima of its parts, so an all_reduce with MAX gives
it exactly: the step is that of one device to the bit, where sums would be rounded in another order.

[Note: when]
SM3-I needs the maxima of the new gradient before it can update a weight. SM3-II updates with
minima that it has and its own gradient, and needs the new maxima only in the next step; so its
all_reduce could be hidden behind the next forward. Here both wait for it.
"""

from collections.abc import Iterator, Mapping

import torch.distributed as dist
from torch import Tensor

from lib.parallel.optimizers.adafactor import known, lists_of_all, update_parts
from lib.parallel.optimizers.places import Whole, combined
from lib.single.optimizers import SM3


class ShardedSM3(SM3):
    """SM3 whose parameters are this rank's parts of larger ones; equal to the plain step.

    `places` has for each parameter its Whole, Cut or Flat (places.py); the options are those of the
    plain SM3. All ranks of the group step together. Raises ValueError for a parameter without a
    place, and RuntimeError in a step for a sparse gradient.
    """

    def __init__(self, params, places: Mapping[Tensor, Whole], group=None, **options):
        super().__init__(params, **options)
        self.places, self.process_group = known(self, places), group

    def lists(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield all parameters of one device and dtype of which some rank has a gradient."""
        yield from lists_of_all(self, parameters)

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update this rank's parts of these parameters."""
        update_parts(self, group, parameters)

    def over_whole(self, keys: list, most: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return maxima over whole parameters: those that are pending are compared by the ranks."""
        entries = []
        for key, own in zip(keys, most):
            place = self.places[key]
            dims = range(len(place.shape))
            if len(dims) < 2:
                entries.append((Whole(place.shape), own[0], ()))  # of a vector, each has its own
                continue
            for kept, largest in enumerate(own):
                entries.append((place, largest, tuple(dim for dim in dims if dim != kept)))
        maxima = iter(combined(entries, self.process_group, dist.ReduceOp.MAX))
        return [tuple(next(maxima) for _ in own) for own in most]
