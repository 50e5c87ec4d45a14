"""Attention on ranks that drop and share: the predicted operations are those that they perform."""

import pytest
import torch

from lib.parallel.tensor import tensor_parallel
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import SUM, SUM_OF_KEYS, WAIT, passes
from lib.single import GPT
from tests.every import every
from tests.predict.test_step import Performed

PLAN = {"*.attention": "attention", "*.mlp": "mlp"}  # without the checks of a split vocabulary
SAMPLES = [(1, 1), (3, 1), (1, 5), (3, 5)]


def performed(shape, seed, dtype):
    """What a rank performs for each of SAMPLES, forward and backward."""
    model, found = tensor_parallel(GPT(shape).to(dtype), None, PLAN, seed=seed), []
    for samples in SAMPLES:
        model.zero_grad()
        with Performed() as forward:
            y = model(torch.zeros(samples, dtype=torch.long))
        with Performed() as backward:
            y.backward(torch.ones_like(y))
        found.append((forward.events, backward.events))
    return found


def predicted(shape, ranks, samples, seed, itemsize=4):
    options = {"vocabulary": False, "whole_masks": seed is None}
    parts = passes(shape, ranks, *samples, itemsize, **options)
    forward = [op for part in parts for op in part.forward]
    backward = [op for part in reversed(parts) for op in part.backward]
    computed = lambda ops: [op for op in ops if op.name not in (SUM, SUM_OF_KEYS, WAIT)]
    return [
        [(op.name, op.flop, round(itemsize * op.bytes)) for op in computed(ops)]
        for ops in (forward, backward)
    ]


def check_operations(world, shape, seed, dtype=torch.float32):
    for by_samples in world.run(performed, shape, seed, dtype):
        for samples, found in zip(SAMPLES, by_samples, strict=True):
            predictions = predicted(shape, len(world), samples, seed, dtype.itemsize)
            for own, expected in zip(found, predictions, strict=True):
                names = {event[0] for event in expected}
                assert [event for event in own if event[0] in names] == expected


@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}], ids=["learned", "rotary"])
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("keys", [1, 2, 4, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_operation_is_performed(worlds, ranks, keys, seed, options):
    """Also of a head alone and of short samples: what must be copied otherwise lies as needed."""
    shape = GPTShape(48, 5, 32, 8, 1, 40, kv_heads=keys, dropout=0.1, **options)
    check_operations(worlds(ranks), shape, seed)


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_each_operation_is_performed_in_16_bits(worlds, positions, p):
    """Statistics of the softmax without dropout, and angles, take 32 bits."""
    shape = GPTShape(48, 5, 32, 8, 1, 40, kv_heads=2, positions=positions, dropout=p)
    check_operations(worlds(4), shape, None, torch.bfloat16)


def test_whole_masks_are_drawn_for_the_heads_of_all_ranks():
    """Each rank draws what one device would, and with a seed a share of it."""
    shape = GPTShape(48, 5, 32, 8, 1, 40, dropout=0.1)
    drawn = {}
    for seed in (None, 7):
        for ranks in (1, 2, 4):
            forward, _ = predicted(shape, ranks, (3, 5), seed)
            sizes = [nbytes for name, _, nbytes in forward if name == "bernoulli"]
            drawn[seed, ranks] = sizes[1]  # the first is that of the embedding
    assert every(drawn[None, ranks] == 4 * 3 * 8 * 5 * 5 for ranks in (1, 2, 4))
    assert every(drawn[7, ranks] == 4 * 3 * 8 * 5 * 5 // ranks for ranks in (1, 2, 4))
