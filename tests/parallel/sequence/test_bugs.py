"""Shipped bugs of sequence parallelism: each is put in, and the comparison finds it."""

import math

import pytest
import torch

from lib.parallel.sequence import context_parallel, merging
from lib.parallel.sequence.ring import Ring
from lib.predict.sequence.layout import Part
from tests.parallel.sequence import models, steps


def positions_from_zero(name):
    """Each rank counts the positions of its tokens from 0."""
    model = context_parallel(models.gpt(name))
    tokens, labels = model.context.shard(*models.batch(32))
    for part in model.modules():
        if hasattr(part, "position_ids"):
            part.position_ids = None
    return model.context.loss(model(tokens), labels).item()


@pytest.mark.parametrize("name", ["learned", "rotary, two keys"])
def test_positions_that_start_at_0_on_every_rank(worlds, name):
    expected = models.plain(name, 32, steps=1)["losses"][0]
    for loss in worlds(2).run(positions_from_zero, name):
        assert abs(loss - expected) > 1e-4


def masked_locally(layout):
    """Every block gets the causal mask of a square, and none is skipped."""
    blocks = lambda ring, length, causal: [
        [Part(slice(0, length), slice(0, length), causal)] for _ in range(ring.ranks)
    ]
    right, Ring.blocks = Ring.blocks, blocks
    try:
        return steps.spread(32, True, layout)
    finally:
        Ring.blocks = right


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_a_causal_mask_applied_to_the_local_block_only(worlds, layout):
    expected = steps.whole(32, True)
    for found in worlds(2).run(masked_locally, layout):
        assert all(steps.far([a], [b]) > 0.1 for a, b in zip(found, expected))


def masked_whole():
    """A block that the mask covers is computed and rescaled like any other."""

    def merge(out, log_sum, block_out, block_log_sum):
        largest = torch.maximum(log_sum, block_log_sum)
        a, b = (log_sum - largest).exp(), (block_log_sum - largest).exp()
        out.copy_((a[..., None] * out + b[..., None] * block_out) / (a + b)[..., None])
        log_sum.copy_(largest + (a + b).log())

    out, log_sum = torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), -math.inf)
    merge(out, log_sum, torch.zeros_like(out), log_sum.clone())
    right = torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), -math.inf)
    merging.merge(*right, torch.zeros_like(out), right[1].clone())
    return out.isnan().all().item(), right[0].isnan().any().item()


def test_the_rescaling_of_a_masked_block_is_not_a_number():
    assert masked_whole() == (True, False)


def left_apart():
    """The gradients of the ranks are not summed."""
    model = context_parallel(models.gpt("learned"), sum_gradients=False)
    tokens, labels = model.context.shard(*models.batch(32))
    model.context.loss(model(tokens), labels).backward()
    return model.get_parameter("blocks.1.norm1.weight").grad


def test_gradients_that_are_not_summed(worlds):
    expected = models.plain("learned", 32, steps=1)["gradients"]["blocks.1.norm1.weight"]
    found = worlds(2).run(left_apart)
    found = [one.to("cpu") for one in found]
    assert all((one - expected).norm() > 0.1 * expected.norm() for one in found)
    assert (sum(found) - expected).norm() < 1e-11 * expected.norm()
