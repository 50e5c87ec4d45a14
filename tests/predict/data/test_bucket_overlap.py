"""Predicted overlap of buckets: by hand, against the chain of layers, and against real ranks."""

import random

import pytest
import torch
from torch import nn

from lib.ledger import Ledger
from lib.predict.collectives.formulas import time_of
from lib.predict.data.bucket_overlap import best, fly
from lib.predict.data.buckets import assign
from lib.predict.data.ddp_step import data_parallel_step

LINK = {"ranks": 2, "alpha": 0.0, "bandwidth": 100.0}  # two ranks: as many bytes as there are


class Speeds:
    """A step where all is free but the matrix products, 1 s each, and the messages."""

    def compute(self, flop, nbytes):
        return 1.0 if flop else 0.0

    def moving(self, op, ranks, nbytes):
        return time_of(op, ranks, nbytes, alpha=0.25, beta=1 / 50)


def test_four_gradients_in_two_buckets_by_hand():
    run = fly([100] * 4, [1.0] * 4, (200,), **LINK)
    assert run.ready == (1.0, 2.0, 3.0, 4.0)
    assert [(f.inside, f.bytes, f.full, f.start, f.end) for f in run.flights] == [
        ((0, 1), 200, 2.0, 2.0, 4.0),
        ((2, 3), 200, 4.0, 4.0, 6.0),
    ]
    assert (run.backward, run.end, run.moving, run.exposed) == (4.0, 6.0, 4.0, 2.0)


def test_a_bucket_that_is_full_waits_until_the_lane_is_free():
    run = fly([300, 100, 100], [1.0] * 3, (1,), **LINK)
    assert [f.start - f.full for f in run.flights] == [0.0, 2.0, 2.0]
    assert run.exposed == 3.0


def test_one_bucket_hides_nothing_and_one_rank_moves_nothing():
    whole = fly([100] * 4, [1.0] * 4, (400,), **LINK)
    assert whole.exposed == whole.moving == 4.0
    alone = fly([100] * 4, [1.0] * 4, (100,), ranks=1, alpha=1.0, bandwidth=1.0)
    assert alone.moving == alone.exposed == 0.0


def test_latency_is_paid_for_each_round_of_each_bucket():
    few, many = (fly([8] * 4, [1.0] * 4, (size,), ranks=4, alpha=0.5, bandwidth=1e12)
                 for size in (32, 8))  # fmt: skip
    assert few.moving == pytest.approx(6 * 0.5) and many.moving == pytest.approx(4 * 6 * 0.5)


def test_it_is_the_step_of_a_chain_of_layers():
    """The same rows as data_parallel_step predicts, its forward left out."""
    widths, ranks = [30, 20, 40, 10], 4
    step = data_parallel_step(widths, [8] * ranks, Speeds(), buckets=[1, 2])
    nbytes = [4 * i * o for i, o in zip(widths, widths[1:])][::-1]
    run = fly(nbytes, [2.0, 2.0, 1.0], (nbytes[0], sum(nbytes[1:])),
              ranks=ranks, alpha=0.25, bandwidth=50.0)  # fmt: skip
    forward = 3.0

    def told(ledger, zero):
        rows = ledger.where(lane=["comm", "wait"])
        of = [(row.rank, row.number, row.lane, row.bytes, row.members, row.group) for row in rows]
        times = [(row.start - zero, row.end - zero, row.waiting) for row in rows]
        return sorted(zip(of, times))

    for (ours, when), (theirs, then) in zip(
        told(run.ledger, 0.0), told(step, forward), strict=True
    ):
        assert ours == theirs and when == pytest.approx(then)


def test_its_ledger_reads_back_and_ends_when_it_does():
    run = fly([100] * 4, [1.0] * 4, (200,), **LINK)
    ledger = run.ledger
    assert ledger.source == "predicted" and ledger.makespan == run.end
    assert len(ledger.where(lane="comm")) == 2 * 2 and len(ledger.where(lane="wait")) == 2
    assert isinstance(ledger, Ledger)


def test_the_best_is_the_best_of_all_and_takes_the_fewest_buckets():
    draw = random.Random(7)
    for _ in range(50):
        n = draw.randint(1, 12)
        nbytes = [draw.randint(1, 1000) for _ in range(n)]
        seconds = [draw.random() for _ in range(n)]
        network = {"ranks": draw.choice([1, 2, 8]), "alpha": draw.random() / 9, "bandwidth": 700.0}
        choices = [(size,) for size in sorted({draw.randint(1, sum(nbytes)) for _ in range(20)})]
        found = best(nbytes, seconds, choices, **network)
        runs = [fly(nbytes, seconds, limits, **network) for limits in choices]
        assert runs[found].end == pytest.approx(min(run.end for run in runs))
        equal = [r for r in runs if r.end <= runs[found].end * (1 + 1e-12)]
        assert len(runs[found].flights) == min(len(run.flights) for run in equal)


def test_the_buckets_are_those_of_torch():
    """The oracle: torch's own assignment of the same tensors, with PyTorch's default limits."""
    model = nn.Sequential(*(nn.Linear(700, 700) for _ in range(30)))
    tensors = [p.detach() for p in model.parameters()][::-1]
    groups, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [2**20, 25 * 2**20])
    nbytes = [t.nbytes for t in tensors]
    run = fly(nbytes, [1.0] * len(nbytes), (2**20, 25 * 2**20), **LINK)
    assert [list(f.inside) for f in run.flights] == groups == assign(nbytes, (2**20, 25 * 2**20))


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="2 gradients and 1 times"):
        fly([1, 2], [1.0], (1,), **LINK)
    with pytest.raises(ValueError, match="0 gradients"):
        fly([], [], (1,), **LINK)
