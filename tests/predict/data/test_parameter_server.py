"""A simulated parameter server: against a clock that ticks, worked examples, and its own bound."""

import random

import pytest

from lib.predict.data import parameter_server
from lib.predict.data.parameter_server import (
    HEAD,
    Gate,
    MessageCosts,
    ServerSettings,
    Update,
    most_stale,
    simulate,
)
from tests.every import every


def ticked(settings):
    """The same run by a clock that ticks from 0 on, with messages that take no time."""
    clocks, version, began = [0] * settings.workers, 0, 0
    busy, idle, story, heap_of_round = {}, list(range(settings.workers)), [], []
    for now in range(10_000):
        coming = sorted(w for w, (done, _) in busy.items() if done == now)
        while True:
            for w in list(idle):  # whoever waits longest is looked at first
                near = settings.bound is None or clocks[w] <= min(clocks) + settings.bound
                if near and began < settings.gradients:
                    busy[w] = (now + settings.compute_time(w, clocks[w]), version)
                    idle.remove(w)
                    began += 1
            if not coming:
                break
            w = coming.pop(0)
            story.append(Update(w, clocks[w], busy.pop(w)[1], version))
            clocks[w] += 1
            idle.append(w)
            heap_of_round.append(w)
            if settings.bound != 0 or len(heap_of_round) == settings.workers:
                version, heap_of_round = version + 1, []
        if len(story) == settings.gradients:
            return tuple(story), now
    raise AssertionError("the ticking clock never came to an end")


def random_settings(count):
    """Settings of all kinds, the same ones in every run; compute_times are whole numbers."""
    dice = random.Random(7)
    for _ in range(count):
        workers = dice.choice([1, 2, 3, 4, 5])
        compute_times = tuple(
            dice.choice([dice.randint(1, 9), tuple(dice.choices(range(1, 30), k=4))])
            for _ in range(workers)
        )
        yield ServerSettings(
            dice.choice([0, 1, 2, 5, None]), workers * dice.randint(1, 9), compute_times
        )


def test_as_a_clock_that_ticks_has_it():
    for settings in random_settings(300):
        run = simulate(settings)
        assert (run.updates, run.ledger.makespan) == ticked(settings), settings


# Worked by hand: two workers, one of them takes twice as long.


def stories(run):
    return [(u.worker, u.number, u.computed_on, u.applied_to) for u in run.updates]


def test_asynchronous_by_hand():
    run = simulate(ServerSettings(None, 6, (1, 2)))
    # t=1: A0. t=2: A1, then B0, which was made on the first weights. t=3: A2. t=4: A3, B1.
    want = [(0, 0, 0, 0), (0, 1, 1, 1), (1, 0, 0, 2), (0, 2, 2, 3), (0, 3, 4, 4), (1, 1, 3, 5)]
    assert stories(run) == want and run.times == (1, 2, 2, 3, 4, 4)
    assert [u.staleness for u in run.updates] == [0, 0, 2, 1, 0, 2]


def test_bulk_synchronous_by_hand():
    run = simulate(ServerSettings(0, 6, (1, 2)))
    rounds = [(w, n, n, n) for n in range(3) for w in (0, 1)]
    assert stories(run) == rounds and run.times == (1, 2, 3, 4, 5, 6)
    assert {u.staleness for u in run.updates} == {0}


def test_stale_synchronous_by_hand():
    run = simulate(ServerSettings(1, 6, (1, 4)))
    # A0 at 1, A1 at 2, then A waits for B0 at 4; A2 at 5; A waits for B1 at 8; A3 at 9.
    want = [(0, 0, 0, 0), (0, 1, 1, 1), (1, 0, 0, 2), (0, 2, 3, 3), (1, 1, 3, 4), (0, 3, 5, 5)]
    assert stories(run) == want and run.times == (1, 2, 4, 5, 8, 9)


# The bound


def test_no_gradient_is_staler_than_the_bound_allows():
    for settings in random_settings(300):
        delivered = [0] * settings.workers
        for update in simulate(settings).updates:
            assert 0 <= update.computed_on <= update.applied_to
            if settings.bound is not None:
                assert update.number - min(delivered) <= settings.bound, settings
                assert update.staleness <= most_stale(settings.workers, settings.bound), settings
            assert update.number == delivered[update.worker]
            delivered[update.worker] += 1
        assert sum(delivered) == settings.gradients


@pytest.mark.parametrize(("workers", "bound"), [(2, 1), (2, 2), (3, 1), (4, 2)])
def test_the_largest_staleness_is_reached(workers, bound):
    """The others are `bound` behind, then `bound` ahead, of one gradient that takes very long."""
    slow = (1,) * bound + (1000, 1)
    late = (100,) * bound + (1,) * 50
    settings = ServerSettings(bound, workers * (2 * bound + 3), (slow, *[late] * (workers - 1)))
    stalest = max(update.staleness for update in simulate(settings).updates)
    assert stalest == most_stale(workers, bound) == (workers - 1) * (2 * bound + 1)


def test_without_the_gate_the_bound_is_broken(monkeypatch):
    """The bite: workers that are let go on at once run away, and the server refuses."""

    def everybody(gate):
        free, gate.waiting = gate.waiting[: gate.left], []
        gate.left -= len(free)
        for worker in free:
            gate.computing_on[worker] = gate.version
        return free

    monkeypatch.setattr(Gate, "admit", everybody)
    simulate(ServerSettings(None, 12, (1, 4)))
    with pytest.raises(RuntimeError, match="Gradient 2 of worker 0.*breaks the staleness bound 1"):
        simulate(ServerSettings(1, 12, (1, 4)))
    with pytest.raises(RuntimeError, match="breaks the staleness bound 0"):
        simulate(ServerSettings(0, 12, (1, 4)))


