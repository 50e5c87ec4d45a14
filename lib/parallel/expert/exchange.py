"""Rows travel to the ranks of their experts and back: an all_to_all with uneven pieces.

    rows [A, D] by expert -> all_to_all -> rows of own experts [R, D] -> ... -> back -> [A, D]

Backward is the same journey in the other direction. Both only start a message where they begin, and
wait for it where the result is used, so that what is computed between hides it.

[Note: two hops]
Between nodes a flat all_to_all sends a message from every rank of a node to every rank of the
other. In two hops the ranks of a node first exchange among themselves what goes to ranks with the
same place in any node, and then each sends one message to each other node:

    (a, i) -> (a, j) -> (b, j)      n - 1 messages of a rank between nodes, in place of m·(n - 1)

for n nodes of m ranks. As many bytes go between nodes, and more inside. The rows arrive in the same order.
"""  # noqa: E501

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor


def all_counts(counts: Tensor, group=None) -> list[list[int]]:
    """Return how many rows each rank has for each expert, [P, E]; all ranks of the group come."""
    gathered = counts.new_empty(dist.get_world_size(group), len(counts))
    dist.all_gather_single(gathered.view(-1), counts.contiguous(), group=group)
    return gathered.tolist()


@dataclass
class Hop:
    """Describes one uneven all_to_all: `sent[r]` rows to rank r, `received[r]` rows from it."""

    sent: Sequence[int]
    received: Sequence[int]
    group: object = None

    def launch(self, rows: Tensor) -> Callable[[], Tensor]:
        """Start to send rows [A, D]; return a function that waits and gives the arrived, [R, D]."""
        journey = _Journey(self)
        arriving = _Launch.apply(rows, journey)
        return lambda: _Arrive.apply(arriving, journey)

    def start(self, rows: Tensor, back: bool = False):
        """Start a message outside autograd: return its work and the tensor that it will fill."""
        sent, received = (self.received, self.sent) if back else (self.sent, self.received)
        rows = rows.contiguous()
        arriving = rows.new_empty(sum(received), *rows.shape[1:])
        work = dist.all_to_all_single(
            arriving, rows, list(received), list(sent), group=self.group, async_op=True
        )
        return work, arriving


@dataclass
class _Journey:
    """Holds what is under way between the two halves of a hop, forward or backward."""

    hop: Hop
    work: object = None
    back: list = field(default_factory=list)


class _Launch(torch.autograd.Function):
    """Start the message; backward waits for the gradient that _Arrive has sent back."""

    @staticmethod
    def forward(ctx, rows, journey):
        ctx.journey = journey
        journey.work, arriving = journey.hop.start(rows)
        return arriving

    @staticmethod
    def backward(ctx, _):
        work, gradient = ctx.journey.back.pop()
        work.wait()
        return gradient, None


class _Arrive(torch.autograd.Function):
    """Wait for the message; backward starts the one that takes the gradient back."""

    @staticmethod
    def forward(ctx, arriving, journey):
        ctx.journey = journey
        journey.work.wait()
        journey.work = None
        return arriving.view_as(arriving)

    @staticmethod
    def backward(ctx, gradient):
        ctx.journey.back.append(ctx.journey.hop.start(gradient, back=True))
        return gradient, None  # its values are not used: the gradient is under way


class Flat:
    """Sends each row straight to the rank of its expert."""

    def __init__(self, group=None):
        self.group = group

    def launch(self, rows: Tensor, table: list[list[int]]) -> Callable[[], Tensor]:
        """Send rows, sorted by rank; `table[a][b]` rows go from rank a to rank b.

        Returns a function that gives the rows that have come, sorted by the rank they come from.
        """
        return self._hop(table).launch(rows)

    def back(self, rows: Tensor, table: list[list[int]]) -> Tensor:
        """Send results the same way back: [R, D] -> [A, D]."""
        hop = self._hop(table)
        return Hop(hop.received, hop.sent, self.group).launch(rows)()

    def _hop(self, table) -> Hop:
        rank = dist.get_rank(self.group)
        return Hop(table[rank], [row[rank] for row in table], self.group)


class TwoHops:
    """Sends rows inside the node first, and then one message to each other node.

    `group` has all ranks, node after node; `inside` this rank's node, and `between` the ranks with
    its place in every node.
    """

    def __init__(self, group, inside, between):
        self.group, self.inside, self.between = group, inside, between

    def launch(self, rows: Tensor, table: list[list[int]]) -> Callable[[], Tensor]:
        """Send rows, sorted by rank, as `Flat.launch` does."""
        first, second, by_place, by_node = self._hops(table)
        finish = first.launch(_reordered(rows, by_place))
        return lambda: second.launch(_reordered(finish(), by_node))()

    def back(self, rows: Tensor, table: list[list[int]]) -> Tensor:
        """Send results the same way back: [R, D] -> [A, D]."""
        first, second, by_place, by_node = self._hops(table)
        rows = Hop(second.received, second.sent, self.between).launch(rows)()
        rows = _undone(rows, by_node)
        rows = Hop(first.received, first.sent, self.inside).launch(rows)()
        return _undone(rows, by_place)

    def _hops(self, table) -> tuple[Hop, Hop, list, list]:
        nodes, size = dist.get_world_size(self.between), dist.get_world_size(self.inside)
        rank = dist.get_rank(self.group)
        node, place = divmod(rank, size)
        here = range(node * size, (node + 1) * size)
        # First hop: to the rank of this node with place j, what goes to place j of any node.
        to_places = [[table[rank][b * size + j] for b in range(nodes)] for j in range(size)]
        from_places = [[table[a][b * size + place] for b in range(nodes)] for a in here]
        # Second hop: to node b, what all ranks of this node have for its rank with our place.
        to_nodes = [[table[a][b * size + place] for a in here] for b in range(nodes)]
        from_nodes = [[table[a * size + i][rank] for i in range(size)] for a in range(nodes)]
        first = Hop(_sums(to_places), _sums(from_places), self.inside)
        second = Hop(_sums(to_nodes), _sums(from_nodes), self.between)
        by_place = ([table[rank][b * size : (b + 1) * size] for b in range(nodes)], to_places)
        return first, second, by_place, (from_places, to_nodes)


def _sums(runs: list[list[int]]) -> list[int]:
    return [sum(run) for run in runs]


def _places(now: list[list[int]], device) -> Tensor:
    """Return the places of rows whose runs now[i][j] are to be ordered by j and then by i."""
    starts, start = {}, 0
    for i, runs in enumerate(now):
        for j, length in enumerate(runs):
            starts[i, j], start = (start, length), start + length
    runs = [starts[i, j] for j in range(len(now[0])) for i in range(len(now))]
    whole = torch.arange(start, device="cpu")
    return torch.cat([whole[at : at + length] for at, length in runs]).to(device)


def _reordered(rows: Tensor, change) -> Tensor:
    return rows.index_select(0, _places(change[0], rows.device))


def _undone(rows: Tensor, change) -> Tensor:
    return rows.index_select(0, _places(change[1], rows.device))
