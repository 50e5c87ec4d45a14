"""Spread equals whole for a GPT on grids of ranks: outputs, losses, gradients and weights."""

import pytest
import torch

from lib.parallel.grid import full_state_dict, grid_parallel, load_full_state_dict
from lib.predict.tensor.grids import RankGrid
from lib.ranks.mesh import mesh
from lib.single import GPT, MLP
from tests.parallel.grid.steps import GRIDS, ROTARY, SHAPE, TIED, differences, on_grid, plain

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
