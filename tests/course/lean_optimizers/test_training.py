"""The small GPT that each optimizer trains: the same losses in each run, and what they show."""

from functools import partial

import pytest
import torch

from lib.course.lean_optimizers import training
from lib.predict.optimizers import state_bytes

NAMES = tuple(training.MAKERS)
FEW = 12


@pytest.mark.parametrize("name", NAMES)
def test_a_run_repeats_to_the_bit_and_learns(name):
    losses = training.trained(name, 0, steps=FEW)
    assert losses == training.trained(name, 0, steps=FEW) and len(losses) == FEW
    assert losses != training.trained(name, 1, steps=FEW)
    assert losses[-1] < losses[0] - 0.3


def test_runs_shared_out_over_ranks_are_those_of_one(worlds):
    found = training.trainings(
        worlds(2, device="cpu"), partial(training.trained, steps=FEW), ["adamw", "sm3"], (0, 1)
    )
    assert found == {
        name: {seed: training.trained(name, seed, steps=FEW) for seed in (0, 1)}
        for name in ("adamw", "sm3")
    }


def test_what_each_optimizer_ends_with(worlds):
    """Muon is ahead of AdamW here, 8-bit Adam beside it, Adafactor and SM3 behind: one seed."""
    runs = training.trainings(worlds(2, device="cpu"), training.trained, seeds=(0,))
    assert set(runs) == set(training.LEAN)
    end = {name: training.final(seeds[0]) for name, seeds in runs.items()}
    assert end["muon"] < end["adamw"] - 0.1 and abs(end["adam8bit"] - end["adamw"]) < 0.03
    assert end["adamw"] + 0.05 < end["adafactor"] < end["sm3"] - 0.03
    assert training.ends(runs) == {name: [mean] for name, mean in end.items()}
    lines = training.compared(runs).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(training.LEAN)
    assert [int(line.split()[1].replace(",", "")) for line in lines[1:]] == [
        state_bytes(name, training.SHAPE) for name in training.LEAN
    ]


def test_an_optimizer_of_the_readers_own():
    make = lambda model, rate: [torch.optim.SGD(model.parameters(), lr=rate)]
    assert training.trained(make, 0, 0.2, FEW) == training.trained("sgd", 0, 0.2, FEW)
    with pytest.raises(ValueError, match="An optimizer of your own needs a rate"):
        training.trained(make)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="No optimizer here is called 'lion'. Choose one of sgd, "):
        training.trained("lion")


def test_rates_are_tried_over_all_seeds(worlds):
    found = training.rates_tried(worlds(2, device="cpu"), "sgd", [0.1, 0.2], (0, 1), FEW)
    ends = {
        rate: [training.final(training.trained("sgd", seed, rate, FEW)) for seed in (0, 1)]
        for rate in (0.1, 0.2)
    }
    assert found == {rate: sum(pair) / 2 for rate, pair in ends.items()}
