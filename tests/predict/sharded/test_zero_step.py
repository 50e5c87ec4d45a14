"""A predicted step of ZeRO-1 and 2: its collectives, its order, and data parallel beside it."""

import pytest

from lib.predict.collectives.exchange import sent_bytes
from lib.predict.data.ddp_step import data_parallel_step
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.traffic import of_step
from lib.predict.sharded.zero_step import exchanges, gradient_buckets, weight_buffers, zero_step

SHAPES = [GPTShape(layers=2), GPTShape(layers=2, tied=True, kv_heads=2), MLPShape((7, 30, 20, 3))]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
TIMES = speeds("H100")


@every_shape
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("bucket_bytes", [None, 20_000, 1])
def test_the_rows_are_the_predicted_exchanges_in_their_order(shape, stage, bucket_bytes):
    ledger = zero_step(shape, [2] * 4, TIMES, stage=stage, bucket_bytes=bucket_bytes)
    wanted = [(e.op, e.bytes) for e in exchanges(shape, 4, stage, bucket_bytes)]
    for rank in range(4):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == wanted
    names = [name for bucket in gradient_buckets(shape, stage, bucket_bytes) for name in bucket]
    assert sorted(names) == sorted(p.name for p in shape.parameters)
    assert sum(weight_buffers(shape, stage, bucket_bytes)) == shape.numel


def test_one_bucket_sends_what_the_formula_says():
    shape = MLPShape((64, 64, 64), bias=False)
    for stage in (1, 2):
        found = exchanges(shape, 4, stage, 10**9)
        assert found == of_step(shape.numel, 4, stage, beside_ddp=stage == 1)
    assert sent_bytes(exchanges(shape, 4, 1)) == 1.5 * sent_bytes(exchanges(shape, 4, 2))


def test_a_bucket_of_7_elements_is_padded_for_4_ranks():
    shape = MLPShape((7, 1), bias=False)
    assert [e.bytes for e in exchanges(shape, 4, 2)] == [32, 32]
    assert [e.bytes for e in exchanges(shape, 4, 1)] == [28, 32]


@every_shape
def test_stage_1_is_data_parallel_but_for_the_step(shape):
    ours = zero_step(shape, [2] * 4, TIMES, bucket_bytes=20_000)
    counts = [len(bucket) for bucket in gradient_buckets(shape, 1, 20_000)]
    theirs = data_parallel_step(shape, [2] * 4, TIMES, buckets=counts)
    both = [
        sorted((r.number, r.start, r.end) for r in one.where(rank=1, lane="comm", op="all_reduce"))
        for one in (ours, theirs)
    ]
    assert both[0] == both[1] and both[0]
    steps = [sum(r.seconds for r in one.where(rank=0, op="add")) for one in (ours, theirs)]
    assert steps[0] < steps[1]


class Slow:
    """A product takes 1 s, a number that the step moves 1 s, a gather 1 s, all else nothing."""

    def compute(self, flop, nbytes):
        return 1.0 if flop else 0.0

    def moving(self, op, ranks, nbytes):
        return {"reduce_scatter": 0.5, "all_gather": 1.0}[op]


def test_stage_2_reduces_while_backward_runs():
    shape = MLPShape((8, 8, 8), bias=False)  # 2 products forward, 3 backward
    ledger = zero_step(shape, [1, 1], Slow(), stage=2, bucket_bytes=1)
    rows = ledger.where(rank=0, lane="comm")
    times = [(row.op, row.start, row.end) for row in rows]
    assert times == [("reduce_scatter", 4.0, 4.5), ("reduce_scatter", 5.0, 5.5),
                     ("all_gather", 5.5, 6.5), ("all_gather", 5.5, 7.5)]  # fmt: skip
    assert ledger.makespan == 7.5


def test_other_stages_are_refused():
    with pytest.raises(ValueError, match="Stages 1 and 2 send gradients in buckets, not stage 3."):
        zero_step(SHAPES[0], [1], TIMES, stage=3)
    with pytest.raises(ValueError, match="A step needs at least one rank."):
        zero_step(SHAPES[0], [], TIMES)
