"""A tensor-parallel step of a GPT, predicted: the rows that its ranks would record, from its shape.

    column  addmm [B·S, D] · [D, F/tp]                  backward: mm, all_reduce | mm, sum, wait
    row     mm [B·S, F/tp] · [F/tp, D], all_reduce, add  backward: sum, mm, mm

All ranks do the same at the same time. The sum of a column layer's input gradient runs while the
weight's gradient is computed (the bar above); all other sums are waited for at once, because what
comes next needs them. What takes a few bytes for each token is left out: the rows of an embedding
that a rank has, checks of tokens, and the loss's small tensors. At the end each rank takes a step
of plain SGD on what it has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lib.ledger import Ledger
from lib.predict import operations
from lib.predict.arguments import whole
from lib.predict.operations import Operation, Passes
from lib.predict.shape import GPTShape, length_of
from lib.predict.sharded.lockstep import Lockstep
from lib.predict.tensor.shapes import Share, parameters_of_a_rank, share_of

SUM, WAIT = "all_reduce", "wait"  # stand between operations; numbers of a sum as `bytes`


def tensor_parallel_step(
    shape: GPTShape, ranks: int, batch: int, speeds, *, sequence: int | None = None,
    itemsize: int = 4, vocabulary: bool = True,
) -> Ledger:  # fmt: skip
    """Predict one step of `ranks` ranks, all of which take the whole batch, as ledger rows.

    Raises ValueError for dropout, for more ranks than keys, and for sizes that do not divide.
    """
    if shape.dropout or ranks > shape.kv_heads:
        raise ValueError(
            "A tensor-parallel step is predicted without dropout, and for at most as many ranks as "
            "there are heads of keys. Choose another shape or fewer ranks."
        )
    parts = passes(shape, ranks, batch, sequence, itemsize, vocabulary=vocabulary)
    time = Lockstep(ranks, speeds)
    for part in parts:
        _play(time, ranks, part.forward, itemsize)
    for part in reversed(parts):
        _play(time, ranks, part.backward, itemsize)
    for p in parameters_of_a_rank(shape, ranks, vocabulary=vocabulary):
        time.compute([Operation("add", 0, 3 * p.numel * itemsize)] * ranks)
    return time.ledger()


def passes(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    vocabulary: bool = True,
) -> list[Passes]:  # fmt: skip
    """Return what a rank does for each block and for the loss, forward and backward.

    Bytes are counted in numbers of `itemsize` bytes. An Operation that is called SUM launches an
    all_reduce, and WAIT waits for it.
    """
    share = share_of(shape, ranks, vocabulary=vocabulary)
    s = length_of(shape, sequence)
    rows = whole(batch, "batch") * s
    block = _block(shape, share, rows, s)
    first = _embedding(shape, share, rows, s, 8 / itemsize, vocabulary)
    last = operations.in_turn([
        operations.norm("norm", rows, shape.width),
        _column("linear", rows, shape.width, share.vocabulary, bias=False, summed=vocabulary),
    ])  # fmt: skip
    loss = (
        _loss(rows, share.vocabulary, max(itemsize, 4) / itemsize) if vocabulary else Passes([], [])
    )
    return [first, *[block] * shape.layers, last, loss]


def _play(time: Lockstep, ranks: int, steps: Sequence[Operation], itemsize: int) -> None:
    flights = {}
    for name, flop, numbers, _ in steps:
        if name == SUM:
            group = [tuple(range(ranks))]
            flights = time.launch("all_reduce", round(numbers * itemsize), group)
        elif name == WAIT:
            time.wait(flights)
        else:
            time.compute([Operation(name, flop, round(numbers * itemsize))] * ranks)


def _summed(numbers: int, meanwhile: Iterable[Operation] = ()) -> list[Operation]:
    return [Operation(SUM, 0, numbers), *meanwhile, Operation(WAIT, 0, 0)]


def _block(shape: GPTShape, share: Share, rows: int, s: int) -> Passes:
    d, f, k = shape.width, share.hidden, shape.head_size
    own = replace(shape, width=share.heads * k, heads=share.heads, kv_heads=share.kv_heads)
    return operations.in_turn([
        operations.norm("norm1", rows, d, residual=True),
        _column("attention.qkv", rows, d, own.qkv_width),
        operations.heads(own, rows, s),
        *([operations.rotation(own, rows, s)] if shape.positions == "rotary" else []),
        operations.flash(own, rows, s),
        _row("attention.proj", rows, own.width, d),
        operations.residual(rows * d),
        operations.norm("norm2", rows, d, residual=True),
        _column("mlp.up", rows, d, f),
        operations.pointwise("gelu", "gelu_backward", rows * f),
        _row("mlp.down", rows, f, d),
        operations.residual(rows * d),
    ])  # fmt: skip


def _column(name, rows: int, i: int, o: int, *, bias: bool = True, summed: bool = True) -> Passes:
    """Backward launches the sum of the input's gradient before the weight's gradient."""
    forward, (of_input, *others) = operations.linear(name, rows, i, o, bias)
    return Passes(forward, [of_input, *(_summed(rows * i, others) if summed else others)])


def _row(name: str, rows: int, i: int, o: int) -> Passes:
    """The bias is added after the sum, so backward computes its gradient first."""
    product, back = operations.linear(name, rows, i, o, False)
    add = Operation("add", 0, 2 * rows * o + o)
    return Passes([*product, *_summed(rows * o), add], [Operation("sum", 0, rows * o + o), *back])


def _embedding(shape, share: Share, rows: int, s: int, index: float, vocabulary: bool) -> Passes:
    """Look up this rank's rows, put zeros for the others, sum; then add the positions."""
    d, v = shape.width, share.vocabulary
    look_up = Operation("embedding", 0, 2 * rows * d + index * rows)
    back = [Operation("embedding_dense_backward", 0, rows * d + index * rows + v * d)]
    if shape.tied:
        back.append(Operation("add", 0, 3 * v * d))
    forward = [look_up]
    if vocabulary:
        zeros = Operation(
            "masked_fill", 0, 2 * rows * d + index / 8 * rows
        )  # a byte for each token
        forward, back = [look_up, zeros, *_summed(rows * d)], [zeros, *back]
    if shape.positions == "rotary":
        return Passes(forward, back)
    position = Operation("embedding", 0, 2 * s * d + index * s)
    add = Operation("add", 0, 2 * rows * d + s * d)
    of_positions = [
        Operation("sum", 0, rows * d + s * d),
        Operation("embedding_dense_backward", 0, (s + shape.sequence) * d + index * s),
    ]
    return Passes([*forward, position, add], [*of_positions, *back])


def _loss(rows: int, v: int, wide: float) -> Passes:
    """The loss on split logits [B·S, V/tp], in numbers `wide` times as long as the logits'.

    Logits of 16 bits are turned into 32 bits first, and their gradient back at the end.
    """
    n, turned = rows * v, Operation("_to_copy", 0, (1 + wide) * rows * v)
    turns = [turned] if wide > 1 else []
    forward = [
        Operation("amax", 0, n + rows), *_summed(rows), *turns,
        Operation("sub", 0, 2 * wide * n + rows), Operation("exp", 0, 2 * wide * n),
        Operation("sum", 0, wide * (n + rows)), *_summed(2 * wide * rows),
        Operation("div", 0, wide * (2 * n + rows)),
    ]  # fmt: skip
    return Passes(forward, [Operation("mul", 0, wide * (2 * n + rows)), *turns])
