"""Adafactor of parameters of which each rank has a part: the same step as on one device.

    W [N/g, M]   R [N/g]   C [M] +g -> all_reduce over g      W [N, M/g]   R [N] +g   C [M/g]
    RMS(θ), RMS(U)  [] +g  -> all_reduce, with all parameters in one buffer

A rank that took the factors of its own shard would divide by other numbers, and clip by the RMS of
its own part of the update: each rank then makes a step that is right for a smaller matrix.

[Note: the mean of R]
The mean of R over all rows is the mean of C over all columns, because both are the mean of the
same squares. So where the rows are on several ranks, C, which all ranks have, gives it, and nothing
is sent for it.

[Note: what is sent]
Each step sends three buffers whatever the number of parameters is: which of them have a gradient,
sums of squares of gradients and weights, and sums of squares of updates. Beside the gradients
themselves they are small: M + 2 numbers for a matrix of N·M.

[Note: files]
A rank's own state dict goes on where the same ranks have the same parts. It cannot be cut for
another number of ranks: FSDP's `sharded_state_dict` refuses states that are smaller than weights.
PyTorch's Adafactor (2.13) takes no parameters of `fully_shard` at all.
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from lib.parallel.optimizers.places import (
    Whole,
    combined,
    gradient_of,
    trained_somewhere,
)
from lib.single.optimizers import Adafactor
from lib.single.optimizers.listwise import with_gradient


class ShardedAdafactor(Adafactor):
    """Adafactor whose parameters are this rank's parts of larger ones; equal to the plain step.

    `places` has for each parameter its Whole, Cut or Flat (places.py); the options are those of the
    plain Adafactor. All ranks of the group step together. Raises ValueError for a parameter
    without a place, and RuntimeError in a step for a sparse gradient.
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

    def whole_shape(self, key: Tensor) -> Sequence[int]:
        """Return the shape of a whole parameter."""
        return self.places[key].shape

    def over_whole(self, keys: list, sums: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return sums over whole parameters: those that are pending are summed over the ranks."""
        entries = []
        for key, own in zip(keys, sums):
            place = self.places[key]
            dims = len(place.shape)
            for number, total in enumerate(own):  # of rows, of columns, of everything
                over = tuple(range(dims)) if total.dim() < 2 else (dims - 1 - number,)
                entries.append((place, total, over))
        totals = iter(combined(entries, self.process_group))
        return [tuple(next(totals) for _ in own) for own in sums]

    def mean_of_rows(self, key: Tensor, row_var: Tensor, col_var: Tensor) -> Tensor:
        """Return the mean of R over all rows; where the rows are not all here, that of C."""
        place = self.places[key]
        columns_are_sums = place.pending((len(place.shape) - 2,))
        if columns_are_sums:
            return col_var.mean(-1, keepdim=True)
        return super().mean_of_rows(key, row_var, col_var)


def known(optimizer, places: Mapping[Tensor, Whole]) -> dict[Tensor, Whole]:
    """Return the places. Raises ValueError unless each parameter of the optimizer has one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in places:
                raise ValueError(
                    f"A parameter of the shape {list(parameter.shape)} has no place. Say of every "
                    "parameter which part of it this rank has."
                )
    return dict(places)


def lists_of_all(optimizer, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of one device and dtype that are the same on every rank of the group."""
    with_gradient(parameters, type(optimizer).__name__)  # refuses what cannot be used
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    some = trained_somewhere(trained, optimizer.places, optimizer.process_group)
    alike: dict[tuple, list[Tensor]] = {}
    for parameter in some:
        alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    yield from alike.values()


def update_parts(optimizer, group: dict, parameters: list[Tensor]) -> None:
    """Let an optimizer move the matrices that this rank has of each parameter."""
    places = [optimizer.places[parameter] for parameter in parameters]
    weights = [place.matrix(parameter) for place, parameter in zip(places, parameters)]
    gradients = [place.matrix(gradient_of(p)) for place, p in zip(places, parameters)]
    optimizer.move(group, parameters, weights, gradients)
    for place, parameter, weight in zip(places, parameters, weights):
        if weight is not parameter:
            parameter.copy_(place.piece(weight))