def test_a_gradient_nobody_asked_for_is_refused():
    gate = Gate(ServerSettings(1, 4, (1, 1)))
    gate.admit()
    gate.take(1)
    with pytest.raises(RuntimeError, match="Worker 1 delivered a gradient, but the server had not"):
        gate.take(1)


# Time


def test_a_straggler_holds_everybody_up_or_not():
    """Eight times as slow, one of four: rounds take its time, asynchronous workers do not care."""
    compute_times = (1, 1, 1, 8)
    times = {
        bound: simulate(ServerSettings(bound, 240, compute_times)).ledger.makespan
        for bound in (0, 1, 4, None)
    }
    assert times[0] == 60 * 8
    ideal = 240 / (3 + 1 / 8)  # what the four can do together; the slow one ends last
    assert ideal <= times[None] < ideal + 8
    # A worker that is always slow is only put off by the bound: the others run ahead once.
    assert times[0] > times[1] > times[4] > 0.9 * times[0]


def test_a_bound_hides_delays_that_take_turns():
    """Each worker is slow in every fourth gradient: rounds always wait for somebody."""
    turns = tuple(tuple(5 if i == w else 1 for i in range(4)) for w in range(4))
    times = [
        simulate(ServerSettings(bound, 400, turns)).ledger.makespan for bound in (0, 1, 2, 4, None)
    ]
    assert times[0] == 100 * 5 and times[-1] == 100 * 2
    assert times == sorted(times, reverse=True) and times[3] < 1.1 * times[-1]


def test_messages_queue_at_the_server():
    """A round: the weights to each in turn, the last one's gradient, its message, the update."""
    costs = MessageCosts(pull=0.5, push=0.25, update=0.125)
    run = simulate(ServerSettings(0, 40, (3,) * 4), costs)
    one_round = 4 * 0.5 + 3 + 0.25 + 0.125
    assert run.times[-1] == 10 * one_round
    assert run.ledger.makespan == 10 * one_round + 4 * 0.5  # the last weights, to all
    # Where computing takes no time the server does all there is to do: 2 messages a gradient.
    bound_by_server = simulate(ServerSettings(None, 40, (1e-9,) * 4), costs).times[-1]
    assert bound_by_server == pytest.approx(40 * (0.5 + 0.25 + 0.125), rel=1e-6)


# The rows


def test_rows_bytes_and_messages():
    costs = parameter_server.message_costs(1000, 7, alpha=0.01, beta=0.001)
    assert (costs.pull_bytes, costs.push_bytes) == (HEAD + 1000, HEAD + 1000 + 7)
    assert costs.pull == pytest.approx(0.01 + 1.016) and costs.push == pytest.approx(0.01 + 1.023)
    ledger = simulate(ServerSettings(2, 30, (1, 2, 3)), costs).ledger
    assert ledger.source == "predicted" and ledger.ranks == (0, 1, 2, 3)
    out, into = (ledger.where(rank=0, lane="comm", op=op) for op in ("send", "recv"))
    assert len(out) == 30 + 3 and set(out.column("bytes")) == {costs.pull_bytes}
    assert len(into) == 30 and set(into.column("bytes")) == {costs.push_bytes}
    for rank in (1, 2, 3):  # what leaves one rank comes to the other, at the same time
        for one, other in (("send", "recv"), ("recv", "send")):
            here = ledger.where(lane="comm", op=one, rank=rank)
            there = ledger.where(lane="comm", op=other, rank=0, peer=rank)
            assert [(r.number, r.end) for r in here] == [(r.number, r.end) for r in there]


def test_a_rank_does_one_thing_at_a_time():
    for settings in random_settings(50):
        ledger = simulate(settings, MessageCosts(0.3, 0.2, 0.1)).ledger
        for rank in ledger.ranks:
            rows = sorted(ledger.where(rank=rank, lane={"compute", "wait"}), key=lambda r: r.start)
            assert every(a.end <= b.start for a, b in zip(rows, rows[1:], strict=False))
            assert every(
                r.start <= r.arrived <= r.end for r in ledger.where(rank=rank, lane="comm")
            )


def test_an_order_that_is_given_is_followed():
    settings, costs = ServerSettings(None, 6, (1, 2)), MessageCosts(0.3, 0.2, 0.1)
    free, slow = simulate(settings), simulate(settings, costs)
    assert free.order == (0, 0, 1, 0, 0, 1) != slow.order  # messages let another one come first
    fixed = simulate(settings, costs, order=free.order)
    assert fixed.updates == free.updates and fixed.ledger.makespan > free.ledger.makespan
    assert simulate(settings, costs, order=slow.order).times == slow.times
    with pytest.raises(ValueError, match="The order names 2 gradients, but the settings ask for 6"):
        simulate(settings, order=(0, 1))
    with pytest.raises(RuntimeError, match="Worker 0 delivered a gradient, but the server had not"):
        simulate(ServerSettings(1, 6, (1, 1)), order=(0, 0, 0, 0, 0, 0))


# What cannot be


def test_rounds_that_do_not_come_out_even_are_refused():
    with pytest.raises(
        ValueError, match="10 gradients; 4 workers cannot share them equally.*multiple of 4"
    ):
        ServerSettings(0, 10, (1,) * 4)
    assert ServerSettings(1, 10, (1,) * 4).workers == 4
    with pytest.raises(ValueError, match="bound must be 0, 1, 2, ... or None, not -1"):
        ServerSettings(-1, 10, (1, 1))
    with pytest.raises(ValueError, match="compute_times is empty"):
        ServerSettings(0, 10, ())
