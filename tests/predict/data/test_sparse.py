"""Predicted bytes of a sparse gradient, by hand, and where they are more than a dense one's."""

import pytest

from lib.predict.data import sparse
from lib.predict.data.compression import Call, plain, sent


def test_by_hand():
    """Three ranks with 2, 5 and 0 rows of 10 float32: all send five rows of 44 bytes."""
    assert sparse.gathered_rows([2, 5, 0], 10) == [
        Call("all_gather", 3 * 8), Call("all_gather", 3 * 5 * 44)]  # fmt: skip
    assert sparse.gathered_rows([2, 5], 10, itemsize=2)[1] == Call("all_gather", 2 * 5 * 24)
    assert sparse.gathered_rows([0, 0], 10) == [Call("all_gather", 2 * 8)]


@pytest.mark.parametrize("count", [10, 100, 900])
def test_it_pays_below_a_number_of_ranks(count):
    rows, width = 1000, 16
    limit = sparse.pays_below(rows, count, width)
    assert limit == pytest.approx(2 * rows / count, rel=0.1)

    def sparser(ranks):
        ours = sent(sparse.gathered_rows([count] * ranks, width), ranks)
        return ours < sent(plain([(rows, width)]), ranks)

    below = int(limit)
    if below >= 2:
        assert sparser(below)
    assert not sparser(below + 1)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="The rows of a rank must be a whole number"):
        sparse.gathered_rows([-1], 4)
    with pytest.raises(ValueError, match="The width of a table must be a whole number"):
        sparse.gathered_rows([1], 0)
