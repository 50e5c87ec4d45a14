"""Shards of a parameter, put together, are the parameter; and who has what twice."""

import pytest
import torch

from lib.parallel.tensor.placements import Replicated, Split, SplitGroups

WHOLE = torch.arange(72 * 10.0).view(72, 10)
PLACES = [
    Replicated(3),
    Split(4, 0, 72), Split(2, 1, 10), Split(5, 0, 72, padded=True), Split(7, 1, 10, padded=True),
    SplitGroups(1, 4, 4, 3), SplitGroups(2, 4, 4, 3), SplitGroups(4, 4, 4, 3),
    SplitGroups(8, 4, 4, 3), SplitGroups(16, 4, 4, 3),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_shards_make_up_the_whole(place):
    shards = [place.shard(WHOLE, rank) for rank in range(place.ranks)]
    assert len({shard.shape for shard in shards}) == 1
    assert torch.equal(place.whole(shards), WHOLE)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_each_number_counts_once(place):
    """Who counts a shared part is the first of those that share it."""
    counted = []
    for rank in range(place.ranks):
        shard = place.shard(WHOLE, rank)
        assert torch.equal(torch.cat([place.own(shard), place.shared(shard)]), shard)
        first = place.shard(WHOLE, rank // place.sharers * place.sharers)
        assert torch.equal(place.shared(shard), place.shared(first))
        counted.append(shard if rank % place.sharers == 0 else place.own(shard))
    numbers = torch.cat([part.flatten() for part in counted])
    numbers = numbers[numbers > 0]  # 0 is padding, and one number of the whole
    assert sorted(numbers.tolist()) == WHOLE.flatten()[1:].tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Split(4, 1, 10), "Dim 0 has 10 entries; 4 ranks cannot share them equally."),
        (lambda: SplitGroups(3, 4, 4, 3), "An attention has 16 heads; 3 ranks cannot share"),
        (lambda: SplitGroups(2, 3, 2, 3), "An attention has 3 heads of keys; 2 ranks cannot"),
        (lambda: SplitGroups(3, 2, 3, 3), "3 ranks split an attention; 2 heads of keys cannot"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(make, words):
    with pytest.raises(ValueError, match=words):
        make()
