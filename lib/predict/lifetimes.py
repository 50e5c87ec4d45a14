"""What each operation of a step brings to life and lets go, in bytes, as autograd holds tensors.

    forward   results are born; what backward needs of them becomes an activation; the rest dies
    backward  results are born; the gradient that came in dies, then the activations that were used

The lists lie beside those of lib/predict/operations.py, one effect for each operation, so time and
memory are played together. What is left after forward are the `activations` of
lib/predict/memory.py; what lives for a moment only is told here alone.

[Note: what is held]
A tensor lives until nothing holds it. The sum behind a residual is saved by the norm after it, and
not by the sum itself. The result of attention is saved by attention and by the product after it,
and that of a ReLU by the ReLU and the product after it. A residual passes its gradient on to both
sides, so this one lives until the gradient of the other side is added to it. What a kernel takes
and returns inside one operation is not seen, here as in a recording (lib/ranks/memory.py).

With dropout only the activations of each block are told: they come with its last operation in
forward, and go with its last one in backward.
"""

from dataclasses import replace
from typing import NamedTuple

from lib.predict import step
from lib.predict.memory import activations
from lib.predict.operations import Passes, in_turn
from lib.predict.shape import GPTShape, MLPShape, ModelShape, length_of

INTEGER = 8  # bytes of a token's number, and of a position


class Effect(NamedTuple):
    """Says what an operation does to memory, in this order: in bytes, or numbers until `_sized`.

    First `saved` of what is there becomes activations. Then results are `born`, and autograd has
    `kept` some of them. At the end `freed` dies of what is no activation, and `released` of the
    activations.
    """

    saved: int = 0
    born: int = 0
    kept: int = 0
    freed: int = 0
    released: int = 0


def effects(
    shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    cast: bool = False,
) -> list[Passes]:  # fmt: skip
    """Return the effects of the operations of each block, in the order of `step.passes`.

    With `cast` the numbers of the batch were cast before the first block, which keeps the copy.
    """
    if isinstance(shape, MLPShape):
        blocks = _mlp(shape, batch, cast)
    elif shape.dropout:
        blocks = _whole_blocks(shape, batch, length_of(shape, sequence), itemsize)
    else:
        blocks = _gpt(shape, batch, length_of(shape, sequence), itemsize)
    return [Passes(*([_sized(one, itemsize) for one in way] for way in block)) for block in blocks]


def inputs(
    shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4, param: int = 4
) -> Effect:
    """Return the effect of handing in a batch: tokens, or numbers that are cast to `param` bytes.

    Numbers arrive with `itemsize` bytes each.
    """
    if isinstance(shape, GPTShape):
        return Effect(born=INTEGER * batch * length_of(shape, sequence))
    copied = param if param != itemsize else 0
    return Effect(born=batch * shape.widths[0] * (itemsize + copied))


class Loss(NamedTuple):
    """Holds the effects of a loss: forward, backward, and when both are over."""

    forward: list[Effect]
    backward: list[Effect]
    end: list[Effect]


def loss(shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4) -> Loss:
    """Return the effects of `loss(model(x), y).backward()`: mean squares, or tokens' cross-entropy.

    The outputs die when the loss is there. PyTorch's mean of squares lies in a storage that has
    room for each square. The loss and its gradient die at the end of backward.
    """
    one = itemsize
    if isinstance(shape, MLPShape):
        y = batch * shape.widths[-1] * itemsize
        forward = [Effect(saved=y, born=2 * y)]  # the targets, and the squares
        return Loss(
            forward, [Effect(born=one), Effect(born=y, released=y)], [Effect(freed=y + one)]
        )
    tokens = batch * length_of(shape, sequence)
    y = tokens * shape.vocabulary * itemsize
    forward = [Effect(born=INTEGER * tokens), Effect(born=y, kept=y), Effect(born=2 * one, freed=y)]
    backward = [Effect(born=one), Effect(born=y, freed=one), Effect(born=y, freed=y, released=y)]
    return Loss(forward, backward, [Effect(freed=2 * one)])


