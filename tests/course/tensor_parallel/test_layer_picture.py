"""The picture of a split layer: its rows are what the library's layer does."""

import pytest

from lib import World
from lib.course.tensor_parallel import layer_picture as picture
from lib.course.tensor_parallel import lessons
from lib.parallel.tensor import tensor_parallel
from lib.predict.shape import GPTShape


def test_a_layer_has_the_all_reduces_that_are_drawn():
    """Of a second layer a recorded step has four more: two of them in backward."""
    counts = []
    with World(2, device="cpu") as world:
        for layers in (1, 2):
            shape = GPTShape(width=32, heads=4, layers=layers, sequence=16)
            step = lessons.StepOf(world, shape, tensor_parallel)
            counts.append(step.all_reduces(2 * 16 * 32 * 8))
    drawn = [picture.collectives(direction) for direction in ("forward", "backward")]
    assert drawn == [2, 2] and counts[1] - counts[0] == sum(drawn)


def test_a_sum_follows_parts_of_it_and_leaves_a_whole_tensor():
    kinds = [kind for kind, _ in picture.ROWS]
    for n, kind in enumerate(kinds):
        around = kinds[n - 1], kinds[(n + 1) % len(kinds)]
        if kind == "forward":
            assert around == ("partial", "whole")
        elif kind == "backward":
            assert around == ("whole", "split")


@pytest.mark.parametrize("kind, hatched", [("whole", False), ("split", False), ("partial", True)])
def test_a_cell_is_grey_coloured_or_hatched(kind, hatched):
    cells = [picture.cell(kind, rank, 0) for rank in range(picture.RANKS)]
    assert [cell.hatch for cell in cells] == [hatched] * 4
    assert len({cell.fill for cell in cells}) == (1 if kind == "whole" else 4)
