"""Rows are counted as a walk over every row counts them, flat and in two hops."""

import random

import pytest

from lib.predict.expert import traffic


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


def test_an_even_load_sends_what_is_for_others():
    assert traffic.even_rows(1024, 2, 8) == 2 * 1024 * 7 / 8
    assert traffic.even_rows(1024, 2, 1) == 0
    table = [[32] * 8] * 8  # 128 tokens, k = 2
    assert traffic.flat(table, 8)[3].inside == traffic.even_rows(128, 2, 8)


def test_nodes_share_the_ranks_equally():
    with pytest.raises(ValueError, match="There are 8 ranks; nodes of 3 cannot share them"):
        traffic.flat(drawn(8), 3)
