"""What operations bring to life and let go, beside the operations and beside a recording."""

from itertools import chain

import pytest
import torch

from lib.predict import lifetimes, memory, step
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, mean_squares, next_token_loss
from tests.every import every

EXACT = [
    GPTShape(width=32, layers=2),
    GPTShape(50, 12, 24, heads=3, layers=3, hidden=40, tied=True),
    GPTShape(50, 12, 24, heads=6, layers=2, kv_heads=2),
    GPTShape(50, 12, 24, heads=6, layers=2, kv_heads=1),
    GPTShape(50, 12, 24, heads=6, layers=2, positions="rotary"),
    GPTShape(50, 12, 24, heads=6, layers=2, kv_heads=2, positions="rotary", tied=True),
    MLPShape((6, 30, 20, 4)),
    MLPShape((16, 16, 16), bias=False),
]
DROPPED = GPTShape(50, 12, 24, heads=3, layers=2, dropout=0.1)


def played(shape, batch, itemsize=4):
    """The most activations and the most "other" of a step, and what is left of both."""
    size = shape, batch, None, itemsize
    blocks, loss = lifetimes.effects(*size), lifetimes.loss(*size)
    names = {p.name: p.numel * itemsize for p in shape.parameters}
    operations = [op for block in reversed(step.passes(shape, batch)) for op in block.backward]
    ready = [sum(names[name] for name in op.ready) for op in operations]
    there = [effect for block in blocks for effect in block.forward] + loss.forward
    back = [effect for block in reversed(blocks) for effect in block.backward]
    kept = other = most_kept = most_other = 0
    both = zip(chain([lifetimes.inputs(*size, itemsize)], there, loss.backward, back, loss.end),
               [0] * (1 + len(there) + len(loss.backward)) + ready + [0], strict=True)  # fmt: skip
    for effect, gradients in both:
        kept, other = kept + effect.saved, other - effect.saved + effect.born
        most_other = max(most_other, other)
        kept, other = kept + effect.kept, other - effect.kept - effect.freed - gradients
        most_kept = max(most_kept, kept)
        kept -= effect.released
        assert kept >= 0 and other >= 0, effect
    return most_kept, most_other, kept, other


def recorded(shape, batch, dtype=torch.float32):
    """The most bytes of both kinds that a step of the plain model holds."""
    if isinstance(shape, GPTShape):
        model, loss = GPT(shape), next_token_loss
        x, y = (torch.zeros(batch, shape.sequence, dtype=torch.long) for _ in range(2))
    else:
        model, loss = MLP(shape), mean_squares
        x, y = (torch.ones(batch, shape.widths[at], dtype=dtype) for at in (0, -1))
    with Memory(model.to(dtype)) as counted:
        loss(model(x), y).backward()
    most = {kind: max(row.bytes for row in counted.rows if row.op == kind)
            for kind in ("activations", "other")}  # fmt: skip
    return most["activations"], most["other"], 0, x.nbytes + y.nbytes


@pytest.mark.parametrize("shape", EXACT, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_holds_what_is_recorded(shape, batch):
    assert played(shape, batch) == recorded(shape, batch)


@pytest.mark.parametrize("shape", EXACT, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_so_does_a_step_in_numbers_of_2_bytes(shape, batch):
    """Statistics of the softmax have 4 bytes then, as angles have while they are computed."""
    assert played(shape, batch, 2) == recorded(shape, batch, torch.bfloat16)


@pytest.mark.parametrize("shape", [*EXACT, DROPPED], ids=str)
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_there_is_an_effect_for_each_operation(shape, itemsize):
    passes, effects = (f(shape, 3, 5 if isinstance(shape, GPTShape) else None, itemsize)
                       for f in (step.passes, lifetimes.effects))  # fmt: skip
    count = [[(len(b.forward), len(b.backward)) for b in one] for one in (passes, effects)]
    assert count[0] == count[1]
    kept = [e.saved + e.kept for b in effects for e in b.forward]
    released = [e.released for b in effects for e in b.backward]
    length = {} if isinstance(shape, MLPShape) else {"sequence": 5}
    assert sum(kept) == sum(released) == memory.activations(shape, 3, itemsize=itemsize, **length)
    numel = {p.name: p.numel for p in shape.parameters}
    made = [(op, e.born) for b, f in zip(passes, effects) for op, e in zip(b.backward, f.backward)]
    assert every(born > 0 for op, born in made if op.ready)
    assert sum(born for _, born in made) >= itemsize * sum(numel.values())


def test_with_dropout_activations_are_right_and_moments_are_not_told():
    found, wanted = played(DROPPED, 3), recorded(DROPPED, 3)
    assert (found[0], found[2:]) == (wanted[0], wanted[2:])


def test_a_batch_that_is_cast_is_kept_as_an_activation():
    shape = MLPShape((6, 30, 4))
    x = 3 * 6 * 2
    assert lifetimes.inputs(shape, 3, None, 4, 2).born == 3 * x
    assert lifetimes.inputs(shape, 3).born == 2 * x
    cast, plain = (lifetimes.effects(shape, 3, None, 2, cast=cast)[0] for cast in (True, False))
    assert cast.forward[0].saved - plain.forward[0].saved == x
    assert cast.backward[-1].released - plain.backward[-1].released == x