def _sized(effect: Effect, itemsize: int) -> Effect:
    return Effect(*(round(numbers * itemsize) for numbers in effect))


def _mlp(shape: MLPShape, rows: int, cast: bool) -> list[Passes]:
    """What a layer's product keeps is the result of the ReLU before it, which keeps it as well."""
    layers, blocks = list(zip(shape.widths, shape.widths[1:])), []
    for n, (i, o) in enumerate(layers):
        first, y = n == 0, rows * o
        own = rows * i if first and cast else 0
        parts = [_linear(rows * i, i * o, y, o if shape.bias else 0, own=own, first=first)]
        if n + 1 < len(layers):
            forward, backward = Effect(born=y, kept=y, freed=y), Effect(born=y, freed=y, released=y)
            parts.append(Passes([forward], [backward]))
        blocks.append(in_turn(parts))
    return blocks


def _gpt(shape: GPTShape, batch: int, s: int, itemsize: int) -> list[Passes]:
    rows, d, f, qkv = batch * s, shape.width, shape.hidden, shape.qkv_width
    x, hidden = rows * d, rows * f
    block = in_turn([
        _norm(rows, d, residual=True),
        _linear(x, d * qkv, rows * qkv, qkv, own=x),
        *_attention(shape, rows, s, max(itemsize, 4) / itemsize),
        _linear(x, d * d, x, d, passed_on=True),
        _residual(x),
        _norm(rows, d, residual=True),
        _linear(x, d * f, hidden, f, own=x),
        Passes([Effect(saved=hidden, born=hidden)],
               [Effect(born=hidden, freed=hidden, released=hidden)]),
        _linear(hidden, f * d, x, d, own=hidden, passed_on=True),
        _residual(x),
    ])  # fmt: skip
    head = _linear(x, d * shape.vocabulary, rows * shape.vocabulary, own=x)
    embedding = _embedding(shape, rows, s, INTEGER / itemsize)
    return [embedding, *[block] * shape.layers, in_turn([_norm(rows, d), head])]


def _linear(
    x: int, weight: int, y: int, bias: int = 0, *, own: int = 0, first: bool = False,
    passed_on: bool = False,
) -> Passes:  # fmt: skip
    """A product keeps `own` of its input, where nothing else does; without a bias dW comes first.

    The gradient of y dies, unless a residual has passed it on.
    """
    done = {"freed": 0 if passed_on else y, "released": own}
    to_x = [] if first else [Effect(born=x)]
    if bias:
        back = [*to_x, Effect(born=weight), Effect(born=bias, **done)]
    else:
        back = [Effect(born=weight), *to_x]
        back[-1] = back[-1]._replace(**done)
    return Passes([Effect(saved=own, born=y)], back)


def _norm(rows: int, d: int, *, residual: bool = False) -> Passes:
    """Keeps its input and two statistics a row; behind a residual, two gradients are added."""
    x, statistics = rows * d, 2 * rows
    forward = Effect(saved=x, born=x + statistics, kept=statistics)
    back = [Effect(born=x + 2 * d, freed=x, released=x + statistics)]
    if residual:
        back[0] = back[0]._replace(freed=x)
        back.append(Effect(born=x, freed=2 * x))
    return Passes([forward], back)


def _residual(x: int) -> Passes:
    return Passes([Effect(born=x, freed=x)], [])


def _attention(shape: GPTShape, rows: int, s: int, wide: float) -> list[Passes]:
    """Take q, k, v apart, turn q and k, multiply; a head's logarithm has `wide` numbers."""
    d, keys, qkv = (
        rows * shape.width,
        rows * shape.kv_heads * shape.head_size,
        rows * shape.qkv_width,
    )
    turned = shape.positions == "rotary"
    copied = not turned and 1 < shape.kv_heads < shape.heads
    saved = qkv + (d + keys if turned else d if copied else 0)
    result = d + rows * shape.heads * wide
    gradients = d + 2 * keys
    both = [Effect(born=qkv, freed=gradients)]
    both += [Effect(born=qkv, freed=qkv)] * (shape.kv_heads > 1 < s)
    return [
        Passes([Effect(born=d)] * copied, both),
        *([_rotation(shape, d, keys, s, wide)] if turned else []),
        Passes([Effect(saved=saved, born=result, kept=result)],
               [Effect(born=gradients, freed=d, released=saved + result)]),
    ]  # fmt: skip


