"""How long ring attention takes: in slow motion on four and eight ranks, as predicted."""

import sys

import pytest
import torch

from lib.parallel.sequence import ring_attention
from lib.predict.sequence.ring_step import Attention, ring_step
from lib.ranks.slow_motion import SlowMotion
from tests.slow_steps import late, least_late

pytestmark = pytest.mark.quiet


def build(it, ranks):
    """A rank's tokens of one attention, and the gradient of its output."""
    torch.manual_seed(0)
    queries, keys = (
        (it.batch, heads, it.length // ranks, it.head_size) for heads in (it.heads, it.key_heads)
    )
    leaves = [torch.randn(shape, requires_grad=True) for shape in (queries, keys, keys)]
    sys.modules["__main__"].__dict__["tokens"] = leaves, torch.randn(queries)


def step(layout, documents=None):
    leaves, gradient = sys.modules["__main__"].__dict__["tokens"]
    for leaf in leaves:
        leaf.grad = None
    ring_attention(*leaves, layout=layout, documents=documents).backward(gradient)


@pytest.mark.parametrize("bandwidth", [1e12, 2e11], ids=["hidden", "exposed"])
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_ring_in_both_layouts_takes_the_predicted_time(worlds, ranks, bandwidth):
    # So slow that the ranks do the real work in a fraction of the stretched time.
    speeds = SlowMotion(
        "H100", link="NVLink4", dtype="fp32", factor=1e5, alpha=1e-8, bandwidth=bandwidth
    )
    it, world = Attention(1, 4, 2, 256 * ranks, 32), worlds(ranks, device="cpu")
    world.run(build, it, ranks)
    predicted = {}
    for layout in ("contiguous", "zigzag"):
        ledger = least_late(world, speeds, step, layout)
        predicted[layout] = ring_step(it, ranks, speeds, layout=layout).makespan
        ratio = ledger.makespan / predicted[layout]
        assert abs(ratio - 1) <= 0.05 + late(ledger), f"{layout}: {ratio:.3f}"
    if bandwidth == 1e12:
        assert predicted["zigzag"] < 0.75 * predicted["contiguous"]


def computing(ledger, ranks):
    """The share of the time until the last rank ends in which ranks compute, on average."""
    return sum(row.seconds for row in ledger.where(lane="compute")) / ranks / ledger.makespan


def test_the_balance_that_documents_cost_zigzag_is_the_predicted_one(worlds):
    """Packed documents take the balance that mirrored chunks give one document."""
    ranks, documents = 4, (0, 128, 400, 1024)
    speeds = SlowMotion(
        "H100", link="NVLink4", dtype="fp32", factor=1e5, alpha=1e-8, bandwidth=1e12
    )
    it, world = Attention(1, 4, 2, 256 * ranks, 32), worlds(ranks, device="cpu")
    world.run(build, it, ranks)
    shares = {}
    for packed in (None, documents):
        ledger = least_late(world, speeds, step, "zigzag", packed)
        predicted = ring_step(it, ranks, speeds, documents=packed)
        ratio = ledger.makespan / predicted.makespan
        assert abs(ratio - 1) <= 0.05 + late(ledger), f"{packed}: {ratio:.3f}"
        shares[packed] = computing(predicted, ranks)
        recorded = computing(ledger, ranks)
        assert abs(recorded / shares[packed] - 1) <= 0.05 + late(ledger), f"{packed}: {recorded}"
    assert shares[documents] < 0.9 * shares[None]
