"""Chapter 5's experiment by the wall clock: a layer on a square of ranks beside its prediction."""

from lib.course.tensor_grids import wall_clock
from tests.course.machine import Machine


def test_a_layer_is_timed_beside_its_prediction(worlds):
    """Forward has 4 broadcasts; backward has 4, as many reduces, and an all_reduce of the bias."""
    for overlap in (False, True):
        computing, moving, whole = wall_clock.compared(
            worlds(4), Machine(), 8, 8, 8, overlap, repeats=3
        )
        assert computing == ("computation", 8.0, None) and moving == ("collectives", 130.0, None)
        assert 130.0 < whole[1] <= 138.0 and 0 < whole[2] < 5
