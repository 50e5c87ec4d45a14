"""The time of ring attention, forward and backward, from shapes: who computes, sends and waits.

    q [B, H, S/P, K] · k, v [B, G, S/P, K] of every rank -> out;  then dq, dk, dv

Each rank has a clock, and each pair of neighbours a link in each direction. A message begins when its
sender and its receiver have both launched the hop, and takes α + β · bytes. A rank launches the next
hop before it computes a block, and waits for that hop after the block.

[Note: masked blocks]
Of a square on the diagonal a causal mask leaves half. Kernels such as FlashAttention-2 skip most of
the rest, but PyTorch's FLOP counter counts the whole square, and so does slow motion. `masked` is the
share of a masked square that is computed: 1 as PyTorch counts, 1/2 for a kernel that skips. On the
CPU a square of more than 128 tokens is computed in pieces (flash_on_cpu.py), so slow motion is ahead
of 1 there: with 256 tokens a rank, as tested, by less than 5 % of a step.

Source: Liu, Zaharia and Abbeel 2023 (arXiv 2310.01889); FLOP of attention as PyTorch counts them
(torch.utils.flop_counter), two products forward and five backward.
"""  # noqa: E501

from collections.abc import Sequence
from typing import NamedTuple

from lib.ledger import Ledger, Row
from lib.predict.arguments import whole
from lib.predict.operations import Operation
from lib.predict.provenance import of_prediction
from lib.predict.sequence.layout import Part, blocks_of

KERNEL = "_scaled_dot_product_flash_attention_for_cpu"


class Attention(NamedTuple):
    """Describes one attention: [B, H, S, K] queries, [B, G, S, K] keys and values."""

    batch: int
    heads: int
    key_heads: int
    length: int
    head_size: int
    itemsize: int = 4


class _Clocks:
    """A clock for each rank of a ring, when each link is free, and the rows so far, if wanted."""

    def __init__(self, ranks: int, speeds, rows: list | None):
        self.ranks, self.speeds, self.rows = ranks, speeds, rows
        self.clock, self.free = [0.0] * ranks, [0.0] * ranks  # free[r]: the link from r to r + 1

    def note(self, *row, **more) -> None:
        """Add a row, unless only the time is wanted."""
        if self.rows is not None:
            self.rows.append(Row(*row, **more))

    def compute(self, rank: int, operations: Sequence[Operation]) -> None:
        """Run operations on a rank, one after the other."""
        for op in operations:
            start = self.clock[rank]
            self.clock[rank] = end = start + self.speeds.compute(op.flop, op.bytes)
            self.note(rank, "compute", op.name, start, end, bytes=op.bytes)

    def hop(self, nbytes: int) -> list[float]:
        """Launch a hop on every rank at its own time; return when each has sent and received."""
        ends = []
        for rank in range(self.ranks):
            after = (rank + 1) % self.ranks
            begin = max(self.clock[rank], self.clock[after], self.free[rank])
            self.free[rank] = end = begin + self.speeds.moving("send", 2, nbytes)
            ends.append(end)
            for op, who, peer in (("send", rank, after), ("recv", after, rank)):
                what = {"bytes": nbytes, "peer": peer, "arrived": begin}
                self.note(who, "comm", op, self.clock[who], end, **what)
        return [max(ends[rank], ends[rank - 1]) for rank in range(self.ranks)]

    def arrive(self, ends: list[float], nbytes: int) -> None:
        """Let every rank wait until its hop has ended."""
        for rank, end in enumerate(ends):
            if end > self.clock[rank]:
                what = {"bytes": nbytes, "peer": (rank - 1) % self.ranks}
                self.note(rank, "wait", "recv", self.clock[rank], end, **what)
                self.clock[rank] = end


def ring_step(
    attention: Attention, ranks: int, speeds, *, layout: str = "zigzag", documents=None,
    causal: bool = True, backward: bool = True, masked: float = 1.0,
) -> Ledger:  # fmt: skip
    """Predict ring attention's forward and backward on `ranks` ranks, as rows of a ledger.

    `speeds.compute(flop, bytes)` and `speeds.moving("send", 2, bytes)` return seconds. `documents`
    are cumulative lengths, as in cu_seqlens. Raises ValueError for a layout that is not known, and
    for a sequence that the ranks cannot share equally.
    """
    rows: list[Row] = []
    _play(attention, ranks, speeds, rows, layout, documents, causal, backward, masked)
    return Ledger(rows, source="predicted", meta=of_prediction(speeds))


def ring_seconds(
    attention: Attention, ranks: int, speeds, *, layout: str = "zigzag", causal: bool = True,
    backward: bool = True, masked: float = 1.0,
) -> float:  # fmt: skip
    """Return when the last rank ends in `ring_step`, without making its rows: for many ranks."""
    return _play(attention, ranks, speeds, None, layout, None, causal, backward, masked)


def _play(attention, ranks, speeds, rows, layout, documents, causal, backward, masked) -> float:
    """Play the forward and, if asked, the backward of a ring; return when the last rank ends."""
    clocks = _Clocks(whole(ranks, "The number of ranks"), speeds, rows)
    documents = None if documents is None else tuple(documents)
    blocks = [
        blocks_of(attention.length, rank, ranks, layout, documents, causal) for rank in range(ranks)
    ]
    _forward(clocks, attention, blocks, masked)
    if backward:
        _backward(clocks, attention, blocks, masked)
    return max(clocks.clock)


