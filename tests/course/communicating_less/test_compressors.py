"""Chapter 2's experiments, and what its text says of the gradients of FSDP."""

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from lib.course.communicating_less import lessons
from lib.course.communicating_less.compressors import sparse_and_dense, trained_with
from lib.parallel.data import Sign


def test_each_hook_has_a_loss_of_each_seed_and_a_row(worlds):
    losses, table = trained_with(worlds(2), {"plain": None, "sign": Sign()})
    title, plain, sign = table.splitlines()
    assert title.split() == ["bytes", "loss"]
    assert plain.split()[:2] == ["plain", "118,656"]  # 2(n-1)/n of the gradient, on two ranks
    assert sign.startswith("sign") and max(map(len, (plain, sign))) <= 49
    assert list(losses) == ["plain", "sign"] and [len(one) for one in losses.values()] == [3, 3]
    assert sum(losses["plain"]) < sum(losses["sign"])


def test_a_hook_under_a_wrong_name_is_noticed(worlds):
    with pytest.raises(AssertionError):
        trained_with(worlds(2), {"plain": Sign()})


def sharded_backward(reduce_dtype):
    model = torch.nn.Linear(64, 64, bias=False, device="cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    fully_shard(model, mp_policy=policy)
    model(torch.ones(2, 64, device="cpu")).sum().backward()


def test_fsdp2_sends_gradients_in_bfloat16_unless_told_otherwise(worlds):
    """What the text says of `param_dtype` and `reduce_dtype`, with 64 · 64 numbers."""
    for dtype, nbytes in ((None, 2), (torch.float32, 4)):
        ledger = worlds(4, device="cpu").record(sharded_backward, dtype)
        (row,) = ledger.where(rank=0, op="reduce_scatter", lane="comm")
        assert row.bytes == nbytes * 64 * 64


def test_a_sparse_gradient_sends_what_is_predicted(worlds):
    shares, rows = lessons.word_shares(2, 64)
    counts = [len(share.unique()) for share in shares]
    ledger = worlds(2, device="cpu").record(lessons.word_gradient_on_rank, shares, rows)
    as_rows, as_table = sparse_and_dense(ledger, counts, rows)
    assert as_rows == 8 + max(counts) * (4 + 4 * lessons.D)  # the number of rows, then the rows
    assert as_table == rows * 4 * lessons.D
    with pytest.raises(AssertionError):
        sparse_and_dense(ledger, [count + 1 for count in counts], rows)
