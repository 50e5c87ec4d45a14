"""Weight versions: what the papers' rules say, on every stage, and what keeping them takes."""

import pytest

from lib.predict.pipeline.schedules import gpipe, one_f_one_b, pipedream, repeated, zb_h1
from lib.predict.pipeline.versions import RULES, Seen, versions_kept, weight_versions
from tests.every import every


def forwards(schedule, rule, every=1):
    return [[seen.forward for seen in row] for row in weight_versions(schedule, rule, every)]


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_pipedream_stashes(p):
    """Stage s of p sees, once the pipe is full, weights p-1-s updates old (SOSP 2019, 3.3)."""
    stream = pipedream(p, 20)
    assert forwards(stream, "stashing") == [
        [max(0, j - (p - 1 - s)) for j in range(20)] for s in range(p)
    ]
    assert every(
        seen.forward == seen.backward for row in weight_versions(stream, "stashing") for seen in row
    )
    assert versions_kept(stream, "stashing") == [p - s for s in range(p)]


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_vertical_sync_sees_the_version_of_the_first_stage(p):
    stream = pipedream(p, 20)
    assert forwards(stream, "vertical sync") == [[max(0, j - (p - 1)) for j in range(20)]] * p
    assert versions_kept(stream, "vertical sync") == [p] * p


def test_without_stashing_forward_and_backward_differ():
    seen = weight_versions(pipedream(4, 8), "latest")
    assert seen[0][5] == Seen(forward=2, backward=5)
    assert seen[3][5] == Seen(forward=5, backward=5)
    assert versions_kept(pipedream(4, 8), "latest") == [1, 1, 1, 1]


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 6), (2, 5), (8, 8)])
def test_2bw(p, m):
    """Microbatch k from 1 sees max(floor((k-1)/m) - 1, 0); two versions are enough."""
    stream = pipedream(p, 4 * m)
    rule = [max((k - 1) // m - 1, 0) for k in range(1, 4 * m + 1)]
    assert forwards(stream, "2BW", m) == [rule] * p
    assert versions_kept(stream, "2BW", m) == [2] * p


def test_2bw_needs_as_many_microbatches_as_stages():
    with pytest.raises(ValueError, match="2BW: 0F4 needs version 1, but stage 0 has made only 0"):
        weight_versions(pipedream(4, 12), "2BW", 2)


@pytest.mark.parametrize("rule", [gpipe, one_f_one_b, zb_h1])
def test_a_flush_keeps_one_version_that_all_of_a_step_see(rule):
    steps = repeated(rule(4, 6), 3)
    assert forwards(steps, "flush", 6) == [[j // 6 for j in range(18)]] * 4
    assert versions_kept(steps, "flush", 6) == [1] * 4
    assert weight_versions(steps, "flush", 6) == weight_versions(steps, "latest", 6)


def test_a_stream_is_no_step():
    with pytest.raises(
        ValueError, match="flush: 0F4 needs version 1, but stage 0 has made only 0 "
    ):
        weight_versions(pipedream(4, 8), "flush", 4)


def test_rules_have_names():
    with pytest.raises(ValueError, match="called 'stash'. Choose one of .*2BW"):
        weight_versions(pipedream(2, 2), "stash")
    assert len(RULES) == 5
