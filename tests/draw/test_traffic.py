"""Traffic: what each operation adds to whom, nodes, many ranks, and what is refused."""

import re

import pytest

from lib.draw import traffic
from lib.draw.parts import style
from lib.ledger import Ledger, Row
from lib.predict.collectives.formulas import collective
from tests.draw.marks import box
from tests.every import every


def comm(rank, op, members, nbytes, peer=-1, group="world", number=0):
    return Row(rank, "comm", op, 0.0, 1.0, group=group, members=tuple(members), number=number,
               bytes=nbytes, peer=peer)  # fmt: skip


def everybody(op, members, nbytes, peer=-1, group="world"):
    return [comm(r, op, members, nbytes, peer, group) for r in members]


def moved(picture):
    """{(from, to): (bytes, messages)} as the living picture is given them."""
    data, found = picture.live[1], {}
    for _, _, a, b, size, messages, _ in data["routes"]:
        key = data["ranks"][a], data["ranks"][b]
        old = found.get(key, (0, 0))
        found[key] = old[0] + size, old[1] + messages
    return found


# --- what goes where


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_rings_move_what_the_formula_says_to_the_next_rank(op, n):
    wire = collective(op, n, 1000)
    found = moved(traffic(Ledger(everybody(op, range(n), 1000))))
    assert found == {(r, (r + 1) % n): (round(wire.bytes), wire.rounds) for r in range(n)}


def test_a_ring_follows_the_members_of_its_group():
    ledger = Ledger([comm(r, "all_gather", (3, 1, 5), 300, group="dp") for r in (3, 1, 5)])
    assert moved(traffic(ledger)) == {(3, 1): (200, 2), (1, 5): (200, 2), (5, 3): (200, 2)}


def test_an_all_to_all_goes_straight_to_everybody():
    found = moved(traffic(Ledger(everybody("all_to_all", range(4), 1000))))
    assert found == {(a, b): (250, 1) for a in range(4) for b in range(4) if a != b}
    assert sum(size for size, _ in found.values()) == 4 * collective("all_to_all", 4, 1000).bytes


@pytest.mark.parametrize("root", [0, 2])
def test_a_gather_ends_at_its_root_and_a_scatter_begins_there(root):
    others = [r for r in range(4) if r != root]
    gather = moved(traffic(Ledger(everybody("gather", range(4), 1000, root))))
    scatter = moved(traffic(Ledger(everybody("scatter", range(4), 1000, root))))
    assert gather == {(r, root): (250, 1) for r in others}
    assert scatter == {(root, r): (250, 1) for r in others}


def test_a_chain_does_not_come_back_to_where_it_began():
    broadcast = moved(traffic(Ledger(everybody("broadcast", range(4), 1000, 1))))
    reduce = moved(traffic(Ledger(everybody("reduce", range(4), 1000, 1))))
    assert set(broadcast) == {(1, 2), (2, 3), (3, 0)}  # from the root on
    assert set(reduce) == {(2, 3), (3, 0), (0, 1)}  # to the root
    assert {size for size, _ in [*broadcast.values(), *reduce.values()]} == {1000}


def test_messages_are_counted_where_they_were_sent_and_only_there():
    rows = [comm(0, "send", (0, 1), 70, peer=1), comm(1, "recv", (0, 1), 70, peer=0)]
    rows += [comm(0, "send", (0, 1), 30, peer=1, number=1)]
    picture = traffic(Ledger(rows))
    assert moved(picture) == {(0, 1): (100, 2)}
    assert not picture.live[1]["notes"]


def test_barriers_and_groups_of_one_move_nothing():
    rows = everybody("barrier", range(2), 0) + [comm(0, "all_reduce", (0,), 99)]
    picture = traffic(Ledger(rows))
    assert moved(picture) == {} and "99" not in picture.summary


def test_operations_and_groups_stay_apart_for_whoever_chooses_one():
    rows = everybody("all_reduce", (0, 1), 800, group="dp") + everybody("all_gather", (0, 1), 80)
    rows += everybody("all_reduce", (0, 1), 8, group="tp")
    data = traffic(Ledger(rows)).live[1]
    assert (data["ops"], data["groups"]) == (["all_gather", "all_reduce"], ["dp", "tp", "world"])
    of = {(data["ops"][o], data["groups"][g]): size for o, g, a, _, size, *_ in data["routes"]
          if a == 0}  # fmt: skip
    assert of == {("all_reduce", "dp"): 800, ("all_reduce", "tp"): 8, ("all_gather", "world"): 40}


