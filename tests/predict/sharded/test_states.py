"""Bytes by kind under each stage: by hand, in every convention, and padded to equal shares."""

import pytest

from lib.predict.memory import Held
from lib.predict.sharded.states import (
    PRECISIONS,
    STAGES,
    Convention,
    bytes_per_parameter,
    convention,
    conventions,
    fewest_ranks,
    held,
    keeping,
    largest_model,
    share_of,
)
from tests.every import every

PSI = 7_500_000_000


def test_each_stage_shards_one_kind_more():
    assert held(PSI, 64, 0) == Held(2 * PSI, 2 * PSI, 12 * PSI, 0)
    share = -(-PSI // 64)
    assert held(PSI, 64, 1) == Held(2 * PSI, 2 * PSI, 12 * share, 0)
    assert held(PSI, 64, 2) == Held(2 * PSI, 2 * share, 12 * share, 0)
    assert held(PSI, 64, 3) == Held(2 * share, 2 * share, 12 * share, 0)


def test_a_share_is_rounded_up():
    assert [share_of(7, ranks) for ranks in (1, 2, 4, 7, 8)] == [7, 4, 2, 1, 1]
    assert held(7, 4, 3, "FSDP") == Held(8, 8, 16, 0)
    assert 4 * held(7, 4, 3).total > held(7).total, "four padded shares are more than the whole"


def test_on_one_rank_no_stage_saves_anything():
    for name in conventions():
        assert every(held(1001, 1, stage, name) == held(1001, 1, 0, name) for stage in STAGES)
        assert convention(name).total == bytes_per_parameter(1, 3, name)


def test_the_conventions_count_what_their_names_promise():
    totals = {name: convention(name).total for name in conventions()}
    assert totals == {
        "ZeRO": 16, "Megatron-LM": 18, "DeepSpeed stage 2": 20, "DeepSpeed stage 3": 18,
        "FSDP": 16, "Ultra-Scale figures": 12, "Checkpoint": 14,
    }  # fmt: skip
    assert every(len(convention(name).source) > 15 for name in totals)
    assert convention("zero") == convention("ZeRO")
    assert bytes_per_parameter(64, 1, "Megatron-LM") == 6 + 12 / 64  # its own words


def test_an_optimizer_and_a_precision_make_a_convention():
    made = {(o, p): keeping(o, p)[1:4] for o in ("sgd", "momentum", "adamw") for p in PRECISIONS}
    assert made == {
        ("sgd", "fp32"): (4, 4, 0), ("sgd", "mixed"): (2, 2, 4), ("sgd", "bf16"): (2, 2, 0),
        ("momentum", "fp32"): (4, 4, 4), ("momentum", "mixed"): (2, 2, 8),
        ("momentum", "bf16"): (2, 2, 2), ("adamw", "fp32"): (4, 4, 8),
        ("adamw", "mixed"): (2, 2, 12), ("adamw", "bf16"): (2, 2, 4),
    }  # fmt: skip
    assert keeping()[1:4] == convention("ZeRO")[1:4]
    assert held(100, 2, 3, keeping("sgd", "fp32")) == Held(200, 200, 0, 0)


def test_the_largest_model_holds_what_it_says():
    for stage in STAGES:
        size = int(largest_model(80e9, 64, stage))
        assert held(size - 64, 64, stage).total <= 80e9 < held(size + 64, 64, stage).total


def test_the_fewest_ranks_are_enough_and_one_fewer_is_not():
    for stage in STAGES:
        ranks = fewest_ranks(PSI, 80e9, stage)
        if stage == 0:
            assert ranks is None  # 120 GB on any number of ranks
            continue
        assert held(PSI, ranks, stage).total <= 80e9 < held(PSI, ranks - 1, stage).total
    assert fewest_ranks(PSI, 80e9, 3) == 2 and fewest_ranks(PSI, 200e9, 0) == 1
    assert fewest_ranks(8_000_000_000_000, 80e9, 2) is None


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="ZeRO has stages 0, 1, 2 and 3, not 4."):
        held(10, 2, 4)
    with pytest.raises(ValueError, match="None of the conventions is called 'mine'. Choose one"):
        held(10, 2, 3, "mine")
    with pytest.raises(ValueError, match="Nothing is known of 'lion' in 'fp8'. Choose one of sgd"):
        keeping("lion", "fp8")
    with pytest.raises(ValueError, match="The number of ranks must be a whole number"):
        held(10, 0, 3)
    assert isinstance(convention(), Convention)
