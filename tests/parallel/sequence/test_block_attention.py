"""Attention of one block: PyTorch's kernels against the readable version, and how blocks merge."""

import math
from types import SimpleNamespace

import pytest
import torch

from lib.parallel.sequence import block_attention, flash_on_cpu, merge
from tests.parallel.sequence import steps

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
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


readable = SimpleNamespace(
    forward=block_attention.readable_forward, backward=block_attention.readable_backward
)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("tokens", [128, 129, 300])
def test_a_causal_block_in_pieces_is_the_readable_version(tokens, dtype):
    q, k, v, gradient = steps.drawn(tokens, groups=2, dtype=dtype)
    results = []
    for part in (flash_on_cpu, readable):
        out, log_sum = part.forward(q, k, v, True, 0.3)
        results.append([out, log_sum, *part.backward(gradient, q, k, v, out, log_sum, True, 0.3)])
    assert {t.dtype for t in results[0][2:]} == {dtype}
    assert steps.far(*results) < 4 * CLOSE[dtype]  # sums of more keys than those of other tests


@pytest.mark.parametrize("tokens", [1, 128, 129, 300, 1024])
def test_pieces_of_a_causal_block_are_its_pairs_once(tokens):
    computed, seen = torch.zeros(2, tokens, tokens, dtype=torch.int64)
    for rows, columns, causal in flash_on_cpu.pieces(tokens, tokens, True):
        piece = torch.ones_like(computed[rows, columns])
        assert causal != seen[rows].any()  # a query's own keys come first
        seen[rows, columns] = 1
        computed[rows, columns] += piece.tril() if causal else piece
    assert computed.equal(torch.ones_like(computed).tril())


@pytest.mark.parametrize(("tokens", "times"), [(512, 2.0), (2048, 1.25)])
def test_the_kernel_computes_pairs_that_the_mask_hides(tokens, times):
    """A value that is not a number spoils each query that meets it, even with the weight 0."""
    q = torch.zeros(1, 1, tokens, 8)
    step, hidden = tokens // 64, 0
    for key in range(0, tokens, step):
        v = torch.zeros_like(q)
        v[:, :, key] = math.nan
        out, _ = KERNEL(q, q, v, 0.0, True)
        hidden += step * out[0, 0, :key, 0].isnan().sum().item()
    assert 1 + hidden / (tokens * (tokens + 1) / 2) == pytest.approx(times, rel=0.02)


def test_pieces_leave_few_pairs_that_the_mask_hides():
    pieces = flash_on_cpu.pieces(2048, 2048, True)
    area = sum((r.stop - r.start) * (c.stop - c.start) for r, c, _ in pieces)
    assert 1 < area / (2048 * 2049 / 2) < 1.07


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


class Kernels:
    """CUDA's kernels as far as they differ: each is called on `meta`, which checks its arguments.

    The numbers are those of the readable version. The efficient kernel pads its rows to 32.
    """

    def _checked(self, name, *arguments, **more):
        meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
        return getattr(torch.ops.aten, name)(*meta, **more)

    def _scaled_dot_product_efficient_attention(
        self, q, k, v, bias, with_log_sum, dropout, causal, *, scale
    ):
        name = "_scaled_dot_product_efficient_attention"
        like = self._checked(name, q, k, v, bias, with_log_sum, dropout, causal, scale=scale)
        assert q.shape[1] == k.shape[1] and with_log_sum and not dropout
        out, log_sum = block_attention.readable_forward(q, k, v, causal, scale)
        assert like[0].shape == out.shape
        return out, torch.nn.functional.pad(log_sum, (0, -q.shape[2] % 32), value=math.nan), 0, 0

    def _scaled_dot_product_efficient_attention_backward(
        self, gradient, q, k, v, bias, out, log_sum, seed, offset, dropout, wanted, causal, *, scale
    ):
        rows = q.shape[2]
        assert q.shape[1] == k.shape[1] and wanted == [True, True, True, False]
        assert log_sum.shape[2] % 32 == 0 and (log_sum[:, :, rows:] == math.inf).all()
        tensors = gradient, q, k, v, out, log_sum[:, :, :rows]
        return *block_attention.readable_backward(*tensors, causal, scale), None

    def _scaled_dot_product_flash_attention(self, q, k, v, dropout, causal, *, scale):
        name = "_scaled_dot_product_flash_attention"
        like = self._checked(name, q, k, v, dropout, causal, scale=scale)
        out, log_sum = block_attention.readable_forward(q, k, v, causal, scale)
        assert (like[0].shape, like[1].shape) == (out.shape, log_sum.shape)
        return out, log_sum, None, None, *q.shape[2:3], *k.shape[2:3], 0, 0

    def _scaled_dot_product_flash_attention_backward(
        self, gradient, q, k, v, out, log_sum, starts, ends, rows, columns, dropout, causal, seed,
        offset, *, scale,
    ):  # fmt: skip
        assert (rows, columns) == (q.shape[2], k.shape[2]) and log_sum.is_contiguous()
        return block_attention.readable_backward(gradient, q, k, v, out, log_sum, causal, scale)


@pytest.mark.parametrize("rows", [24, 32, 33])
@pytest.mark.parametrize("kernel", ["flash", "efficient"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_cudas_kernels_get_what_they_take(monkeypatch, groups, kernel, rows):
    """Without a GPU: heads that share keys, rows that are padded, and the arguments' order."""
    monkeypatch.setattr(block_attention, "kernel_of", lambda q, v: kernel)
    monkeypatch.setattr(block_attention, "_aten", Kernels())
    q, k, v, gradient = steps.drawn(rows, groups=groups, dtype=torch.float32)
    results = []
    for part in ("", "readable_"):
        there, back = (getattr(block_attention, part + name) for name in ("forward", "backward"))
        out, log_sum = there(q, k, v, True, 0.3)
        results.append([out, log_sum, *back(gradient, q, k, v, out, log_sum, True, 0.3)])
    assert steps.far(*results) < 1e-6


def test_the_kernel_is_chosen_by_device_dtype_and_what_the_gpu_has(monkeypatch):
    def on(device, dtype=torch.bfloat16, size=8):
        return SimpleNamespace(
            device=SimpleNamespace(type=device), dtype=dtype, shape=[1, 1, 4, size]
        )

    has = {"flash": True, "efficient": True}
    monkeypatch.setattr(block_attention, "SDPAParams", lambda *given: given)
    monkeypatch.setattr(block_attention, "can_use_flash_attention", lambda _: has["flash"])
    monkeypatch.setattr(block_attention, "can_use_efficient_attention", lambda _: has["efficient"])
    choose = lambda q, v=None: block_attention.kernel_of(q, q if v is None else v)
    assert choose(on("cpu")) == "cpu" and choose(on("mps")) == "readable"
    assert choose(on("cuda")) == "flash" and choose(on("cuda", torch.float64)) == "readable"
    assert choose(on("cuda"), on("cuda", size=16)) == "readable"
    has["flash"] = False
    assert choose(on("cuda")) == "efficient"
    has["efficient"] = False
    assert choose(on("cuda")) == "readable"
