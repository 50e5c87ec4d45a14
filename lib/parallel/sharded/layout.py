"""How parameters lie in one flat buffer, and which elements of it each rank keeps.

    parameters [S1], [S2], ... -> flat [L] -> shard [L/dp] on each rank

[Note: flat shards]
The parameters are laid end to end, and zeros at the end make the length L a multiple of the number
of ranks n. Rank r keeps elements r·L/n to (r + 1)·L/n. So all ranks keep the same number of bytes
whatever the shapes are, at most n - 1 elements are padding, and one collective moves the whole
buffer in place, without a copy before or after it. A shard begins and ends anywhere, also in the
middle of a row. PyTorch's first FullyShardedDataParallel has this layout (a FlatParameter).

The other layout cuts each parameter along its dim 0, as PyTorch's `fully_shard` does (a DTensor
for each). Then a shard keeps its rows, which optimizers that look at rows and columns need, and
checkpoints need no offsets; but each parameter is padded by itself (7 rows on 4 ranks become 8),
and gathering needs a copy to put the rows of all parameters in order.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from lib.predict.arguments import whole


class Layout:
    """Says where each parameter lies in a flat buffer, and which part of it each rank keeps.

    `shapes` are those of the parameters in their order. `numel` counts their elements, `length`
    those of the buffer with its padding, and `share` those that a rank keeps.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], ranks: int):
        self.shapes = [tuple(shape) for shape in shapes]
        self.ranks = whole(ranks, "The number of ranks")
        self.sizes = [prod(shape) for shape in self.shapes]
        *self.starts, self.numel = accumulate(self.sizes, initial=0)
        self.share = -(-self.numel // self.ranks)
        self.length = self.share * self.ranks

    def piece(self, n: int, rank: int) -> tuple[int, int]:
        """Return which elements of parameter n rank `rank` keeps, as (first, behind the last)."""
        begin = self.starts[n]
        first = min(max(rank * self.share - begin, 0), self.sizes[n])
        last = min(max((rank + 1) * self.share - begin, 0), self.sizes[n])
        return first, last

    def place(self, n: int, rank: int) -> slice:
        """Return where the elements of parameter n lie in the shard of `rank`."""
        first, last = self.piece(n, rank)
        start = self.starts[n] + first - rank * self.share if last > first else 0
        return slice(start, start + last - first)

    def views(self, flat) -> list:
        """Return each parameter as a view of the flat buffer: [L] -> [S1], [S2], ..."""
        parts = zip(self.starts, self.sizes, self.shapes)
        return [flat[start : start + size].view(shape) for start, size, shape in parts]

    def pieces(self, shard, rank: int) -> list:
        """Return what a shard holds of each parameter, as flat views; some have no elements."""
        return [shard[self.place(n, rank)] for n in range(len(self.sizes))]
