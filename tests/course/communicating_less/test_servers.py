"""Chapter 2's servers: how stale a bound lets gradients be, and what that does to the loss."""

from dataclasses import replace
from heapq import heappop, heappush

import pytest
import torch

from lib.course.communicating_less import lessons, servers
from lib.course.communicating_less.cover import TIMES, stragglers
from lib.predict.data.parameter_server import simulate
from tests.every import every

MANY = range(24)


def most_stale(bound, sends_when_it_starts: bool) -> int:
    """Simulate three stragglers by the steps of the text, and give the largest staleness."""
    delivered, on, version, most = [0] * 3, [0] * 3, 0, 0
    waiting, computing, now = [0, 1, 2], [], 0
    for _ in range(180):
        while not (ready := [w for w in waiting if delivered[w] - min(delivered) <= bound]):
            now, w = heappop(computing)
            most, version = max(most, version - on[w]), version + 1
            delivered[w] += 1
            waiting.append(w)
            if not sends_when_it_starts:
                on[w] = version
        worker = ready[0]
        waiting.remove(worker)
        if sends_when_it_starts:
            on[worker] = version
        heappush(computing, (now + TIMES[worker][delivered[worker] % 12], worker))
    return most


def test_weights_that_are_sent_too_early_break_the_bound():
    """The text: the server sends when a worker may start; at the delivery it would be 7 and 15."""
    assert [most_stale(bound, True) for bound in (1, 3)] == [6, 14]
    assert [most_stale(bound, False) for bound in (1, 3)] == [7, 15]
    for bound in (1, 3):
        updates = servers.stragglers_run(bound).updates
        assert max(one.staleness for one in updates) == most_stale(bound, True)


def test_four_bounds_are_four_different_runs():
    ends = [simulate(stragglers(bound)).times[-1] for bound in (0, 1, 3, None)]
    assert ends == [225, 171, 152, 115]


def test_bound_0_applies_the_same_gradients_in_fewer_and_longer_updates():
    """The text: 180 gradients in 60 updates, and none of them is stale."""
    bulk, free = (servers.stragglers_run(bound).updates for bound in (0, None))
    assert {(u.worker, u.number) for u in bulk} == {(u.worker, u.number) for u in free}
    assert len(bulk) == len(free) == 180 and {u.staleness for u in bulk} == {0}
    assert len({u.applied_to for u in bulk}) == 60 and len({u.applied_to for u in free}) == 180


def test_without_a_bound_most_gradients_are_fresh_and_a_few_are_very_old():
    old, most = {}, {}
    for bound in (1, 3, None):
        stale = [one.staleness for one in servers.stragglers_run(bound).updates]
        old[bound], most[bound] = sum(one >= 2 for one in stale), max(stale)
    assert old[1] > old[3] > old[None] and most[1] < most[3] < most[None]
    very = [one.staleness > 2 for one in servers.stragglers_run(None).updates]
    assert sum(very) == 15  # five slow gradients of each of three workers


def test_a_replay_is_the_servers_training(worlds):
    for bound in (0, 3):
        (loss, *_) = worlds(4).run(servers.served, bound, 0.05, 0)
        updates = servers.stragglers_run(bound).updates
        assert servers.replayed(updates, 0.05, [0]) == [pytest.approx(loss, rel=1e-6)]
        fresh = [one._replace(computed_on=one.applied_to) for one in updates]
        if bound:
            assert servers.replayed(fresh, 0.05, [0]) != [pytest.approx(loss, rel=0.01)]


def test_updates_that_are_not_stale_are_plain_training():
    plain = []
    for seed in (0, 3):
        model = lessons.network(seed)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for number in range(180):
            optimizer.zero_grad()
            (lessons.loss(model, number % 3, number // 3, seed) / 3).backward()
            optimizer.step()
        plain.append(lessons.test_loss(model, seed))
    replays = servers.replayed(servers.equally_stale(0), 0.05, (0, 3))
    assert replays == pytest.approx(plain, rel=1e-9)
    assert {one.staleness for one in servers.equally_stale(2)[2:]} == {2}


def test_without_momentum_stale_gradients_hardly_hurt_at_the_large_rate():
    """The text: 0.05 with momentum 0.9 acts like 0.5, and without momentum it is harmless."""
    stale = [servers.equally_stale(staleness) for staleness in (0, 1, 2)]
    runs = [servers.replayed(updates, 0.05, (0, 1, 2), 0.0) for updates in stale]
    assert [round(sum(losses) / 3, 2) for losses in runs] == [0.27, 0.27, 0.30]
    runs = [servers.replayed(updates, 0.01, (0, 1, 2), 0.0) for updates in stale]
    means = [sum(losses) / 3 for losses in runs]
    assert max(means) < 1.1 * min(means)  # "hardly hurt at these rates"
    runs = [servers.replayed(updates, 0.5, (0, 1, 2), 0.0) for updates in stale]
    means = [sum(losses) / 3 for losses in runs]
    assert means[1] > 1.2 * means[0] and not means[2] < 1  # it grows, then a seed diverges


def test_the_tightest_bound_learns_worst_at_the_large_rate():
    """The order of the table, from more seeds than it has and seed by seed."""
    by_bound = {}
    for bound in (1, 3, None):
        updates = servers.stragglers_run(bound).updates
        by_bound[bound] = servers.replayed(updates, 0.05, MANY)
    means = {bound: sum(losses) / len(losses) for bound, losses in by_bound.items()}
    assert means[1] > 1.25 * means[3] > 1.4 * means[None]
    for worse, better in ((1, 3), (3, None), (1, None)):
        wins = sum(a > b for a, b in zip(by_bound[worse], by_bound[better], strict=True))
        assert wins >= 2 * len(MANY) / 3, (worse, better)


def test_with_milder_stragglers_no_bound_is_the_worst():
    """Where slow gradients take 4 ms and not 12, as the answer to the second question says."""
    stale, means = {}, {}
    for bound in (1, 3, None):
        settings = stragglers(bound)
        times = tuple(tuple(min(time, 4) for time in times) for times in settings.compute_times)
        updates = simulate(replace(settings, compute_times=times)).updates
        stale[bound] = sum(update.staleness >= 2 for update in updates)
        means[bound] = sum(losses := servers.replayed(updates, 0.05, MANY)) / len(losses)
    assert stale == {1: 79, 3: 53, None: 88}
    assert means[None] > max(means[1], means[3])


def test_local_sgd_waits_for_the_slowest_of_each_block():
    assert [servers.local_sgd_ends(n) for n in (1, 2, 4, 12, 16)] == [225, 225, 225, 115, 137]
    assert every(115 <= servers.local_sgd_ends(n) <= 225 for n in range(1, 61))
