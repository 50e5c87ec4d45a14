"""Optimizer states of ZeRO-1 and ZeRO-2: saved and loaded, on other numbers of ranks too."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as Theirs

from lib.parallel.data import DistributedDataParallel
from lib.parallel.sharded import ShardedDataParallel, ZeroRedundancyOptimizer
from lib.single import share
from tests.every import every
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import ruined, state_of

ADAMW = {"lr": 1e-2, "weight_decay": 0.1}


def batch_of(model, step):
    """12 samples, which 2, 3 and 4 ranks share equally."""
    pairs = zip(model.batch(step), model.batch(step + 100))
    return [torch.cat(pair)[:12] for pair in pairs]


def zero(model, stage):
    """The model under ZeRO-1 or ZeRO-2, in small buffers, and its optimizer."""
    if stage == 1:
        spread = DistributedDataParallel(model, find_unused=True)
        made = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, bucket_bytes=300,
                                       **ADAMW)  # fmt: skip
        return spread, made
    spread = ShardedDataParallel(model, bucket_bytes=300)
    return spread, ZeroRedundancyOptimizer(spread, torch.optim.AdamW, **ADAMW)


def train(model, spread, optimizer, steps, rank=0, ranks=1):
    for n in steps:
        x, y = share(batch_of(model, n), rank, ranks)
        optimizer.zero_grad()
        model.loss(spread(x), y).backward()
        optimizer.step()


def trained(kind, stage, steps, weights=None, shards=None, whole=None):
    """Train for these steps, from what was saved if there is anything; return what is kept then."""
    model = ruined(kind)
    if weights:
        model.load_state_dict(weights)
    spread, optimizer = zero(model, stage)
    if shards:
        optimizer.load_sharded_state_dict(shards)
    if whole:
        optimizer.load_state_dict(whole)
    train(model, spread, optimizer, steps, dist.get_rank(), dist.get_world_size())
    return state_of(model), optimizer.sharded_state_dict(), optimizer.state_dict()


def plain(kind, steps):
    torch.manual_seed(0)
    model = kind().double()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    train(model, model, optimizer, steps)
    return model, optimizer


def close(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", [models.Twice, models.Tied, models.Frozen, models.Unused,
                                  models.Seven])  # fmt: skip
def test_training_goes_on_with_other_numbers_of_ranks(worlds, kind, stage):
    """4 → 2 → 3 ranks, two AdamW steps on each, as one run on one device."""
    weights = shards = None
    for ranks, steps in ((4, [0, 1]), (2, [2, 3]), (3, [4, 5])):
        answers = worlds(ranks).run(trained, kind, stage, steps, weights, shards)
        weights, shards = answers[0][0], [answer[1] for answer in answers]
    model, optimizer = plain(kind, range(6))
    for state, _, whole in answers:
        assert every(close(state[name], value) for name, value in model.state_dict().items())
        same_states(whole, optimizer.state_dict())


def same_states(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    pairs = [(found["state"][n][key], value) for n, state in expected["state"].items()
             for key, value in state.items()]  # fmt: skip
    assert every(close(a, b) for a, b in pairs)


def test_without_the_states_training_goes_on_differently(worlds):
    """The bite: only the weights are carried over."""
    weights = worlds(4).run(trained, models.Twice, 1, [0, 1])[0][0]
    found = worlds(2).run(trained, models.Twice, 1, [2, 3], weights)[0][0]
    expected = plain(models.Twice, range(4))[0].state_dict()
    assert not close(found["blocks.0.weight"], expected["blocks.0.weight"])


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", [models.Seven, models.Recurrent])
def test_the_whole_state_is_the_plain_optimizers(worlds, kind, stage):
    """It is loaded by the plain optimizer, and the plain one's by 3 ranks."""
    whole = worlds(4).run(trained, kind, stage, [])[0][2]
    assert whole["state"] == {}
    weights, _, whole = worlds(4).run(trained, kind, stage, [0, 1])[0]
    model = kind().double()
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    optimizer.load_state_dict(whole)
    train(model, model, optimizer, [2, 3])
    expected, optimizer = plain(kind, range(4))
    assert every(close(model.state_dict()[n], v) for n, v in expected.state_dict().items())
    saved = expected.state_dict(), None, optimizer.state_dict()
    for found, _, _ in worlds(3).run(trained, kind, stage, [4, 5], *saved):
        six = plain(kind, range(6))[0].state_dict()
        assert every(close(found[name], value) for name, value in six.items())


def resharded(kind, stage, shards):
    _, optimizer = zero(ruined(kind), stage)
    optimizer.load_sharded_state_dict(shards)
    kept = [(len(state["exp_avg"]), len(piece)) for flat in optimizer.flats for piece in flat.pieces
            if (state := optimizer.state.get(piece))]  # fmt: skip
    return optimizer.sharded_state_dict(), optimizer.state_dict(), kept


