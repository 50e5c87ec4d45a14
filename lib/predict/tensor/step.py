"""A tensor-parallel step of a GPT, predicted: the rows that its ranks would record, from its shape.

    column  addmm [B·S, D] · [D, F/tp]                  backward: mm, all_reduce | mm, sum, wait
    row     mm [B·S, F/tp] · [F/tp, D], all_reduce, add  backward: sum, mm, mm

All ranks do the same at the same time. The sum of a column layer's input gradient runs while the
weight's gradient is computed (the bar above); all other sums are waited for at once, because what
comes next needs them. With more ranks than keys, those that share a key and its value sum their
gradients after each layer's attention, the bias's first, in a group of their own.

Dropout on whole tensors takes what it takes in the plain model. Attention with dropout is not one
kernel (dropout.py). What takes a few bytes for each token is left out: the rows of an embedding
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
from lib.predict.tensor import dropout
from lib.predict.tensor.shapes import Share, parameters_of_a_rank, share_of

# They stand between operations, with the numbers of a sum as `bytes`. A sum of keys is one over the
# ranks that share them.
SUM, SUM_OF_KEYS, WAIT = "all_reduce", "all_reduce of keys", "wait"


def tensor_parallel_step(
    shape: GPTShape, ranks: int, batch: int, speeds, *, sequence: int | None = None,
    itemsize: int = 4, vocabulary: bool = True, whole_masks: bool = True,
) -> Ledger:  # fmt: skip
    """Predict one step of `ranks` ranks, all of which take the whole batch, as ledger rows.

    With `whole_masks` each rank draws attention's masks for the heads of all ranks, as it does
    where `tensor_parallel` is given no seed. Raises ValueError for sizes that do not divide.
    """
    options = {"vocabulary": vocabulary, "whole_masks": whole_masks}
    parts = passes(shape, ranks, batch, sequence, itemsize, **options)
    time, groups = Lockstep(ranks, speeds), _groups(shape, ranks)
    for part in parts:
        _play(time, groups, part.forward, itemsize)
    for part in reversed(parts):
        _play(time, groups, part.backward, itemsize)
    for p in parameters_of_a_rank(shape, ranks, vocabulary=vocabulary):
        time.compute([Operation("add", 0, 3 * p.numel * itemsize)] * ranks)
    return time.ledger()


def passes(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    vocabulary: bool = True, whole_masks: bool = True,
) -> list[Passes]:  # fmt: skip
    """Return what a rank does for each block and for the loss, forward and backward.

    Bytes are counted in numbers of `itemsize` bytes. An Operation that is called SUM launches an
    all_reduce, one that is called SUM_OF_KEYS launches it among the ranks that share a key, and
    WAIT waits for it.
    """
    share = share_of(shape, ranks, vocabulary=vocabulary)
    s = length_of(shape, sequence)
    rows, wide = whole(batch, "batch") * s, max(itemsize, 4) / itemsize
    block = _block(shape, share, batch, s, itemsize, whole_masks)
    first = operations.in_turn([
        _embedding(shape, share, rows, s, 8 / itemsize, vocabulary),
        operations.dropout(rows * shape.width, shape.dropout),
    ])  # fmt: skip
    last = operations.in_turn([
        operations.norm("norm", rows, shape.width),
        _column("linear", rows, shape.width, share.vocabulary, bias=False, summed=vocabulary),
    ])  # fmt: skip
    loss = _loss(rows, share.vocabulary, wide) if vocabulary else Passes([], [])
    return [first, *[block] * shape.layers, last, loss]


def _groups(shape: GPTShape, ranks: int) -> dict[str, tuple[list[tuple[int, ...]], str]]:
    """Return among which ranks each kind of sum is, and the name of their groups in a recording."""
    sharers = share_of(shape, ranks).sharers
    neighbours = [tuple(range(r, r + sharers)) for r in range(0, ranks, sharers)]
    return {SUM: ([tuple(range(ranks))], "world"), SUM_OF_KEYS: (neighbours, "kv")}


def _play(time: Lockstep, groups, steps: Sequence[Operation], itemsize: int) -> None:
    flights = {}
    for name, flop, numbers, _ in steps:
        nbytes = round(numbers * itemsize)
        if name in groups:
            flights = time.launch("all_reduce", nbytes, *groups[name])
        elif name == WAIT:
            time.wait(flights)
        else:
            time.compute([Operation(name, flop, nbytes)] * len(time.clock))


def _summed(numbers: int, meanwhile: Iterable[Operation] = (), kind: str = SUM) -> list[Operation]:
    return [Operation(kind, 0, numbers), *meanwhile, Operation(WAIT, 0, 0)]


def _block(
    shape: GPTShape, share: Share, batch: int, s: int, itemsize: int, whole_masks: bool
) -> Passes:
    d, f, k, rows = shape.width, share.hidden, shape.head_size, batch * s
    own = replace(shape, width=share.heads * k, heads=share.heads, kv_heads=share.kv_heads)
    wide = max(itemsize, 4) / itemsize
    core = operations.flash(own, rows, s, wide)
    if shape.dropout:
        core = dropout.attention(own, batch, s, 1 / itemsize, share.ranks if whole_masks else 0)
    dropped = operations.dropout(rows * d, shape.dropout)
    return operations.in_turn([
        operations.norm("norm1", rows, d, residual=True),
        _qkv(own, share, rows, d),
        operations.heads(own, rows, s),
        *([operations.rotation(own, rows, s, wide)] if shape.positions == "rotary" else []),
        core,
        _row("attention.proj", rows, own.width, d),
        dropped,
        operations.residual(rows * d),
        operations.norm("norm2", rows, d, residual=True),
        _column("mlp.up", rows, d, f),
        operations.pointwise("gelu", "gelu_backward", rows * f),
        _row("mlp.down", rows, f, d),
        dropped,
        operations.residual(rows * d),
    ])  # fmt: skip


def _column(name, rows: int, i: int, o: int, *, bias: bool = True, summed: bool = True) -> Passes:
    """Backward launches the sum of the input's gradient before the weight's gradient."""
    forward, (of_input, *others) = operations.linear(name, rows, i, o, bias)
    return Passes(forward, [of_input, *(_summed(rows * i, others) if summed else others)])


def _qkv(own: GPTShape, share: Share, rows: int, d: int) -> Passes:
    """Backward sums the gradients of a key's and a value's rows over the ranks that share them."""
    forward, backward = _column("attention.qkv", rows, d, own.qkv_width)
    if share.sharers > 1:
        for width in (1, d):  # of the bias, and of the weight; each is copied before
            copy = Operation("clone", 0, 2 * own.qkv_width * width)
            sums = _summed(2 * own.head_size * width, kind=SUM_OF_KEYS)
            backward = [*backward, copy, *sums]
    return Passes(forward, backward)


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
