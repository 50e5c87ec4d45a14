"""What 8 and 4 bits cost a small GPT over three seeds, and which scale an outlier spoils."""

from functools import partial

import pytest
import torch

from lib.course.mixed_precision import fp8_runs
from lib.course.mixed_precision.fp8_runs import (
    delayed_steps,
    final_losses,
    losses,
    plant_outlier,
    product_errors,
)
from lib.single import GPT, Batches, next_token_loss
from lib.single.formats import E4M3, E8M0, MXFP4, MXFP8, NVFP4, BlockFormat
from lib.single.precision import fp8, microscaled
from tests.every import every

MILLION = 2.0**20


@pytest.fixture(scope="module")
def trained():
    """`trained(name)` gives the results of three seeds; each is trained once."""
    ways = {
        "fp32": {},
        "bf16": {"bf16": True},
        **{name: {"change": partial(fp8, scaling=name, block=16)} for name in ("tensor", "row")},
        **{name: {"change": partial(fp8, scaling=name, block=16)} for name in ("block", "delayed")},
    }
    results = {}

    def of(name, outlier=0.0):
        if (name, outlier) not in results:
            results[name, outlier] = final_losses(outlier=outlier, **ways[name])
        return results[name, outlier]

    return of


def apart(one, other):
    """The differences of two lists of losses, seed by seed."""
    return [a - b for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("name", ["bf16", "tensor", "row", "block", "delayed"])
def test_without_outliers_eight_bits_learn_as_fp32_does(trained, name):
    differences = apart(trained(name), trained("fp32"))
    assert max(map(abs, differences)) < 0.02 and abs(sum(differences) / 3) < 0.01
    assert trained(name) != trained("fp32") and max(trained("fp32")) < 3.2 < losses()[0] - 2


def test_seeds_shared_out_over_ranks_are_those_of_one_process(worlds):
    change = partial(microscaled, format=MXFP8)
    options = {"seeds": (0, 1, 2), "steps": 5}
    alone = final_losses(change, **options)
    assert final_losses(change, world=worlds(2, device="cpu"), **options) == alone
    assert len(set(alone)) == 3


def test_beside_an_outlier_blocks_win_and_one_scale_loses(trained):
    """One channel of 2^20: fp32 and bf16 do not see it, 16 channels share its block."""
    assert max(map(abs, apart(trained("bf16", MILLION), trained("fp32", MILLION)))) < 0.01
    block = apart(trained("block", MILLION), trained("fp32", MILLION))
    for name in ("tensor", "row", "delayed"):
        lost = apart(trained(name, MILLION), trained("fp32", MILLION))
        assert min(lost) > 0.6 and every(worse > 3 * better for worse, better in zip(lost, block))


def test_an_outlier_of_the_published_size_costs_eight_bits_little(trained):
    """100,000 times larger: e4m3 still has its last powers of two for the other channels."""
    lost = apart(trained("tensor", 2.0**17), trained("fp32", 2.0**17))
    assert max(map(abs, lost)) < 0.03


def test_a_planted_channel_changes_nothing_in_fp32_and_is_not_trained():
    tokens, targets = Batches(8, 32)[0]
    model, other = (plant_outlier(GPT(fp8_runs.SMALL_GPT), size) for size in (MILLION, 1.0))
    assert torch.equal(model(tokens), other(tokens))
    next_token_loss(model(tokens), targets).backward()
    up = model.blocks["1"].mlp.up.weight
    assert not up.grad[:, 3].any() and every(up.grad[:, n].any() for n in (2, 4))
    assert not model.blocks["1"].norm2.bias.grad[3] and model.blocks["1"].norm2.bias.grad[2]
    assert losses(outlier=MILLION, steps=5) == losses(outlier=1.0, steps=5)


def test_each_scaling_spoils_the_products_whose_tiles_hold_the_outlier():
    """Errors of y, dx and dW: a tile is spoilt where the outlier shares its inner dim."""

    def spoilt(*arguments, **options):
        return [error > 0.2 for error in product_errors(*arguments, **options)]

    for scaling in ("tensor", "row", "block"):
        assert max(product_errors(scaling, "none")) < 0.07
        assert max(product_errors(scaling, "channel", size=2.0**12)) < 0.07
    assert spoilt("tensor", "token") == spoilt("tensor", "channel") == [True, False, True]
    # A row is a token in y, a channel in dW: but dW reads what forward had rounded.
    assert spoilt("row", "token") == [False, False, True]
    assert spoilt("row", "channel") == [True, False, True]
    assert spoilt("row", "channel", kept="input") == [True, False, False]
    for outlier in ("token", "channel"):
        rows, blocks = product_errors("row", outlier), product_errors("block", outlier)
        assert every(b < 0.6 * r for r, b in zip(rows, blocks) if r > 0.2)
    with pytest.raises(ValueError, match="outlier must be 'none', 'token' or 'channel', not 'x'."):
        product_errors("row", "x")


def test_a_jump_of_the_maximum_is_clipped_once_unless_there_is_a_margin():
    steps = delayed_steps([1, 1, 10, 10, 1, 1, 1, 1, 1], history=4)
    assert [step.clipped > 0 for step in steps] == [n == 2 for n in range(9)]
    assert steps[2].clipped > 0.6 and steps[2].error > 0.7
    assert every(step.error < 0.03 for n, step in enumerate(steps) if n != 2)
    raised = [step.scale > 5 * steps[0].scale for step in steps]
    assert raised == [3 <= n <= 7 for n in range(9)]  # four steps after the last large one
    room = delayed_steps([1, 1, 10, 10, 1], history=4, margin=4)
    assert every(step.clipped == 0 and step.error < 0.03 for step in room)


@pytest.fixture(scope="module")
def few_bits():
    """Results of three seeds in formats whose blocks share a scale."""
    ceil = BlockFormat("MXFP8", E4M3, E8M0, 32, "ceil")
    ways = {
        "fp32": None,
        "MXFP8": partial(microscaled, format=MXFP8),
        "MXFP8 ceil": partial(microscaled, format=ceil),
        "MXFP4": partial(microscaled, format=MXFP4),
        "NVFP4": partial(microscaled, format=NVFP4),
        "NVFP4 stochastic": partial(microscaled, format=NVFP4, stochastic=True),
        "both": partial(microscaled, format=NVFP4, stochastic=True, hadamard="weights"),
    }
    results = {name: final_losses(change, steps=60) for name, change in ways.items()}
    return {name: apart(found, results["fp32"]) for name, found in results.items()}


def test_mx_with_the_published_rule_saturates_and_another_rule_does_not(few_bits):
    """MXFP8 loses more than one scale for the whole tensor, until scales are rounded up."""
    assert min(few_bits["MXFP8"]) > 0.01 and max(map(abs, few_bits["MXFP8 ceil"])) < 0.01


def test_finer_scales_lose_less(few_bits):
    assert sum(few_bits["NVFP4"]) < sum(few_bits["MXFP4"]) / 2


def test_in_four_bits_stochastic_gradients_help_every_seed(few_bits):
    """The Hadamard transform adds nothing here that can be seen beside the noise of rounding."""
    gained = apart(few_bits["NVFP4"], few_bits["NVFP4 stochastic"])
    assert min(gained) > 0 and sum(gained) / 3 > 0.015
    assert sum(few_bits["NVFP4 stochastic"]) < sum(few_bits["NVFP4"]) / 2
    assert max(map(abs, apart(few_bits["both"], few_bits["NVFP4 stochastic"]))) < 0.015
