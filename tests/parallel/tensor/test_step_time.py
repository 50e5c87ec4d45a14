"""A tensor-parallel step in slow motion takes the time, and sends the bytes, that are predicted."""

import sys
from dataclasses import replace

import pytest
import torch

from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.larger import Larger
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import tensor_parallel_step
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT
from tests.slow_steps import late, least_late

pytestmark = pytest.mark.quiet

SHAPE = GPTShape(vocabulary=96, sequence=32, width=64, heads=8, layers=2, tied=True)
SHAPES = {
    "plain": SHAPE,
    "dropout": replace(SHAPE, dropout=0.1),
    "one key": replace(SHAPE, kv_heads=1),
    "two keys": replace(SHAPE, kv_heads=2),
    "one key, dropout": replace(SHAPE, kv_heads=1, dropout=0.1),
    "two keys, dropout": replace(SHAPE, kv_heads=2, dropout=0.1, positions="rotary"),
}
SAMPLES = 4
# So slow that four ranks on two cores do the real work in a fraction of the stretched time; the
# link is such that sums take about as long as what is computed between them.
SPEEDS = SlowMotion("H100", link="NVLink4", factor=5e4, alpha=1e-8, bandwidth=1e12)


def build(shape, seed, samples=SAMPLES):
    kept = sys.modules["__main__"].__dict__
    kept["model"] = tensor_parallel(GPT(shape), seed=seed)
    kept["optimizer"] = torch.optim.SGD(kept["model"].parameters(), lr=1e-6, foreach=False)
    draw = torch.Generator().manual_seed(0)
    kept["tokens"] = torch.randint(shape.vocabulary, (samples, shape.sequence + 1), generator=draw)


def step():
    kept = sys.modules["__main__"].__dict__
    model, optimizer, tokens = kept["model"], kept["optimizer"], kept["tokens"]
    optimizer.zero_grad()
    vocab_parallel_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    optimizer.step()


def collectives(ledger, rank):
    """What each collective of a rank is, and when it began and ended, in the order of launch."""
    rows = sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start)
    what = [(row.op, row.group, row.members, row.bytes) for row in rows]
    return what, [(row.start + row.waiting, row.end) for row in rows]


CASES = [
    ("plain", 2, None),
    ("dropout", 2, None),
    ("dropout", 4, 7),
    ("one key", 2, None),
    ("one key", 4, None),
    ("two keys", 4, None),
    ("one key, dropout", 4, 7),
    ("two keys, dropout", 4, None),
]


def check(ledger, predicted):
    """What is left out of the prediction, a few bytes for each token, takes 1 % of the time."""
    off = 0.02 * predicted.makespan + late(ledger) * ledger.makespan
    assert abs(ledger.makespan - predicted.makespan) <= off
    for rank in ledger.ranks:
        (own, times), (theirs, expected) = (collectives(one, rank) for one in (ledger, predicted))
        assert own == theirs
        for recorded, formula in zip(times, expected, strict=True):
            assert recorded == pytest.approx(formula, abs=off)


@pytest.mark.parametrize(("name", "ranks", "seed"), CASES)
def test_a_step_is_as_predicted(worlds, name, ranks, seed):
    shape, world = SHAPES[name], worlds(ranks, device="cpu")
    world.run(build, shape, seed)
    ledger = least_late(world, SPEEDS, step, warm=1)
    check(ledger, tensor_parallel_step(shape, ranks, SAMPLES, SPEEDS, whole_masks=seed is None))


def test_a_small_step_with_a_shared_key_and_dropout_stands_for_a_large_one(worlds):
    options = {"layers": 1, "kv_heads": 1, "dropout": 0.1}
    small = GPTShape(1000, sequence=14, width=320, heads=16, hidden=456, **options)
    large = GPTShape(32_000, sequence=4096, width=8192, heads=64, **options)
    # The two sums of the loss stand for themselves.
    stands = Larger(small, large, (7, 1), shared_by=(4,), sizes={2: 2})
    speeds = SlowMotion("H100", link="NVLink4", dtype="fp32", factor=12, stands_for=stands)
    world = worlds(4, device="cpu")
    world.run(build, small, None, 7)
    check(least_late(world, speeds, step, warm=1), tensor_parallel_step(large, 4, 1, speeds))