@pytest.mark.parametrize("stage", [1, 2])
def test_shards_of_four_ranks_are_those_of_two_and_of_three(worlds, stage):
    """4 → 2 → 3 → 4, bit for bit, and each rank keeps states as large as its pieces."""
    answers = worlds(4).run(trained, models.Tied, stage, [0, 1])
    state, shards = answers[0][2], [answer[1] for answer in answers]
    first = copy.deepcopy(shards)
    for ranks in (2, 3, 4):
        answers = worlds(ranks).run(resharded, models.Tied, stage, shards)
        shards = [own for own, _, _ in answers]
        for _, whole, kept in answers:
            assert every(torch.equal(value, state["state"][n][key])
                         for n, values in whole["state"].items()
                         for key, value in values.items())  # fmt: skip
            assert whole["param_groups"] == state["param_groups"]
            assert every(states == piece for states, piece in kept)
    pairs = zip(entries(first), entries(shards), strict=True)
    assert every(torch.equal(a["values"], b["values"]) for a, b in pairs)


def entries(shards):
    return [value for one in shards for _, state in sorted(one["optimizer"]["state"].items())
            for value in state.values() if isinstance(value, dict)]  # fmt: skip


class Seldom(torch.nn.Module):
    """The first rank alone uses a weight, and of this only the first half."""

    def __init__(self):
        super().__init__()
        self.always = torch.nn.Parameter(torch.ones(8))
        self.seldom = torch.nn.Parameter(torch.ones(8))

    def forward(self, used: bool):
        return self.always.sum() + (self.seldom[:4].sum() if used else 0)


def seldom(saved=None):
    """Step once, with a bucket for each weight, or load what was saved."""
    spread = ShardedDataParallel(Seldom().double(), bucket_bytes=1)
    optimizer = ZeroRedundancyOptimizer(spread, torch.optim.AdamW, **ADAMW)
    if saved:
        optimizer.load_sharded_state_dict(saved)
    else:
        spread(dist.get_rank() == 0).backward()
        optimizer.step()
    return optimizer.sharded_state_dict(), optimizer.state_dict()["state"]


def test_a_piece_that_was_never_stepped_counts_as_zeros(worlds):
    """Its rank has no state, but a rank with another piece of the same weight has."""
    answers = worlds(2).run(seldom)
    for ranks in (2, 4):
        kept = [len(own["optimizer"]["state"]) for own, _ in answers]
        assert kept == ([2, 1] if ranks == 2 else [2, 2])
        answers = worlds(ranks).run(seldom, [own for own, _ in answers])
        for _, state in answers:
            first_half = torch.arange(8) < 4
            assert close(state[1]["exp_avg"], 0.05 * first_half.double())
            assert state[0]["step"] == state[1]["step"] == 1


def rates(kind):
    """Save after the learning rate was changed, and load into another optimizer."""
    model = ruined(kind)
    _, optimizer = zero(model, 1)
    optimizer.param_groups[0]["lr"] = 0.25
    saved: list = [None] * dist.get_world_size()
    dist.all_gather_object(saved, optimizer.sharded_state_dict())
    _, other = zero(ruined(kind), 1)
    other.load_sharded_state_dict(saved)
    other.step()
    return other.param_groups[0]["lr"], other.inner.param_groups[0]["lr"]


def test_the_options_of_groups_are_loaded(worlds):
    assert worlds(2).run(rates, models.Twice) == [(0.25, 0.25)] * 2


def theirs(kind):
    """The oracle: the same two steps, and the states that PyTorch's class gathers on rank 0."""
    states = []
    for make in (Theirs, ZeroRedundancyOptimizer):
        model = ruined(kind)
        spread = DistributedDataParallel(model)
        optimizer = make(model.parameters(), torch.optim.AdamW, **ADAMW)
        train(model, spread, optimizer, [0, 1], dist.get_rank(), dist.get_world_size())
        if make is Theirs:
            optimizer.consolidate_state_dict()
        asked = make is ZeroRedundancyOptimizer or dist.get_rank() == 0
        states.append(optimizer.state_dict() if asked else None)
    return states


def test_the_whole_state_is_pytorchs_bit_for_bit(worlds):
    expected, found = worlds(2).run(theirs, models.Tied)[0]
    assert expected["state"].keys() == found["state"].keys()
    assert every(torch.equal(found["state"][n][key], value)
                 for n, values in expected["state"].items()
                 for key, value in values.items())  # fmt: skip
    assert found["param_groups"][0]["params"] == expected["param_groups"][0]["params"]


def misfits(kind):
    model = ruined(kind)
    spread, optimizer = zero(model, 1)
    train(model, spread, optimizer, [0], dist.get_rank(), dist.get_world_size())
    shards: list = [None] * dist.get_world_size()
    dist.all_gather_object(shards, optimizer.sharded_state_dict())
    others = [zero(kind().double(), 1)[1] for kind in (models.Perceptron, models.Unused)]
    broken, found = copy.deepcopy(shards), []
    for one in broken:
        for values in one["optimizer"]["state"].values():
            values["exp_avg"]["values"] = torch.zeros(1)
    for made, saved in (
        (optimizer, shards[:1]),
        (optimizer, broken),
        *((o, shards) for o in others),
    ):
        try:
            made.load_sharded_state_dict(saved)
        except ValueError as error:
            found.append(str(error))
    return found


def test_shards_that_do_not_fit_are_refused_on_every_rank(worlds):
    words = ["saved by 2 ranks", "elements of exp_avg of Parameter", "shape [5, 5], but has [9, 6]",
             "saved for 6 parameters in 1 groups, but"]  # fmt: skip
    for refusals in worlds(2).run(misfits, models.Twice):
        for refusal, word in zip(refusals, words, strict=True):
            assert word in refusal and refusal.endswith(".")
