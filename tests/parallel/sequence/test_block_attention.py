"""Attention of one block: PyTorch's kernels against the readable version, and how blocks merge."""

import math

import pytest
import torch

from lib.parallel.sequence import block_attention, merge
from tests.parallel.sequence import steps

CLOSE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_kernel_is_the_readable_version(groups, causal, dtype):
    q, k, v, gradient = steps.drawn(24, groups=groups, dtype=dtype)
    results = []
    for part in ("", "readable_"):
        there, back = (getattr(block_attention, part + name) for name in ("forward", "backward"))
        out, log_sum = there(q, k, v, causal, 0.3)
        results.append([out, log_sum, *back(gradient, q, k, v, out, log_sum, causal, 0.3)])
    assert block_attention.kernel_of(q, v) == "cpu"
    assert steps.far(*results) < CLOSE[dtype]


@pytest.mark.parametrize("cut", [1, 11, 23])
def test_two_blocks_merge_to_the_whole(cut):
    q, k, v, _ = steps.drawn(24)
    out, log_sum = block_attention.forward(q, k[:, :, :cut], v[:, :, :cut], False, 1.0)
    merge(out, log_sum, *block_attention.forward(q, k[:, :, cut:], v[:, :, cut:], False, 1.0))
    assert steps.far([out, log_sum], block_attention.forward(q, k, v, False, 1.0)) < 1e-13


def test_a_block_that_is_masked_whole_changes_nothing():
    """A shipped bug: the rescaling of a fully masked block divided 0 by 0."""
    out, log_sum = torch.zeros(1, 2, 3, 4), torch.full((1, 2, 3), -math.inf)
    nothing = torch.zeros_like(out), torch.full_like(log_sum, -math.inf)
    merge(out, log_sum, *nothing)
    assert not out.any() and (log_sum == -math.inf).all()
    merge(out, log_sum, torch.ones_like(out), torch.zeros_like(log_sum))
    merge(out, log_sum, *nothing)
    assert (out == 1).all() and not log_sum.any()
    with_the_bug = torch.sigmoid(nothing[1] - nothing[1])
    assert with_the_bug.isnan().all()


def test_scores_too_large_for_exp_are_merged():
    q, k, v, _ = steps.drawn(8)
    q = 1000 * q
    out, log_sum = block_attention.forward(q, k[:, :, :3], v[:, :, :3], False, 1.0)
    merge(out, log_sum, *block_attention.forward(q, k[:, :, 3:], v[:, :, 3:], False, 1.0))
    assert steps.far([out, log_sum], block_attention.forward(q, k, v, False, 1.0)) < 1e-13
