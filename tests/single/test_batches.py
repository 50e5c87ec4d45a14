"""Batches: the same on every run, every sample once an epoch, shares that make up the whole."""

import collections

import pytest
import torch

from lib.single import Batches, share
from lib.single.batches import COURSE

TEXT = "".join(map(chr, range(32, 127))) * 3


def test_targets_are_the_next_byte_of_the_text():
    batches = Batches(4, 10, text=TEXT)
    tokens, targets = batches[3]
    assert tokens.shape == targets.shape == (4, 10) and tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for row, place in zip(tokens, batches.sample_numbers(3)):
        begin = int(place) * 10
        assert bytes(row.tolist()).decode() == TEXT[begin : begin + 10]
    ends = [TEXT[int(place) * 10 + 10] for place in batches.sample_numbers(3)]
    assert [chr(t) for t in targets[:, -1]] == ends


def test_an_epoch_takes_every_sample_once_and_the_next_in_another_order():
    batches = Batches(4, 10, text=TEXT)
    assert batches.epoch == 7 and len(batches.samples) == 28
    epochs = [[batches.sample_numbers(7 * e + n).tolist() for n in range(7)] for e in range(2)]
    for epoch in epochs:
        assert collections.Counter(sum(epoch, [])) == dict.fromkeys(range(28), 1)
    assert epochs[0] != epochs[1]
    again, other = Batches(4, 10, text=TEXT), Batches(4, 10, text=TEXT, seed=1)
    assert torch.equal(again[5][0], batches[5][0]) and not torch.equal(other[5][0], batches[5][0])


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_shares_are_disjoint_and_make_up_the_batch(parts):
    batches = Batches(8, 10, text=TEXT)
    places = [share(batches.sample_numbers(2), part, parts).tolist() for part in range(parts)]
    assert len(set(sum(places, []))) == 8 and sum(places, []) == batches.sample_numbers(2).tolist()
    tokens = [share(batches[2], part, parts)[0] for part in range(parts)]
    assert torch.equal(torch.cat(tokens), batches[2][0])


def test_shares_reach_into_what_holds_tensors():
    pair = collections.namedtuple("Pair", "a b")
    x = torch.arange(6)
    part = share({"list": [x, x[:2]], "pair": pair(x, "name"), "n": 3}, 1, 2)
    assert part["list"][0].tolist() == [3, 4, 5] and part["list"][1].tolist() == [1]
    assert part["pair"].a.tolist() == [3, 4, 5] and part["pair"].b == "name" and part["n"] == 3


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(
        ValueError, match="Dim 0 has 7 entries; 2 ranks or devices cannot share them equally"
    ):
        share(torch.ones(7, 2), 0, 2)
    with pytest.raises(ValueError, match="A batch of a single number"):
        share([torch.tensor(1.0)], 0, 2)
    with pytest.raises(ValueError, match="no part 2 of 2"):
        share(torch.ones(4), 2, 2)
    with pytest.raises(ValueError, match="285 bytes make 4 samples of 64, .* batch of 5"):
        Batches(5, 64, text=TEXT)
    with pytest.raises(ValueError, match="do not fill"):
        Batches(1, 64, text="short")
    with pytest.raises(IndexError, match="There is no batch -1"):
        Batches(4, 10, text=TEXT)[-1]


def test_the_course_is_the_text():
    assert "One Model" in COURSE.read_text()
    assert Batches(16, 64).epoch > 50
