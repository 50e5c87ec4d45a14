"""The operations of each block of a model, forward and backward, as PyTorch performs them.

    GPT  [B, S] -> Embedding -> layers × Block -> Head -> [B, S, V]
    MLP  [B, I] -> layers × (linear, ReLU; the last without) -> [B, O]

Until `sized` turns them into bytes, what an operation moves is counted in numbers, and the name of
a gradient lacks its block's. lib/predict/step.py gives them to everybody else.
"""

from itertools import chain
from typing import NamedTuple

from lib.predict.shape import GPTShape, MLPShape


class Operation(NamedTuple):
    """Describes an operation: PyTorch's name, FLOP, bytes, and the gradients that it completes."""

    name: str
    flop: int
    bytes: int
    ready: tuple[str, ...] = ()  # names of parameters


class Passes(NamedTuple):
    """Holds the operations of a block, or of a part of it, in the order in which they run."""

    forward: list[Operation]
    backward: list[Operation]


def sized(operations, block: int, itemsize: int) -> list[Operation]:
    """Turn numbers into bytes, and names inside a block into names inside the model."""
    return [
        Operation(
            name, flop, round(numbers * itemsize), tuple(f"blocks.{block}.{r}" for r in ready)
        )
        for name, flop, numbers, ready in operations
    ]


def in_turn(parts: list[Passes]) -> Passes:
    """Join parts that run one after the other; backward begins with the last part."""
    back = (part.backward for part in reversed(parts))
    return Passes([*chain(*(part.forward for part in parts))], [*chain(*back)])


def mlp(shape: MLPShape, rows: int) -> list[Passes]:
    """Return the operations of each layer for x [rows, I]."""
    layers = list(zip(shape.widths, shape.widths[1:]))
    blocks = []
    for n, (i, o) in enumerate(layers):
        parts = [linear("linear", rows, i, o, shape.bias, first=n == 0)]
        if n + 1 < len(layers):
            parts.append(pointwise("relu", "threshold_backward", rows * o))
        blocks.append(in_turn(parts))
    return blocks


def gpt(shape: GPTShape, batch: int, s: int, itemsize: int) -> list[Passes]:
    """Return the operations of each block for tokens [batch, s]; a number has `itemsize` bytes."""
    rows, d, f, v = batch * s, shape.width, shape.hidden, shape.vocabulary
    dropped, wide = dropout(rows * d, shape.dropout), max(itemsize, 4) / itemsize
    core = flash(shape, rows, s, wide)
    if shape.dropout:
        core = _probabilities(shape, batch, s, 1 / itemsize)
    block = in_turn([
        norm("norm1", rows, d, residual=True),
        linear("attention.qkv", rows, d, shape.qkv_width),
        heads(shape, rows, s),
        *([rotation(shape, rows, s, wide)] if shape.positions == "rotary" else []),
        core,
        linear("attention.proj", rows, d, d),
        dropped,
        residual(rows * d),
        norm("norm2", rows, d, residual=True),
        linear("mlp.up", rows, d, f),
        pointwise("gelu", "gelu_backward", rows * f),
        linear("mlp.down", rows, f, d),
        dropped,
        residual(rows * d),
    ])  # fmt: skip
    head = [norm("norm", rows, d), linear("linear", rows, d, v, False, tied=shape.tied)]
    embedding = _embedding(shape, rows, s, 8 / itemsize)
    return [in_turn([embedding, dropped]), *[block] * shape.layers, in_turn(head)]


def linear(
    name: str, rows: int, i: int, o: int, bias: bool = True, *, first: bool = False,
    tied: bool = False,
) -> Passes:  # fmt: skip
    """x [rows, I] · W [I, O]. The input of the model's first layer needs no gradient."""
    flop, numbers = 2 * rows * i * o, rows * i + i * o + rows * o
    if bias:
        back = [Operation("mm", flop, numbers)] * (1 if first else 2)
        both = f"{name}.bias", f"{name}.weight"
        back.append(Operation("sum", 0, rows * o + o, both))
        return Passes([Operation("addmm", flop, numbers + o)], back)
    product = Operation("mm", flop, numbers)
    last = product._replace(ready=() if tied else (f"{name}.weight",))
    return Passes([product], [last] if first else [product, last])


def pointwise(name: str, back: str, numbers: int) -> Passes:
    """Backward reads the gradient and one tensor that forward kept."""
    return Passes([Operation(name, 0, 2 * numbers)], [Operation(back, 0, 3 * numbers)])


def residual(numbers: int) -> Passes:
    """Forward adds two tensors; backward passes the gradient on to both."""
    return Passes([Operation("add", 0, 3 * numbers)], [])


def norm(name: str, rows: int, d: int, *, residual: bool = False) -> Passes:
    """Two statistics are kept for each row. Behind a residual, the gradient of x has two parts."""
    both = f"{name}.weight", f"{name}.bias"
    back = [Operation("native_layer_norm_backward", 0, 3 * rows * d + 2 * rows + 4 * d)]
    if residual:
        back.append(Operation("add", 0, 3 * rows * d))
    back[-1] = back[-1]._replace(ready=both)
    return Passes([Operation("native_layer_norm", 0, 2 * rows * d + 2 * d + 2 * rows)], back)


def dropout(numbers: int, p: float) -> Passes:
    """Draw a mask, scale it and multiply; backward multiplies by the same mask.

    Where the probability p is 0, nothing is done.
    """
    if not p:
        return Passes([], [])
    product = Operation("mul", 0, 3 * numbers)
    drawn = [Operation("bernoulli", 0, numbers), Operation("div", 0, 2 * numbers)]
    return Passes([*drawn, product], [product])


