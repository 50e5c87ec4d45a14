"""Spread equals whole for a GPT: logits, losses, every gradient, weights after steps, float64."""

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from tests.parallel.tensor import models
from tests.parallel.tensor.steps import differences, plain, spread

CASES = [*models.SHAPES, *models.HARD]


@pytest.mark.parametrize("name", CASES)
def test_spread_equals_whole(world, name):
    """Dropout too: each rank draws the whole mask and takes its part."""
    found = differences(world.run(spread, name), plain(name))
    assert set(found) == {"losses", "logits", "gradients", "weights"}
    assert max(found.values()) < 1e-10, found


def without(op, name):
    """Train while one collective does nothing."""
    real = getattr(dist, op)

    class Done:
        def wait(self):
            return None

    try:
        setattr(dist, op, lambda *args, **kwargs: Done())
        return spread(name)
    finally:
        setattr(dist, op, real)


def test_without_all_reduce_it_is_something_else(worlds):
    found = differences(worlds(2).run(without, "all_reduce", "plain"), plain("plain"))
    assert min(found.values()) > 1e-4, found


def trained_or_not(name, fails):
    """Train, unless rank 1 fails where the others wait for its sums."""
    if fails and dist.get_rank() == 1:
        raise ValueError("it fails")
    return spread(name)


def test_after_a_failure_ranks_share_a_key_in_a_new_group(worlds):
    """The group of those that share it is kept from call to call, and a failure closes it."""
    name = "one key, dropout"
    worlds(2).run(trained_or_not, name, False)
    with pytest.raises(RankError, match="it fails"):
        worlds(2).run(trained_or_not, name, True)
    found = differences(worlds(2).run(trained_or_not, name, False), plain(name))
    assert max(found.values()) < 1e-10, found


def shares(name):
    from lib.parallel.tensor import tensor_parallel

    model = tensor_parallel(models.gpt(name))
    return {n: tuple(p.shape) for n, p in model.named_parameters()}, str(model)


def test_each_rank_has_its_share_of_the_matrices(worlds):
    for shapes, _ in worlds(4).run(shares, "plain"):
        assert shapes["blocks.0.tokens.weight"] == shapes["blocks.3.linear.weight"] == (12, 24)
        assert shapes["blocks.1.attention.qkv.weight"] == (18, 24)
        assert shapes["blocks.1.attention.proj.weight"] == (24, 6)
        assert shapes["blocks.1.attention.proj.bias"] == (24,)
        assert shapes["blocks.1.mlp.up.weight"] == (10, 24)
        assert shapes["blocks.1.mlp.up.bias"] == (10,)
        assert shapes["blocks.1.mlp.down.weight"] == (24, 10)


def test_padding_is_said(worlds):
    shapes, text = worlds(4).run(shares, "padded")[0]
    assert shapes["blocks.0.tokens.weight"] == (13, 24)
    assert "13 of 49 tokens, padded by 3" in text


def test_ranks_share_the_rows_of_a_key(worlds):
    shapes, _ = worlds(4).run(shares, "two keys")[0]
    assert shapes["blocks.1.attention.qkv.weight"] == (6 + 2 * 6, 24)


def test_tied_weights_stay_tied(worlds):
    shapes, _ = worlds(2).run(shares, "tied")[0]
    assert "blocks.3.linear.weight" not in shapes
    assert torch.tensor(shapes["blocks.0.tokens.weight"]).tolist() == [24, 24]
