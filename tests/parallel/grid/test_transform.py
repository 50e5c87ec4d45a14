"""Spread equals whole for a GPT on grids of ranks: outputs, losses, gradients and weights."""

import pytest
import torch

from lib.parallel.grid import (
    GridLayerNorm,
    full_state_dict,
    grid_cross_entropy,
    grid_parallel,
    load_full_state_dict,
)
from lib.predict.tensor.grids import RankGrid
from lib.ranks.mesh import mesh
from lib.single import GPT, MLP
from tests.parallel.grid.steps import (
    GRIDS,
    HARD,
    ROTARY,
    SHAPE,
    TIED,
    differences,
    far,
    on_grid,
    plain,
)

CASES = [
    (4, SHAPE, {"overlap": True}),
    (4, TIED, {"overlap": False}),
    (4, ROTARY, {}),
    (8, ROTARY, {}),
    (8, TIED, {}),
    (9, TIED, {}),
]


@pytest.mark.parametrize(("ranks", "shape", "options"), CASES)
def test_spread_equals_whole(worlds, ranks, shape, options):
    truth = plain(shape)
    for grid in GRIDS[ranks]:
        more = options if grid.kind != "3d" else {"keep_gathered": shape.tied}
        found = differences(worlds(ranks).run(on_grid, shape, grid, more), truth)
        worst = max(found, key=found.get)
        assert found[worst] < 1e-12, f"{grid}: {worst} is off by {found[worst]}"


@pytest.mark.parametrize("what", HARD)
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_hard_model_equals_the_whole_one(worlds, ranks, what):
    """No biases, frozen weights, or a part with a buffer that no forward uses, whole on each."""
    truth = plain(SHAPE, what=what)
    nothing = [name for name, gradient in truth["gradients"].items() if gradient is None]
    assert len(nothing) == {"no bias": 0, "frozen": 6, "unused": 2}[what]
    for grid in GRIDS[ranks]:
        found = differences(worlds(ranks).run(on_grid, SHAPE, grid, {}, what=what), truth)
        worst = max(found, key=found.get)
        assert found[worst] < 1e-12, f"{grid}: {worst} is off by {found[worst]}"


def outside(grid, what):
    """What is said of a token or a target that the vocabulary of 50 does not have."""
    here = mesh(**grid.axes)
    model, tokens = grid_parallel(GPT(SHAPE), here, grid.kind), torch.zeros(8, 6, dtype=torch.long)
    targets = tokens.clone()
    (targets if what == "target" else tokens)[3, 1] = -1 if what == "below" else 50
    try:
        grid_cross_entropy(model(tokens), targets, here, grid.kind, vocabulary=50)
    except IndexError as error:
        return str(error)


@pytest.mark.parametrize("ranks", [4, 8])
def test_tokens_outside_the_vocabulary_are_refused(worlds, ranks):
    """On no rank would such a token be found, so it would be zeros; 50 is padding on a cube."""
    words = {
        "above": "Tokens from 0 to 50 were given, but the vocabulary has tokens 0 to 49.",
        "below": "Tokens from -1 to 0 were given, but the vocabulary has tokens 0 to 49.",
        "target": "A target is outside the vocabulary of 50 tokens. Give targets from 0 to 49, or "
        "the ignore_index.",
    }
    for grid in GRIDS[ranks]:
        for what, sentence in words.items():
            assert worlds(ranks).run(outside, grid, what) == [sentence] * ranks


def in_low_precision(grid):
    """How far norms in 16 bits are from their float64 truth, of values far from 0."""
    here, kind = mesh(**grid.axes), torch.bfloat16
    torch.manual_seed(0)
    x, slope = (torch.randn(8, 64) for _ in range(2))
    full, rows = torch.nn.LayerNorm(64), here["row"]
    tile = lambda t: t.chunk(2)[rows.rank].chunk(2, 1)[here["column"].rank].contiguous()
    x = (x + 30).to(kind)
    whole = x.double().requires_grad_()
    expected = full.double()(whole)
    expected.backward(slope.to(kind).double())
    own = tile(x).requires_grad_()
    y = GridLayerNorm(full.to(kind), here, grid.kind)(own)
    y.backward(tile(slope.to(kind)))
    assert y.dtype == own.grad.dtype == kind
    return far(y.detach(), tile(expected.detach())), far(own.grad, tile(whole.grad))


def test_the_statistics_of_a_norm_in_16_bits_are_computed_in_32(worlds):
    for apart in worlds(4).run(in_low_precision, GRIDS[4][0]):
        assert max(apart) < 4e-3, apart


def test_norms_whose_gradients_are_not_summed_are_seen(worlds):
    """The outputs of the first step are right, and so are all gradients but those of the norms."""
    found = differences(
        worlds(4).run(on_grid, SHAPE, RankGrid("2d", 2), {}, steps=1, norms_alone=True),
        plain(SHAPE, steps=1),
    )
    off = {name for name, far in found.items() if far > 1e-12}
    norms = {name for name in found if "norm" in name}
    assert off == norms and min(found[name] for name in norms if "gradients" in name) > 0.1


def loaded(state):
    """Load a plain model's weights into grids of other weights; whether all come back."""
    here, same = mesh(row=2, column=2), []
    for shape in (SHAPE, TIED):
        model = grid_parallel(GPT(shape, seed=1), here, "2d")
        if shape is TIED:
            with pytest.raises(ValueError, match="positions.weight is only in the model, and 29"):
                load_full_state_dict(model, {})
            continue
        load_full_state_dict(model, state)
        for name, shape_of in (("blocks.3.linear.weight", [51, 36]), ("blocks.3.norm.bias", [1])):
            with pytest.raises(ValueError, match=rf"{name} of the state dict has the shape \["):
                other = {one: torch.zeros_like(value) for one, value in state.items()}
                load_full_state_dict(model, other | {name: torch.zeros(shape_of)})
        back = full_state_dict(model)
        same += [torch.equal(back[name], value) for name, value in state.items()]
        same.append(back.keys() == state.keys())
    with pytest.raises(TypeError, match="A grid takes the plain GPT of lib.single, not a MLP."):
        grid_parallel(MLP(), here, "2d")
    with pytest.raises(ValueError, match="The batch has 7 samples; the 2 ranks along row cannot"):
        model(torch.zeros(7, 6, dtype=torch.long))
    return same


def test_weights_are_loaded_and_what_is_no_gpt_is_refused(worlds):
    for same in worlds(4).run(loaded, GPT(SHAPE).state_dict()):
        assert all(same) and len(same) == 1 + len(GPT(SHAPE).state_dict())
