"""Linear layers on grids: they equal the whole layer, refuse what cannot be cut, and bite."""

import pytest
import torch
from torch import nn

from lib.parallel.grid import Linear2D, Linear3D, Linear25D, full_gradients
from lib.predict.tensor.grids import INSIDE, STREAM, RankGrid
from lib.ranks import RankError
from lib.ranks.mesh import mesh
from tests.parallel.grid.steps import GRIDS, far

SIZES = (24, 12, 36)  # rows, inputs, outputs: 2, 3 and 4 divide all of them
LAYERS = {"2d": Linear2D, "2.5d": Linear25D, "3d": Linear3D}


def tile_of(full, here, side):
    rows, columns = here[side.rows], here[side.columns]
    return full.chunk(rows.size)[rows.rank].chunk(columns.size, -1)[columns.rank].contiguous()


def compare(grid, back, options):
    """Run a layer on a grid and whole; give the relative distances of all results."""
    here, sides = mesh(**grid.axes), [STREAM[grid.kind], INSIDE[grid.kind]]
    torch.manual_seed(0)
    rows, inputs, outputs = SIZES
    bias = options.pop("bias", True)
    full = nn.Linear(inputs, outputs, bias, dtype=torch.float64)
    x, slope = torch.randn(rows, inputs).double(), torch.randn(rows, outputs).double()
    if grid.kind == "3d" and back:
        sides, options = sides[::-1], options | {"features": "y"}
    layer = LAYERS[grid.kind](full, here, **options)
    tile = tile_of(x, here, sides[0]).requires_grad_()
    y = layer(tile)
    y.backward(tile_of(slope, here, sides[1]))
    x.requires_grad_()
    expected = full(x)
    expected.backward(slope)
    found = {
        "y": far(y.detach(), tile_of(expected.detach(), here, sides[1])),
        "dx": far(tile.grad, tile_of(x.grad, here, sides[0])),
    }
    gradients = full_gradients(nn.ModuleDict({"layer": layer}))
    assert len(gradients) == 1 + bias
    for name, parameter in full.named_parameters():
        found[name] = far(gradients[f"layer.{name}"], parameter.grad)
    return found


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_layer_equals_the_whole_one(worlds, ranks):
    cases = [(grid, False, {"bias": False}) for grid in GRIDS[ranks]]
    cases += [(grid, True, {}) for grid in GRIDS[ranks]]
    cases += [(g, False, {"overlap": False}) for g in GRIDS[ranks] if g.kind != "3d"]
    cases += [(g, True, {"keep_gathered": True}) for g in GRIDS[ranks] if g.kind == "3d"]
    for case in cases:
        for found in worlds(ranks).run(compare, *case):
            assert max(found.values()) < 1e-13, (case, found)


def wrong(what):
    """Compare after something of SUMMA has been done wrongly, on every rank."""
    from lib.parallel.grid import summa

    original = summa._broadcast, summa.dist.reduce
    if what == "wrong row":  # the ranks of the next row send, and believe to be the right ones

        def broadcast(sources, step):
            return original[0](sources, (step + 1) % sources[0][1].size if step else 0)

        summa._broadcast = broadcast
    try:
        return compare(RankGrid("2d", 2), False, {})
    finally:
        summa._broadcast = original[0]


def test_a_tile_that_is_sent_to_the_wrong_row_is_seen(worlds):
    found = worlds(4).run(wrong, "wrong row")
    for rank in found:
        assert min(rank["y"], rank["weight"]) > 0.1 and rank["bias"] < 1e-13
    assert max(rank["dx"] for rank in found) > 0.1
    assert max(max(rank.values()) for rank in worlds(4).run(wrong, "nothing")) < 1e-13


def refused(grid, case):
    layer, here = LAYERS[grid.kind], mesh(**grid.axes)
    with pytest.raises(ValueError) as caught:
        if case == "inputs":
            layer(nn.Linear(7, 8), here)
        elif case == "mesh":
            LAYERS["3d" if grid.kind == "2d" else "2d"](nn.Linear(8, 8), here)
        elif case == "order":
            layer(nn.Linear(8, 8), mesh(column=2, row=2))
        elif case == "sides":
            layer(nn.Linear(8, 8), mesh(row=4, column=1))
        else:
            Linear3D(nn.Linear(8, 8), here, features="x")
    return str(caught.value)


def test_what_cannot_be_cut_is_refused_in_words(worlds):
    square, cube = RankGrid("2d", 2), RankGrid("3d", 2)
    words = {
        "inputs": "Dim 0 has 7 entries; the 2 ranks along the axis row cannot share them equally.",
        "mesh": "A 3d grid needs the axes x, y, z in this order, and this mesh has row, column. "
        "Make it with mesh(x=2, y=2, z=2).",
        "order": "A 2d grid needs the axes row, column in this order, and this mesh has column, "
        "row. Make it with mesh(row=2, column=2).",
        "sides": "This mesh is row=4 × column=1, but the axes row, column of a 2d grid must be "
        "equally long. Choose equal sizes for them.",
    }
    for case, sentence in words.items():
        assert worlds(4).run(refused, square, case) == [sentence] * 4
    (said, *_) = worlds(8).run(refused, cube, "features")
    assert said == "The features of x are split along 'y' or 'z', not 'x'."
    with pytest.raises(RankError, match="A mesh of row=2 × column=2 has 4 ranks"):
        worlds(8).run(refused, square, "inputs")
