"""The numbers that chapter 0 says in its text, computed from the formulas."""

import re

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from lib.predict.collectives import formulas, plans
from lib.predict.collectives.nodes import all_reduce, errors, nodes_of
from lib.predict.hardware import link, sweep, sweeps
from tests.course.stored_chapter import chapter_fixtures, shown

NVLINK = link("NVLink4")


notebook, text = chapter_fixtures("00-ranks")


def test_ring_and_tree_on_four_ranks_and_what_their_links_carry_on_64(notebook, text):
    four = [formulas.cost(name, 4, 10**6, *prices()) for name in ("tree", "ring")]
    assert [f"{time * 1e6:.1f}" for time in four] == ["22.5", "23.7"]
    assert "nearly equal (22.5 and 23.7 µs)" in text
    assert "about equal on four ranks, but on 512 the tree is 34 times as fast" in text
    tree, ring = (formulas.cost(name, 512, 10**6, *prices()) for name in ("tree", "ring"))
    assert round(ring / tree) == 34
    central = formulas.all_reduce("central", 64, 10**9 // 4)
    ring = formulas.all_reduce("ring", 64, 10**9 // 4)
    assert round(central.critical_bytes / 1e9) == 126 and round(max(ring.sent) / 1e9) == 2
    assert "each sends 2 GB, whereas in *central* 126 GB pass through rank 0" in text
    assert "It is ring." in (table := shown(notebook, "formulas.cost(m, 64"))
    assert "predicted, µs" in table


def test_each_ranks_gradient_is_as_far_off_as_the_text_says(notebook, text):
    shares = re.findall(r"^rank \d: (\d+)% off$", shown(notebook, "full_gradient = "), re.M)
    assert len(shares) == 4
    low, high = min(map(int, shares)), max(map(int, shares))
    assert f"is {low} to {high} % away from that of the whole batch" in text


def test_six_messages_for_a_byte_make_a_megabyte_and_a_half_for_each_of_four_ranks(text):
    """What the text counts before it names the bound is what the ring sends."""
    megabytes = 2 * (4 - 1)
    assert "So each number is sent at least six times, and 1 MB needs 6 MB." in text
    assert megabytes == 6
    assert max(formulas.all_reduce("ring", 4, 250_000).sent) == megabytes * 10**6 / 4
    assert "Four ranks can at best share them equally, which is 1.5 MB each." in text


def test_where_ring_and_tree_take_equally_long(text):
    for ranks, size in ((64, 17.4e6), (4, 1.22e6)):
        tree, ring = (formulas.cost(name, ranks, size, *prices()) for name in ("tree", "ring"))
        assert tree == pytest.approx(ring, rel=0.005)
    assert "On 64 ranks both take equally long at 17 MB, on four at 1.2 MB." in text


def prices():
    return NVLINK.alpha, NVLINK.beta


def test_the_rounds_of_the_table_are_the_rings(text):
    """What rank 0 sends and receives in the six rounds of `ring_sum` on four ranks.

    To the fold's question the answer is piece 5: rank 2 received it in round 3 and added to it.
    """
    ks = (1, 2, 3)
    sends = [(1 - k) % 4 for k in ks] + [(2 - k) % 4 for k in ks]
    receives = [(-k) % 4 for k in ks] + [(1 - k) % 4 for k in ks]
    rows = {
        "sends": [f"**{p}**" if number > 2 else f"{p}" for number, p in enumerate(sends)],
        "receives": [f"**{p}**" if number > 2 else f"{p}" for number, p in enumerate(receives)],
    }
    for word, pieces in rows.items():
        assert f"| {word} piece | {' | '.join(pieces)} |" in text
    assert "which piece rank 2 sends in round 4 of a ring of six ranks, and why (piece 5, " in text
    *_, third, fourth = plans.ring(6).rounds[:4]
    assert [m.piece for m in fourth if m.source == 2] == [(2 + 1 - 4) % 6] == [5]
    assert [m.piece for m in third if m.destination == 2] == [5] and "received in round 3)" in text
    assert "rank r sends piece r + 2 − k, so first its complete piece r + 1" in text
    for k, moves in enumerate(plans.ring(6).rounds[5:], 1):  # the second lap
        assert {(m.source, m.piece) for m in moves} == {(r, (r + 2 - k) % 6) for r in range(6)}
    assert "piece 0 + 1 − 2 = −1, which is 3 modulo 4" in text and (0 + 1 - 2) % 4 == sends[1] == 3
    assert "central* has 2(n − 1) rounds, 6 here" in text
    assert formulas.all_reduce("central", 4, 1000).rounds == 6


def six_times(numel):
    return {
        name: 1e6 * formulas.seconds(formulas.all_reduce(name, 4, numel), *prices())
        for name in formulas.ALGORITHMS
    }


def test_everyone_is_as_fast_as_the_text_says(notebook, text):
    times = six_times(250_000)
    header, *lines = shown(notebook, "formulas.seconds(formula, ").splitlines()
    assert header.split()[-1] == "predicted"
    printed = [(line.split()[0], *line.split()[-2:]) for line in lines if line]
    assert printed == [(name, f"{time:.1f}", "µs") for name, time in times.items()]
    for words in (
        f"*Everyone*, with 3 · (3.4 + 2.22) = {times['everyone']:.1f} µs",
        f"*halving-doubling*, with 4 · 3.4 + 1.5 · 2.22 = {times['halving_doubling']:.1f} µs",
        f"the ring with its {times['ring']:.1f} µs",
    ):
        assert words in text
    assert sorted(times, key=times.get)[:2] == ["everyone", "halving_doubling"]
    assert times["everyone"] == pytest.approx(times["halving_doubling"], rel=0.005)
    assert "are equal as far as this model can tell" in text
    assert "so below about 1 MB it is the fastest" in text
    for numel in (250, 2_500, 25_000, 240_000):
        small = six_times(numel)
        assert min(small, key=small.get) == "everyone"
    large = six_times(260_000)
    assert min(large, key=large.get) == "halving_doubling"


def test_on_eight_ranks_halving_doubling_wins(text):
    assert "On eight ranks it needs 7 rounds and *halving-doubling* 6" in text
    for numel in (250, 2_500, 25_000, 250_000):
        ways = {name: formulas.all_reduce(name, 8, numel) for name in formulas.ALGORITHMS}
        assert (ways["everyone"].rounds, ways["halving_doubling"].rounds) == (7, 6)
        times = {name: formulas.seconds(way, *prices()) for name, way in ways.items()}
        assert min(times, key=times.get) == "halving_doubling"


def test_the_busiest_rank_sends_least_in_a_ring(text):
    """Most ranks of a tree send less than a rank of a ring: the bound is the busiest rank's."""
    assert "no algorithm's busiest rank sends less than a rank of the ring" in text
    for ranks in (2, 3, 4, 5, 8, 9):
        sent = {
            name: formulas.all_reduce(name, ranks, 720 * ranks).sent for name in formulas.ALGORITHMS
        }
        assert min(max(by_rank) for by_rank in sent.values()) == max(sent["ring"])
    assert "A tree takes 2⌈log₂ n⌉, up and down; a ring takes 2(n − 1)" in text
    for ranks in (2, 5, 8, 1000):
        rounds = [formulas.all_reduce(name, ranks, 1000).rounds for name in ("tree", "ring")]
        assert rounds == [2 * (ranks - 1).bit_length(), 2 * (ranks - 1)]


def test_rings_over_nodes_are_as_far_off_as_the_text_says(text):
    """They were charged 420 µs of latency, the network's in every round, in place of 144."""
    runs = [sweep(name) for name in sweeps(one_node=False)]
    small = [errors(run, 2**20) for run in runs]
    off = [error for run in small for error in run.values()]
    assert (round(100 * min(off)), round(100 * max(off))) == (-69, 106)
    assert "between 69 % below and 106 % above" in text
    nearest = {min(run, key=lambda name: abs(run[name])) for run in small}
    assert len(nearest) == 3 and "these rows do not tell you the algorithm" in text
    inside, outside = (1e6 * link(name).alpha for name in ("NVLink4", "EFA 400"))
    latency = 1e6 * all_reduce("flat_ring", nodes_of(sweep("H100 2-node all-reduce")), 0)
    assert f"26 · {inside:.1f} + 4 · {outside:.0f} = {latency:.0f} µs" in text


def test_large_buffers_over_nodes_are_as_far_off_as_the_text_says(text):
    runs = [sweep(name) for name in sweeps(one_node=False)]
    *two, four = [errors(run, run.nbytes[-1]) for run in runs]
    assert [run.nodes for run in runs] == [2, 2, 2, 4]
    for run in two:
        assert run["hierarchical"] > 0
        assert run["at once"] < 0 or round(100 * run["at once"]) == 1
    assert "between *levels* and *at once*, or about 1 % from one of them" in text
    assert min(four, key=lambda name: abs(four[name])) == "multi_rail_ring"
    assert "six times as long or more" in text
    assert min(run["flat_ring"] for run in (*two, four)) > 5


def test_what_the_text_says_of_nccl_names_its_source(text):
    """NCCL's developers on its trees, and its manual on ranks that give different shapes or types.

    Sources: NVIDIA/nccl issues 672 and 919; the user guide's page on collective operations.
    """
    assert "inside one machine it is a chain, so both factors hold for `tree_sum` only" in text
    for issue in (672, 919):
        assert f"[{issue}](https://github.com/NVIDIA/nccl/issues/{issue})" in text
    assert "the first can also give wrong numbers: its [manual](https://docs.nvidia.com/" in text
    assert "warns of hangs, crashes and corrupted data" in text


def test_what_the_text_says_of_backends(text):
    assert '`"tcp" in dist.Backend.backend_list` is False' in text
    assert "tcp" not in dist.Backend.backend_list
    assert "`dist.is_mpi_available()`" in text and isinstance(dist.is_mpi_available(), bool)


def mean_of_ranks(dtype=torch.float32):
    x = torch.tensor([dist.get_rank()], dtype=dtype, device="cpu")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.item()


def test_gloo_accepts_a_mean(worlds, text):
    assert "documented for NCCL only; gloo accepts it for floats" in text
    world = worlds(4, device="cpu")
    assert world.run(mean_of_ranks) == [1.5] * 4
    with pytest.raises(RankError, match="can't be cast"):
        world.run(mean_of_ranks, torch.int64)