def heads(shape: GPTShape, rows: int, s: int) -> Passes:
    """Take q, k and v apart; q of several groups is copied, unless it is turned anyway.

    Backward puts the gradients side by side, which then lie as [B, G, S, ..], not [B, S, G, ..].
    """
    both = 2 * rows * shape.qkv_width
    copied = shape.positions != "rotary" and 1 < shape.kv_heads < shape.heads
    return Passes(
        [Operation("clone", 0, 2 * rows * shape.width)] * copied,
        [Operation("cat", 0, both)] + [Operation("clone", 0, both)] * (shape.kv_heads > 1 < s),
    )


def rotation(shape: GPTShape, rows: int, s: int, wide: float) -> Passes:
    """Compute the angles [S, K], and turn q and k by them; backward turns the gradients back.

    A number of an angle is `wide` times as long as one of q: at least 4 bytes.
    """
    k = shape.head_size
    angles = [("logspace", k // 2), ("arange", s), ("neg", k), ("cat", 2 * k)]
    angles = [(op, wide * n) for op, n in [*angles, ("mul", s + k + s * k)]]
    turned = [("_to_copy", (1 + wide) * s * k)] * (wide > 1)
    for op in ("cos", "sin"):
        angles += [(op, 2 * wide * s * k), *turned]
    q, keys = (
        [("mul", 2 * n + s * k), ("roll", 2 * n), ("mul", 2 * n + s * k), ("add", 3 * n)]
        for n in (rows * shape.width, rows * shape.kv_heads * k)
    )
    forward, backward = [*angles, *q, *keys], [*keys, *q]
    return Passes(*([Operation(op, 0, n) for op, n in part] for part in (forward, backward)))


def flash(shape: GPTShape, rows: int, s: int, wide: float) -> Passes:
    """q [B, H, S, K], k, v [B, G, S, K]: two products forward, five backward, over S × S.

    For each row of scores a statistic is kept, a number `wide` times as long as one of q.
    """
    name, product = "_scaled_dot_product_flash_attention_for_cpu", 2 * rows * s * shape.width
    numbers = rows * (shape.width + shape.kv_heads * shape.head_size)  # of q and k
    return Passes(
        [Operation(name, 2 * product, 2 * numbers + wide * rows * shape.heads)],
        [Operation(f"{name}_backward", 5 * product, 4 * numbers + wide * rows * shape.heads)],
    )


def _probabilities(shape: GPTShape, batch: int, s: int, byte: float) -> Passes:
    """The same with dropout: the probabilities are written out, [B, H, S, S], and dropped.

    PyTorch's CPU has no kernel for it. A product takes the heads of all samples as one dim, so they
    are copied, unless they lie one after the other; shared keys and values are repeated before. A
    mask's entry takes `byte` times as many bytes as a number.
    """
    rows, grouped = batch * s, shape.kv_heads < shape.heads
    q, kv = rows * shape.width, rows * shape.kv_heads * shape.head_size
    scores = rows * s * shape.heads
    product = Operation("bmm", 2 * q * s, 2 * q + scores)
    scale, copy = Operation("mul", 0, 2 * q), Operation("clone", 0, 2 * q)
    together = shape.heads > 1 and s > 1  # a head's rows do not follow each other
    apart = together and batch > 1
    own = apart and not grouped
    mask = [
        Operation("ones", 0, byte * s * s), Operation("tril", 0, 2 * byte * s * s),
        *[Operation("scalar_tensor", 0, 1)] * 2, Operation("where", 0, (1 + byte) * s * s + 2),
    ]  # fmt: skip
    dropped = dropout(scores, shape.dropout)
    forward = [
        scale, *mask, *[Operation("clone", 0, kv + q)] * 2 * grouped, scale,
        *[copy] * (apart + own), product, Operation("add", 0, 2 * scores + s * s),
        Operation("_safe_softmax", 0, 2 * scores), *dropped.forward,
        *[copy] * own, product, *[copy] * together,
    ]  # fmt: skip
    backward = [
        *[copy] * apart, product, product, *dropped.backward,
        Operation("_softmax_backward_data", 0, 3 * scores), product, product,
        scale, *[Operation("sum", 0, q + kv)] * 2 * grouped, scale,
    ]  # fmt: skip
    return Passes(forward, backward)


def _embedding(shape: GPTShape, rows: int, s: int, index: float) -> Passes:
    """Look up tokens and positions; an index takes `index` times as many bytes as a number."""
    d, v = shape.width, shape.vocabulary
    look_up = Operation("embedding", 0, 2 * rows * d + index * rows)
    tokens = () if shape.tied else ("tokens.weight",)
    back = [Operation("embedding_dense_backward", 0, rows * d + index * rows + v * d, tokens)]
    if shape.tied:  # the head's part is added
        back.append(Operation("add", 0, 3 * v * d, ("tokens.weight",)))
    if shape.positions == "rotary":
        return Passes([look_up], back)
    positions = ("positions.weight",)
    return Passes(
        [
            Operation("arange", 0, index * s),
            look_up,
            Operation("embedding", 0, 2 * s * d + index * s),
            Operation("add", 0, 2 * rows * d + s * d),
        ],
        [
            Operation("sum", 0, rows * d + s * d),
            Operation(
                "embedding_dense_backward", 0, (s + shape.sequence) * d + index * s, positions
            ),
            *back,
        ],
    )