def test_the_words_say_how_each_was_counted():
    rows = everybody("all_to_all", (0, 1), 10) + everybody("all_reduce", (0, 1), 10)
    assert traffic(Ledger(rows)).summary.endswith(
        "all_to_all: counted as one message to each receiver\nall_reduce: as a ring would move it"
    )


# --- nodes


def test_inside_and_between_nodes():
    rows = everybody("all_to_all", range(4), 400)  # 100 bytes for each pair
    picture = traffic(Ledger(rows), node=2)
    assert "nodes of 2: 400 bytes inside, 800 bytes between" in picture.summary
    assert [m.text for m in picture.marks][-1] == "inside a node 400 B · between nodes 800 B"
    frames = [m for m in picture.marks if m.kind == "box" and m.edge == style.INK]
    cells = {m.about: m for m in picture.marks if m.about}
    first, last = cells["rank 2 to rank 2: 0 bytes"], cells["rank 3 to rank 3: 0 bytes"]
    assert len(frames) == 2
    assert (frames[1].x, frames[1].y) == (first.x, first.y)
    assert (frames[1].x + frames[1].w, frames[1].y + frames[1].h) == (
        last.x + last.w, last.y + last.h)  # fmt: skip


def test_nodes_go_by_rank_numbers_and_the_last_may_be_smaller():
    picture = traffic(Ledger(everybody("all_to_all", range(5), 500)), node=3)
    frames = [m for m in picture.marks if m.kind == "box" and m.edge == style.INK]
    assert [round(f.w / frames[0].w * 3) for f in frames] == [3, 2]
    assert "nodes of 3: 800 bytes inside, 1,200 bytes between" in picture.summary


# --- how it looks


def test_shades_follow_bytes_and_little_is_not_nothing():
    rows = [comm(0, "send", (0, 1), 1_000_000, peer=1), comm(1, "send", (1, 0), 1, peer=0)]
    picture = traffic(Ledger(rows))
    assert box(picture, "rank 0 to rank 1: 1,000,000 bytes").fill == style.COMM["message"]
    assert box(picture, "rank 0 to rank 0: 0 bytes").fill == style.PAPER
    assert box(picture, "rank 1 to rank 0: 1 byte").fill not in (style.PAPER, style.COMM["message"])


@pytest.mark.parametrize("n", [2, 5, 12, 33, 64])
@pytest.mark.parametrize("node", [None, 4])
def test_any_number_of_ranks_up_to_64_fits(n, node):
    picture = traffic(Ledger(everybody("all_to_all", range(n), 1000 * n)), node=node)
    assert picture.width <= style.WIDTH
    texts = [m for m in picture.marks if m.kind == "text"]
    for m in picture.marks:
        assert 0 <= m.x <= m.x + m.w <= picture.width and m.y + m.h <= picture.height, m
    names = sorted(m.y for m in texts if re.fullmatch(r"rank \d+", m.text))
    assert every(b - a >= style.LINE - 1 for a, b in zip(names, names[1:]))
    heads = sorted((m.x, len(m.text)) for m in texts if m.text.isdigit())
    assert every(x + wide * style.LETTER / 2 < y - wider * style.LETTER / 2
               for (x, wide), (y, wider) in zip(heads, heads[1:]))  # fmt: skip
    amounts = [m for m in texts if m.text == "1 kB"]
    if n >= 33:
        assert len(amounts) == 1  # of the scale: cells have no room
    else:
        assert len(amounts) >= n * (n - 1) or n == 12


# --- ranks that are missing, too many, or not wanted


def test_a_rank_without_rows_is_shown_and_said():
    picture = traffic(Ledger(everybody("all_reduce", (0, 1), 8), meta={"ranks": 4}))
    assert picture.live[1]["ranks"] == [0, 1, 2, 3]
    assert "ranks 2, 3: no rows in this ledger" in picture.summary


def test_some_ranks_alone():
    picture = traffic(Ledger(everybody("all_to_all", range(100), 1000)), ranks=range(10, 12))
    assert moved(picture) == {(10, 11): (10, 1), (11, 10): (10, 1)}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: traffic(Ledger()), ValueError, "There is nothing to draw"),
        (lambda: traffic({}), TypeError, "A traffic matrix is drawn from a Ledger, not from dict"),
        (lambda: traffic(Ledger(everybody("all_reduce", range(65), 8))), ValueError,
         "65 ranks do not fit one matrix, which has room for 1 to 64"),
        (lambda: traffic(Ledger(everybody("all_reduce", (0, 1), 8)), node=0), ValueError,
         "A node of 0 ranks holds nobody"),
        (lambda: traffic(Ledger(everybody("all_reduce", (0, 1), 8)), ranks=()), ValueError,
         "0 ranks do not fit one matrix"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call()
