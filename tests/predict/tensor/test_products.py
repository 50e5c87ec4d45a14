"""Products of split matrices, carried out tile by tile, give the whole product."""

from itertools import product

import numpy as np
import pytest

from lib.predict.collectives.formulas import collective
from lib.predict.tensor.products import KINDS, product_steps, split_steps
from lib.predict.tensor.tiles import TileMove
from tests.every import every

M, K, N = 24, 48, 36
LINE, SQUARE = {"tp": 4}, {"row": 2, "column": 2}
GRIDS = [("column", 4), ("row", 4), ("column", 1), ("2d", 4), ("2d", 9), ("2.5d", 8), ("2.5d", 18),
         ("3d", 8)]  # fmt: skip


def pairs(mesh):
    """Every split of a matrix that a mesh allows."""
    return [
        (a, b) for a, b in product((None, *mesh), repeat=2) if a != b or a is None
    ]  # one axis cannot split both dims


SPLITS = [(mesh, a, b) for mesh in (LINE, SQUARE) for a in pairs(mesh) for b in pairs(mesh)]


def tiles_of(plan, matrix, full):
    """A whole matrix as its tiles."""
    rows, columns = {"A": "MK", "B": "KN", "C": "MN"}[matrix]
    cut = [np.split(row, plan.cuts[columns], 1) for row in np.split(full, plan.cuts[rows])]
    return {(matrix, i, j): tile for i, row in enumerate(cut) for j, tile in enumerate(row)}


def carried_out(plan):
    """What each rank holds after all steps, as numbers; the whole C; and the steps' own moves."""
    random = np.random.default_rng(0)
    sizes = plan.sizes
    a, b = (
        random.standard_normal((sizes["M"], sizes["K"])),
        random.standard_normal((sizes["K"], sizes["N"])),
    )
    tiles = tiles_of(plan, "A", a) | tiles_of(plan, "B", b)
    held = [
        {t: tiles[t] for name in "AB" for t in plan.tiles(name, plan.start[name], rank)}
        for rank in plan.mesh.ranks
    ]
    for step in plan.steps:
        before = [dict(own) for own in held]
        for tile, source, destination in step.moves:
            old = held[destination].get(tile, 0) if tile[0] == "C" else 0
            held[destination][tile] = before[source][tile] + old
        for rank, i, k, j in step.products:
            more = held[rank]["A", i, k] @ held[rank]["B", k, j]
            held[rank]["C", i, j] = held[rank].get(("C", i, j), 0) + more
        for rank, tile in step.freed:
            del held[rank][tile]
    return held, tiles_of(plan, "C", a @ b)


