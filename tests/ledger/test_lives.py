"""Lives of storages: births and deaths read back from memory rows, moves between kinds left out."""

import pytest
import torch

from lib.ledger import Ledger, Row
from lib.ledger.lives import Life, lives
from lib.ranks.memory import Memory
from lib.single.train import train_step


def row(number, kind, alive, note=""):
    return Row(0, "memory", kind, 0.0, 0.0, bytes=alive, number=number, note=note)


def test_births_and_deaths_are_read_and_moves_are_not():
    rows = [
        row(0, "parameters", 8),
        row(1, "other", 4, "mm in forward"),
        row(1, "other", 0),  # becomes an activation ...
        row(1, "activations", 4),
        row(2, "other", 6),
        row(2, "other", 0),  # ... while this one dies
        row(1, "activations", 0),
    ]
    found = lives(rows)
    assert [(one.number, one.nbytes, one.born, one.died) for one in found] == [
        (0, 8, 0, None), (1, 4, 1, 4), (2, 6, 2, 3)
    ]  # fmt: skip
    assert [one.kind for one in found] == ["parameters", "activations", "other"]
    assert found[1].made_by == "mm in forward"


def test_a_storage_that_is_emptied_and_filled_lives_twice():
    rows = [row(0, "parameters", 8), row(0, "parameters", 0), row(0, "parameters", 8)]
    assert [(one.born, one.died) for one in lives(rows)] == [(0, 1), (2, None)]
    smaller = [row(0, "other", 8), row(0, "other", 3), row(1, "other", 5)]
    assert [(one.nbytes, one.born, one.died) for one in lives(smaller)] == [
        (8, 0, 1), (3, 2, None), (2, 3, None)
    ]  # fmt: skip


def test_the_kind_is_the_one_held_longest():
    rows = [row(0, "other", 4), row(1, "other", 5), row(2, "other", 6), row(0, "other", 2)]
    rows += [row(0, "gradients", 4), row(1, "other", 1)]
    assert lives(rows)[0].kind == "other"
    later = rows + [row(n, "other", 1 + n) for n in range(3, 9)]
    assert lives(later)[0].kind == "gradients"


def a_step(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
    with Memory(model, optimizer) as memory:
        for _ in range(2):
            train_step(model, optimizer, batch, loss=lambda y, t: (y - t).square().mean())
    return memory


def bytes_over_time(found):
    """Bytes alive after each event."""
    changes = {one.born: one.nbytes for one in found}
    changes |= {one.died: -one.nbytes for one in found if one.died is not None}
    assert sorted(changes) == list(range(len(changes)))  # one change each, none left out
    alive, total = [], 0
    for event in range(len(changes)):
        total += changes[event]
        alive.append(total)
    return alive


def test_lives_of_a_recorded_step_add_up_to_what_memory_counts():
    memory = a_step("cpu")
    found = lives(memory.rows)
    alive = bytes_over_time(found)
    assert max(alive) == memory.peak and alive[-1] == sum(memory.now.values())
    kept = {kind: sum(one.nbytes for one in found if one.died is None and one.kind == kind)
            for kind in ("parameters", "optimizer")}  # fmt: skip
    assert kept == {kind: memory.now[kind] for kind in kept}


def test_a_model_without_data_lives_as_one_with_data():
    """On the device meta every storage is born and dies as on the CPU, to the byte."""
    real, without = a_step("cpu"), a_step("meta")
    assert without.peak == real.peak > 0 and without.at_peak == real.at_peak
    shape = lambda memory: [(o.nbytes, o.kind, o.born, o.died) for o in lives(memory.rows)]
    assert shape(without) == shape(real)


def test_a_recording_of_ranks_has_the_lives_of_each(worlds):
    ledger = worlds(2).record(_counted)
    for rank, (peak, now) in enumerate(ledger.results):
        alive = bytes_over_time(lives(ledger, rank))
        assert (max(alive), alive[-1]) == (peak, now)
    again = Ledger.from_json(ledger.to_json())
    assert lives(again, 1) == lives(ledger, 1)


def _counted():
    memory = a_step("cpu")
    return memory.peak, sum(memory.now.values())


def test_rows_that_tell_of_no_storages_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="Rank 3 has no rows of memory. Count in the step"):
        lives([row(0, "other", 1)], rank=3)
    with pytest.raises(ValueError, match="do not say which storage changed"):
        lives([row(-1, "activations", 1)])


def test_a_life_prints_what_matters():
    assert repr(Life(0, 8, "other", 0, 1)) == (
        "Life(number=0, nbytes=8, kind='other', born=0, died=1, made_by='')"
    )
