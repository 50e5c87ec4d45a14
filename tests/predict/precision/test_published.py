"""Published throughput in two formats: the printed ratios recompute, and ours beside them."""

import pytest

from lib.predict.flops import flops
from lib.predict.hardware import gpu
from lib.predict.precision.published import bert_large, tables
from lib.predict.shape import GPTShape
from lib.predict.sharded.published import printed_as
from tests.every import every

COMPARED = bert_large()


def test_printed_speedups_are_the_quotients_but_for_one():
    rows = [row for table in tables().values() for row in table["rows"]]
    quotients = [row["throughput"][1] / row["throughput"][0] for row in rows]
    printed = [printed_as(quotient, row["speedup"]) for quotient, row in zip(quotients, rows)]
    assert printed == ["rounded", "rounded", "rounded", "cut off", "rounded", ""]
    assert "printed as 3.68" in tables()["bert_large_2019"]["note"]


def test_batches_times_steps_are_the_accumulated_batches():
    products = [
        [b * m for b, m in zip(row["batches"], row["microbatches"])]
        for row in tables()["bert_large"]["rows"]
    ]
    assert products == [[8192, 8192], [4096, 4096], [4096, 4096], [2048, 2048]]


# The ratio that is predicted, as a share of the measured one, less 1.
ERRORS = {("A100", 128): 0.04, ("A100", 512): -0.04, ("V100", 128): 0.26, ("V100", 512): 0.19}


@pytest.mark.parametrize("one", COMPARED, ids=lambda one: f"{one.gpu} {one.sequence}")
def test_the_predicted_ratio_is_off_by_as_much_as_is_said(one):
    """On the A100 by 4 %; on the V100 by up to 26 %, because fp16 does not reach its peak there."""
    assert one.error == pytest.approx(ERRORS[one.gpu, one.sequence], abs=0.01)


def test_the_times_themselves_are_off_by_more():
    """At 128 tokens the measured step reaches 70 to 93 % of the roofline; on V100s fp16 less."""
    for one in COMPARED:
        shares = [m / p for m, p in zip(one.measured, one.predicted)]
        if one.gpu == "V100":
            assert shares[0] > shares[1]
        if one.sequence == 128:
            assert every(0.69 < share < 0.93 for share in shares)


def test_samples_of_512_tokens_cannot_all_have_had_512():
    """Their operations in fp32 would be more than the V100 can do, as the table's note says."""
    shape = GPTShape(**tables()["bert_large"]["sizes"])
    measured = next(o.measured[0] for o in COMPARED if (o.gpu, o.sequence) == ("V100", 512))
    share = measured * flops(shape, 1, 512).total / gpu("V100").peak["fp32"]
    assert share == pytest.approx(1.4, abs=0.1)
