"""Grids on paper: their axes and sizes, what is refused, and what each rank keeps."""

from dataclasses import replace

import pytest

from lib.predict.shape import GPTShape
from lib.predict.tensor.grid_memory import buffers, held, weights
from lib.predict.tensor.grids import INSIDE, KINDS, STREAM, TABLE, RankGrid, check_model

SHAPE = GPTShape(width=48, heads=4, hidden=96, vocabulary=50, layers=2)


def test_a_grid_has_axes_and_ranks():
    assert RankGrid("2d", 3).axes == {"row": 3, "column": 3} and RankGrid("2d", 3).ranks == 9
    deep = RankGrid("2.5d", 4, 2)
    assert deep.axes == {"depth": 2, "row": 4, "column": 4} and deep.ranks == 32
    assert (deep.row_ranks, deep.weight_ranks) == (8, 16)
    cube = RankGrid("3d", 2)
    assert cube.axes == {"x": 2, "y": 2, "z": 2} and (cube.row_ranks, cube.weight_ranks) == (4, 8)
    assert [str(grid) for grid in (RankGrid("2d", 3), deep, cube)] == [
        "2D, 3×3",
        "2.5D, 2×4×4",
        "3D, 2×2×2",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_has_another_tile_of_activations(kind):
    """Rows and columns are split by different axes, which together are all axes of the grid."""
    for side in (STREAM[kind], INSIDE[kind]):
        assert {*side.rows, side.columns} == set(KINDS[kind])
        assert side.columns not in side.rows
    assert not {*TABLE[kind]} & {STREAM[kind].columns}


def test_what_no_grid_is():
    with pytest.raises(ValueError, match="No grid is called '4d'. Choose one of 2d, 2.5d, 3d."):
        RankGrid("4d", 2)
    with pytest.raises(ValueError, match="Only a 2.5D grid has a depth. Leave out depth=2."):
        RankGrid("2d", 2, 2)
    with pytest.raises(ValueError, match="The side of a grid must be a whole number"):
        RankGrid("2d", 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"width": 60, "heads": 5, "kv_heads": 5},
            "The model has 5 heads; the 2 ranks along",
        ),
        ({"kv_heads": 1}, "The model has 1 heads of keys and values; the 2 ranks along the axis"),
        ({"hidden": 97}, "The hidden layers have 97 entries; 2 ranks cannot share them equally."),
        ({"dropout": 0.1}, "This model has a dropout of 0.1, which a grid does not carry out"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_by_name(options, words):
    check_model(SHAPE, RankGrid("2d", 2))
    with pytest.raises(ValueError, match=words):
        check_model(replace(SHAPE, **options), RankGrid("2d", 2))


def test_a_cube_needs_widths_that_q_squared_divides():
    check_model(SHAPE, RankGrid("3d", 4))
    shape = replace(SHAPE, width=24, heads=4, hidden=72)
    with pytest.raises(ValueError, match="The model has a width of 24 entries; 16 ranks cannot"):
        check_model(shape, RankGrid("3d", 4))


def test_a_vocabulary_is_padded():
    assert RankGrid("2d", 2).padded(50) == 50 and RankGrid("2d", 3).padded(50) == 51
    assert RankGrid("3d", 2).padded(50) == 52 and RankGrid("2.5d", 2, 2).padded(51) == 52


def test_weights_are_shared_by_the_ranks_of_a_square_or_cube():
    """Matrices by all of them, vectors and positions by q; those of a depth are copies."""
    d, f, s, v = SHAPE.width, SHAPE.hidden, SHAPE.sequence, SHAPE.vocabulary
    matrices = 2 * (4 * d * d + 2 * d * f)
    vectors = s * d + 2 * (4 * d + 3 * d + 2 * d + f) + 2 * d
    for grid, padded in (
        (RankGrid("2d", 2), v),
        (RankGrid("2.5d", 2, 2), v),
        (RankGrid("3d", 2), 52),
    ):
        shared = (matrices + 2 * padded * d) // grid.weight_ranks
        assert weights(SHAPE, grid) == shared + vectors // grid.side
    assert weights(SHAPE, RankGrid("2.5d", 2, 2)) == weights(SHAPE, RankGrid("2d", 2))
    assert weights(SHAPE, RankGrid("2d", 1)) == SHAPE.numel


def test_what_a_rank_holds_and_the_tiles_that_arrive():
    one, four = held(SHAPE, RankGrid("2d", 1), 8), held(SHAPE, RankGrid("2d", 2), 8)
    assert one.parameters == SHAPE.nbytes() and four.parameters == 4 * weights(
        SHAPE, RankGrid("2d", 2)
    )
    assert four.optimizer == 2 * four.parameters + 4 * len(SHAPE.parameters)
    assert 3.5 < one.activations / four.activations < 4  # the places of tokens are not shared by q²
    square, cube = RankGrid("2d", 4), RankGrid("3d", 4)
    tiles = (64 * 32 + 32 * 16) // 16
    assert buffers(square, 64, 32, 16, overlap=False, itemsize=1) == tiles
    assert buffers(square, 64, 32, 16, overlap=True, itemsize=1) == 2 * tiles
    assert buffers(cube, 64, 32, 16, itemsize=1) == tiles
    with pytest.raises(ValueError, match="The batch has 6 samples; 4 ranks cannot share them"):
        held(SHAPE, RankGrid("3d", 2), 6)