def _forward(clocks: _Clocks, it: Attention, blocks, masked: float) -> None:
    """Play the ring of keys and values; each rank joins what it computes to what it has."""
    keys = _pair(it, clocks.ranks)
    hop, started = None, [False] * clocks.ranks
    for step in range(clocks.ranks):
        if hop:
            clocks.arrive(hop, keys)
        hop = _pass_on(clocks, keys, step)
        for rank in range(clocks.ranks):
            for part in blocks[rank][step]:
                clocks.compute(rank, [_kernel(it, part, masked)])
                if started[rank]:
                    clocks.compute(rank, _merge(it, _rows(part)))
                started[rank] = True


def _backward(clocks: _Clocks, it: Attention, blocks, masked: float) -> None:
    """Play the ring of keys and values again, and behind it that of their gradients' sums."""
    ranks, keys = clocks.ranks, _pair(it, clocks.ranks)
    hop, sums, started = None, None, [False] * ranks
    for step in range(ranks):
        if hop:
            clocks.arrive(hop, keys)
        hop = _pass_on(clocks, keys, step)
        for rank in range(ranks):
            for part in blocks[rank][step]:
                queries = it.batch * it.heads * _rows(part)
                clocks.compute(rank, [Operation("clone", 0, 8 * queries)])  # of the sums' logarithm
                clocks.compute(rank, [_kernel(it, part, masked, backward=True)])
                if started[rank] or _rows(part) < it.length // ranks:
                    clocks.compute(rank, _add_queries(it, ranks, part, started[rank]))
                started[rank] = True
        if step:
            if sums:
                clocks.arrive(sums, keys)
            for rank in range(ranks):
                clocks.compute(rank, _add_keys(it, ranks, blocks[rank][step], bool(sums)))
            sums = clocks.hop(keys)
    if sums:
        clocks.arrive(sums, keys)
    for rank in range(ranks):
        clocks.compute(rank, _add_keys(it, ranks, blocks[rank][0], bool(sums)))


def _pass_on(clocks: _Clocks, nbytes: int, step: int) -> list[float] | None:
    """Launch the next hop of keys and values; the first one joins both in one buffer before."""
    if step + 1 == clocks.ranks:
        return None
    if not step:
        for rank in range(clocks.ranks):
            clocks.compute(rank, [Operation("stack", 0, 2 * nbytes)])
    return clocks.hop(nbytes)


def _pair(it: Attention, ranks: int) -> int:
    """Return the bytes of K and V of a rank."""
    return 2 * it.batch * it.key_heads * (it.length // ranks) * it.head_size * it.itemsize


def _rows(part: Part) -> int:
    return part.queries.stop - part.queries.start


def _columns(part: Part) -> int:
    return part.keys.stop - part.keys.start


def _kernel(it: Attention, part: Part, masked: float, backward: bool = False) -> Operation:
    """Return attention of a rectangle: two products forward, five backward, and what it moves."""
    rows, columns = _rows(part), _columns(part)
    pairs = it.batch * it.heads * rows * columns * (masked if part.causal else 1)
    queries = it.batch * it.heads * rows
    numbers = it.head_size * queries, it.head_size * it.batch * it.key_heads * columns
    if backward:  # out, its gradient, q and dq; k, v, dk and dv; the logarithms of the sums
        moved = 4 * numbers[0] + 4 * numbers[1]
        name, products = f"{KERNEL}_backward", 5
    else:
        moved, name, products = 2 * sum(numbers), KERNEL, 2
    flop = round(2 * products * pairs * it.head_size)
    return Operation(name, flop, moved * it.itemsize + 4 * queries)


def _merge(it: Attention, rows: int) -> list[Operation]:
    """Return the operations that join a block's result to that over earlier keys, in fp32."""
    queries = it.batch * it.heads * rows
    pointwise = [("sub", 12), ("eq", 5), ("masked_fill", 9), ("sigmoid", 8), ("logaddexp", 12)]
    operations = [Operation(name, 0, nbytes * queries) for name, nbytes in pointwise]
    lerp = Operation("lerp_", 0, (12 * it.head_size + 4) * queries)
    return [*operations[:4], lerp, operations[4]]


def _add_queries(it: Attention, ranks: int, part: Part, started: bool) -> list[Operation]:
    """Return what adds a block's dq [B, H, rows, K] to the sum of all."""
    width = it.batch * it.heads * it.head_size * 4
    zeros = [] if started else [Operation("zeros_like", 0, width * it.length // ranks)]
    return [*zeros, Operation("add_", 0, 3 * width * _rows(part))]


def _add_keys(it: Attention, ranks: int, parts: Sequence[Part], arrived: bool) -> list[Operation]:
    """Return what adds the dk and dv of a step to the sums that have arrived, if any."""
    nbytes, operations = _pair(it, ranks), []
    for part in parts:
        if not arrived and _columns(part) == it.length // ranks:
            operations.append(Operation("stack", 0, 2 * nbytes))
        else:
            zeros = [] if arrived else [Operation("new_zeros", 0, nbytes)]
            share = nbytes * _columns(part) * ranks // it.length
            operations += [*zeros, *[Operation("add_", 0, 3 * share // 2)] * 2]
        arrived = True
    return operations if arrived else [Operation("new_zeros", 0, nbytes)]