def is_whole_product(plan) -> bool:
    """Whether every rank ends with its tiles of C, and these are the product's."""
    held, whole = carried_out(plan)
    own = [{tile for tile in tiles if tile[0] == "C"} for tiles in held]
    wanted = [plan.tiles("C", plan.splits["C"], rank) for rank in plan.mesh.ranks]
    everywhere = set().union(*own) == set(whole)
    return own == wanted and everywhere and every(
        np.allclose(tiles[tile], whole[tile])
        for rank, tiles in enumerate(held) for tile in own[rank]
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks"), GRIDS)
def test_every_kind_gives_the_whole_product(kind, ranks):
    plan = product_steps(kind, M, K, N, ranks)
    assert is_whole_product(plan) and plan.work() == pytest.approx(1 / ranks)


@pytest.mark.parametrize(("mesh", "a", "b"), SPLITS)
def test_every_pair_of_splits_gives_the_whole_product(mesh, a, b):
    assert is_whole_product(split_steps(a, b, mesh, M, K, N))


@pytest.mark.parametrize(("kind", "ranks"), [("row", 4), ("2d", 4), ("2.5d", 8), ("3d", 8)])
def test_a_move_that_is_left_out_is_missed(kind, ranks):
    """The bite: without its first move, or with its last one astray, nothing is right."""
    for change in (lambda moves: moves[1:], lambda moves: (*moves[:-1], wrong_way(moves[-1]))):
        plan = product_steps(kind, M, K, N, ranks)
        at = next(n for n, step in enumerate(plan.steps) if step.moves)
        plan.steps[at] = plan.steps[at]._replace(moves=change(plan.steps[at].moves))
        try:
            assert not is_whole_product(plan)
        except KeyError:  # a tile was needed where it had not come
            pass


def wrong_way(move: TileMove) -> TileMove:
    return move._replace(destination=move.source)


# --- bytes


@pytest.mark.parametrize(("mesh", "a", "b"), SPLITS)
def test_a_collective_sends_what_a_ring_sends(mesh, a, b):
    plan = split_steps(a, b, mesh, M, K, N)
    for step in plan.steps:
        if not step.axis:
            assert plan.sent(step) == 0
            continue
        n = mesh[step.axis]
        state = [*plan.states()][plan.steps.index(step) + (step.op == "all_gather")]
        buffer = sum(plan.numel(tile[0]) for tile in state[0] if tile[0] == step.matrix)
        assert plan.sent(step) == len(plan.mesh.ranks) * collective(step.op, n, buffer).bytes


def test_summa_sends_each_tile_to_the_others_of_its_row_or_column():
    q = 3
    plan = product_steps("2d", M, K, N, q * q)
    assert sum(map(plan.sent, plan.steps)) == (q - 1) * (M * K + K * N)
    assert [step.op for step in plan.steps] == ["broadcast", "broadcast", "multiply"] * q
    flat = product_steps("2.5d", M, K, N, 8)  # each of the two layers moves all of B
    assert sum(map(flat.sent, flat.steps)) == M * K + 2 * K * N


def test_a_3d_product_moves_every_matrix_once():
    plan = product_steps("3d", M, K, N, 8)
    ops = [(step.op, step.axis, step.matrix) for step in plan.steps if step.axis]
    assert ops == [("all_gather", "y", "A"), ("all_gather", "x", "B"), ("reduce_scatter", "z", "C")]
    assert [plan.sent(step) for step in plan.steps] == [M * K, K * N, 0, M * N]


def test_summa_never_holds_more_than_its_own_and_one_pair_of_tiles():
    plan = product_steps("2d", M, K, N, 4)
    most = max(len(tiles) for state in plan.states() for tiles in state)
    assert most == 5  # A, B and C of its own, and a tile of A and of B that came


# --- what is needed, and why


def needs(a, b, mesh=LINE):
    """The steps of a choice in short, and the sharding line of its result."""
    plan = split_steps(a, b, mesh, M, K, N)
    steps = [f"{s.op} {s.matrix}" for s in plan.steps if s.op != "multiply"]
    return steps, plan.splits["C"].line("C")


@pytest.mark.parametrize(
    ("a", "b", "steps", "line"),
    [
        ((None, None), (None, None), [], "C [M, N]"),
        ((None, None), (None, "tp"), [], "C [M, N/tp]"),
        (("tp", None), (None, None), [], "C [M/tp, N]"),
        ((None, "tp"), ("tp", None), ["all_reduce C"], "C [M, N]"),
        ((None, None), ("tp", None), ["slice A", "all_reduce C"], "C [M, N]"),
        ((None, "tp"), (None, None), ["slice B", "all_reduce C"], "C [M, N]"),
        (("tp", None), ("tp", None), ["all_gather B"], "C [M/tp, N]"),
        ((None, "tp"), (None, "tp"), ["all_gather A"], "C [M, N/tp]"),
        (("tp", None), (None, "tp"), ["all_gather A"], "C [M, N/tp]"),
    ],
)
def test_what_each_choice_on_a_line_needs(a, b, steps, line):
    assert needs(a, b) == (steps, line)


def test_on_a_square_splits_along_two_axes_need_two_gathers_or_none():
    both = ("row", "column")
    assert needs(both, both, SQUARE) == (["all_gather A", "all_gather B"], "C [M/row, N/column]")
    assert needs(("row", None), (None, "column"), SQUARE) == ([], "C [M/row, N/column]")
    found = needs(("row", "column"), ("column", None), SQUARE)
    assert found == (["all_reduce C"], "C [M/row, N]")


def test_where_one_axis_would_split_c_twice_the_smaller_matrix_moves():
    small_b = split_steps(("tp", None), (None, "tp"), LINE, 64, 4, 8)
    assert [step.matrix for step in small_b.steps if step.axis] == ["B"]
    small_a = split_steps(("tp", None), (None, "tp"), LINE, 8, 4, 64)
    assert [step.matrix for step in small_a.steps if step.axis] == ["A"]
    assert "on the diagonal of C" in small_a.reasons[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: product_steps("4d", 4, 4, 4, 4), "No product is called '4d'. Choose one of"),
        (lambda: product_steps("2d", 4, 4, 4, 8), "8 ranks are no grid for 2d: it needs q·q ranks"),
        (lambda: product_steps("3d", 4, 4, 4, 9), "9 ranks are no grid for 3d: it needs q·q·q"),
        (lambda: product_steps("2.5d", 4, 4, 4, 4), "4 ranks are no grid for 2.5d"),
        (lambda: product_steps("row", 4, 7, 4, 2),
         "Dim 1 of A has 7 entries; 2 ranks along tp cannot share them equally."),
        (lambda: split_steps(("tp", "tp"), (None, None), LINE, M, K, N),
         "Axis tp cannot split both dims of A"),
        (lambda: split_steps(("dp", None), (None, None), LINE, M, K, N),
         "A is to be split along 'dp', and the mesh has only the axes tp."),
        (lambda: product_steps("row", 0, 4, 4, 2), "m must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_in_a_sentence(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert words in str(caught.value)


def test_there_is_a_test_for_every_kind():
    assert {kind for kind, _ in GRIDS} == set(KINDS)