def _rotation(shape: GPTShape, q: int, keys: int, s: int, wide: float) -> Passes:
    """Keep cos and sin [S, K] of the angles, which are computed in numbers `wide` times as long."""
    k, angles = shape.head_size, s * shape.head_size
    long, half = wide * angles, wide * k / 2
    made = [Effect(born=half), Effect(born=wide * s), Effect(born=half)]
    made += [Effect(born=2 * half, freed=half), Effect(born=long, freed=2 * half)]
    of_all = wide * s + half + long  # these die when both are there
    if wide > 1:
        made += [Effect(born=long), Effect(born=angles, freed=long)]
        made += [Effect(born=long), Effect(born=angles, freed=long + of_all)]
    else:
        made += [Effect(born=long), Effect(born=long, freed=of_all)]

    def turn(n: int, angles: int, name: str) -> list[Effect]:
        """Multiply, roll, multiply, add: backward needs x's gradient until the second product."""
        with_angles = {name: angles}
        roll = Effect(born=n, freed=n if name == "released" else 0)
        first, second = Effect(born=n, **with_angles), Effect(born=n, freed=n, **with_angles)
        return [first, roll, second, Effect(born=n, freed=2 * n)]

    forward = [*made, *turn(q, angles, "saved"), *turn(keys, 0, "saved")]
    return Passes(forward, [*turn(keys, 0, "released"), *turn(q, angles, "released")])


def _embedding(shape: GPTShape, rows: int, s: int, index: float) -> Passes:
    """Keeps the integers 0, 1, ... of the positions; a tied matrix has a gradient already."""
    x, positions, matrix = rows * shape.width, s * shape.width, shape.vocabulary * shape.width
    back = [Effect(born=matrix, freed=x)]
    if shape.tied:
        back.append(Effect(born=matrix, freed=2 * matrix))
    if shape.positions == "rotary":
        return Passes([Effect(born=x)], back)
    return Passes(
        [
            Effect(born=index * s),
            Effect(born=x),
            Effect(saved=index * s, born=positions),
            Effect(born=x, freed=x + positions),
        ],
        [
            Effect(born=positions),
            Effect(born=shape.sequence * shape.width, freed=positions, released=index * s),
            *back,
        ],
    )


def _whole_blocks(shape: GPTShape, batch: int, s: int, itemsize: int) -> list[Passes]:
    """Tell what blocks with dropout hand on and keep, as if all of it came with one operation."""
    kept = lambda layers: activations(replace(shape, layers=layers), batch, s, itemsize) / itemsize
    x, layer = batch * s * shape.width, kept(1) - kept(0)
    *_, head = _gpt(shape, batch, s, itemsize)
    keeps = x + (INTEGER * s / itemsize if shape.positions == "learned" else 0)  # its mask
    first = Effect(born=keeps + x, kept=keeps), Effect(freed=x, released=keeps)
    each = Effect(saved=x, born=layer, kept=layer - x), Effect(released=layer)
    *passes, _ = step.passes(shape, batch, s, itemsize)
    numel = {p.name: p.numel for p in shape.parameters}
    blocks = []
    for block, (there, back) in zip(passes, [first, *[each] * shape.layers], strict=True):
        gradients = [Effect(born=sum(numel[name] for name in op.ready)) for op in block.backward]
        gradients[-1] = back._replace(born=gradients[-1].born)
        blocks.append(Passes([*[Effect()] * (len(block.forward) - 1), there], gradients))
    return [*blocks, head]
