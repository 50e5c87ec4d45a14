"""Rows are counted as a walk over every row counts them, flat and in two hops."""

import random

import pytest
import torch
import torch.distributed as dist

from lib.parallel.expert import expert_parallel
from lib.predict.expert import load, traffic
from lib.single.experts import MoE


def drawn(ranks, seed=0):
    chance = random.Random(seed)
    return [[chance.randrange(9) for _ in range(ranks)] for _ in range(ranks)]


def walked(table, node, hops):
    """Return rows sent inside and between nodes by each rank, row by row along its way."""
    ranks = len(table)
    inside, between = [0] * ranks, [0] * ranks
    for a in range(ranks):
        for b in range(ranks):
            way = [a, b] if hops == 1 else [a, a // node * node + b % node, b]
            for here, there in zip(way, way[1:]):
                if here != there:
                    (inside if here // node == there // node else between)[here] += table[a][b]
    return inside, between


@pytest.mark.parametrize(("ranks", "node"), [(4, 2), (8, 4), (6, 3), (4, 4), (4, 1)])
@pytest.mark.parametrize(("way", "hops"), [(traffic.flat, 1), (traffic.two_hops, 2)])
def test_every_row_is_counted_where_it_travels(way, hops, ranks, node):
    table = drawn(ranks)
    sent, (inside, between) = way(table, node), walked(table, node, hops)
    assert [one.inside for one in sent] == inside
    assert [one.between for one in sent] == between


def test_two_hops_send_as_many_rows_between_nodes_in_fewer_messages():
    table = drawn(8)
    flat, hops = (
        sum(way(table, 4), traffic.Sent(0, 0, 0, 0)) for way in (traffic.flat, traffic.two_hops)
    )
    assert flat.between == hops.between and hops.inside > flat.inside
    assert (flat.messages_between, hops.messages_between) == (32, 8)


def test_the_table_of_ranks_adds_up_their_experts():
    by_expert = [[1, 2, 3, 4], [5, 0, 0, 6]]
    assert traffic.table_of(by_expert) == [[3, 7], [5, 6]]
    with pytest.raises(ValueError, match="There are 3 experts; 2 ranks cannot share them"):
        traffic.table_of([[1, 2, 3]] * 2)


def fitted(capacity, decide, batches=150):
    """Return the rows [E] of this rank that a gate of noise alone sends, on average."""
    torch.manual_seed(dist.get_rank())
    layer = MoE(4, 4, 8, 2, "noisy", capacity)
    expert_parallel(layer, decide=decide)
    layer.draw(0, scale=0.0)  # of its logits nothing is left but noise
    rows = torch.randn(16, 4, device=layer.gate.weight.device)
    with torch.no_grad():
        kept = [layer.fitting(layer.gate(rows).assignments).counts for _ in range(batches)]
    return torch.stack(kept).double().mean(0).tolist()


@pytest.mark.parametrize("decide", ["all", "rank"])
@pytest.mark.parametrize("capacity", [None, 1.0])
def test_an_even_gate_sends_on_average_what_is_expected(worlds, capacity, decide):
    recorded = traffic.table_of(worlds(4).run(fitted, capacity, decide))
    expected = traffic.expected_table(16, 8, 2, 4, capacity, decide)
    for found, rows in zip(recorded, expected, strict=True):
        assert sum(found) == pytest.approx(sum(rows), abs=0.6)
        assert found == pytest.approx(rows, abs=0.6)


def test_what_is_expected_loses_what_a_capacity_drops():
    sent = lambda *more: [sum(row) for row in traffic.expected_table(64, 8, 2, 4, *more)]
    assert sent() == pytest.approx([128] * 4) and sent(2.5) == pytest.approx([128] * 4, rel=1e-4)
    lost = [1 - sum(sent(1.0, decide)) / 512 for decide in ("all", "rank")]
    expected = [load.dropped(tokens, 8, 2, 1.0) for tokens in (256, 64)]
    assert lost == pytest.approx(expected) and lost[0] < lost[1]
    first, *_, last = sent(1.0)
    assert first == pytest.approx(128) and last < 128 * (1 - 2 * lost[0])


def test_nodes_and_a_capacity_say_what_is_expected_between_nodes():
    """8 ranks on 2 nodes: half of the rows leave, flat and in two hops."""
    table = traffic.expected_table(64, 8, 2, 8, 1.25, "rank")
    left = 128 * (1 - load.dropped(64, 8, 2, 1.25))
    flat, hops = traffic.flat(table, 4)[5], traffic.two_hops(table, 4)[5]
    assert flat.between == pytest.approx(left / 2) == pytest.approx(hops.between)
    assert flat.inside == pytest.approx(left * 3 / 8)
    assert hops.inside == pytest.approx(left * 6 / 8)


def test_what_cannot_be_expected_is_refused():
    with pytest.raises(ValueError, match="There are 8 experts"):
        traffic.expected_table(64, 8, 2, 3)
    with pytest.raises(ValueError, match="decide must be one of all, rank, not 'none'"):
        traffic.expected_table(64, 8, 2, 4, 1.0, "none")


def test_an_even_load_sends_what_is_for_others():
    assert traffic.even_rows(1024, 2, 8) == 2 * 1024 * 7 / 8
    assert traffic.even_rows(1024, 2, 1) == 0
    table = [[32] * 8] * 8  # 128 tokens, k = 2
    assert traffic.flat(table, 8)[3].inside == traffic.even_rows(128, 2, 8)


def test_nodes_share_the_ranks_equally():
    with pytest.raises(ValueError, match="There are 8 ranks; nodes of 3 cannot share them"):
        traffic.flat(drawn(8), 3)
