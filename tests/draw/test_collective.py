"""Collectives step by step: what is held after each round, the bytes, and where it is drawn."""

import itertools
import re
from dataclasses import replace

import pytest

from lib.draw import collective
from lib.draw.parts import collective_grids, style
from lib.draw.plans.plan_replay import act
from lib.predict.collectives import formulas
from lib.predict.collectives.plans import PLANS, Move, Plan, all_to_all, ring, tree, two_level
from tests.draw.marks import box, boxes, texts
from tests.every import every

RANKS = range(2, 9)
EVERY = {**PLANS, "all_to_all": all_to_all}
every_plan = pytest.mark.parametrize("name", EVERY)
every_sum = pytest.mark.parametrize("name", [name for name in PLANS if name != "everyone"])


def pieces(picture, rank):
    """The boxes of a rank's pieces, in their order."""
    return [m for m in picture.marks if m.kind == "box" and re.match(rf"rank {rank}\b", m.about)]


# --- what is held


@every_sum
@pytest.mark.parametrize("n", RANKS)
def test_every_piece_ends_as_the_whole_sum(name, n):
    plan = PLANS[name](n)
    assert act(plan, 1000, 4).held[-1] == [[2**n - 1] * plan.pieces] * n


@every_sum
def test_a_message_left_out_is_seen(name):
    plan = PLANS[name](4)
    for number, moves in enumerate(plan.rounds):
        rounds = [*plan.rounds[:number], moves[1:], *plan.rounds[number + 1 :]]
        held = act(replace(plan, rounds=tuple(rounds)), 1000, 4).held[-1]
        assert held != [[15] * plan.pieces] * 4, f"round {number}"


@pytest.mark.parametrize("n", RANKS)
def test_everyone_ends_with_everybodys_buffer(n):
    assert act(PLANS["everyone"](n), 1000, 4).held[-1] == [[1 << r for r in range(n)]] * n


@pytest.mark.parametrize("n", RANKS)
def test_an_all_to_all_turns_rows_into_columns(n):
    plan = all_to_all(n)
    last = act(plan, 1000, 4).held[-1]
    found = [[f"{chr(65 + p // n)}{p % n}" for p, mask in enumerate(held) if mask] for held in last]
    assert found == collective_grids.grids(("all_to_all",), n)[1]
    for rank, held in enumerate(last):  # and each piece is still its sender's
        assert [mask for mask in held if mask] == [1 << r for r in range(n)], rank


def test_what_was_handed_on_is_known():
    held = act(tree(4), 8, 4).held
    assert held[0] == [[1], [2], [4], [8]]
    assert held[1] == [[3], [-2], [12], [-8]]  # 1 gave to 0, 3 gave to 2
    assert held[2] == [[15], [-2], [-12], [-8]]
    assert held[3] == [[15], [-2], [15], [-8]] and held[4] == [[15]] * 4


def test_what_leaves_in_a_round_leaves_before_anything_arrives():
    swap = Plan("swap", 2, 1, ((Move(0, 1, add=True), Move(1, 0, add=True)),))
    assert act(swap, 8, 4).held == [[[1], [2]], [[3], [3]]]


# --- bytes and rounds, as the formulas have them


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("numel", [0, 7, 1001])
def test_bytes_and_rounds_equal_the_formulas(name, n, numel):
    counted, acted = formulas.all_reduce(name, n, numel), act(PLANS[name](n), numel, 4)
    assert len(acted.held) - 1 == len(acted.sent) - 1 == counted.rounds
    assert acted.sent[0] == [0] * n and tuple(acted.sent[-1]) == counted.sent


@pytest.mark.parametrize("n", RANKS)
def test_an_all_to_all_moves_what_the_wire_formula_says(n):
    numel = 840  # all of 2 to 8 divide it
    wire, acted = formulas.collective("all_to_all", n, numel * 4), act(all_to_all(n), numel, 4)
    assert len(acted.held) - 1 == wire.rounds
    assert acted.sent[-1] == [round(wire.bytes)] * n


@pytest.mark.parametrize("n", [3, 5])
def test_an_all_to_all_that_does_not_divide_shares_as_array_split_does(n):
    sizes = all_to_all(n).sizes(7)
    assert [sum(sizes[r * n : (r + 1) * n]) for r in range(n)] == [7] * n
    assert sizes[:n] == {3: [3, 2, 2], 5: [2, 2, 1, 1, 1]}[n]


@pytest.mark.parametrize("n", RANKS)
def test_in_a_round_of_an_all_to_all_everybody_sends_once_and_receives_once(n):
    for moves in all_to_all(n).rounds:
        assert (
            sorted(m.source for m in moves) == sorted(m.destination for m in moves) == [*range(n)]
        )
        assert every(m.piece == m.source * n + m.destination for m in moves)


def test_the_words_tell_rounds_and_bytes():
    picture = collective(ring(4), numel=1000)
    head, *rounds = repr(picture).splitlines()
    assert (
        head == "ring all-reduce of 4,000 bytes on 4 ranks: 6 rounds; "
        "each rank sends 6,000 bytes, all 24,000"
    )
    assert len(rounds) == 6 and rounds[0] == "    1  0>1 +0   1>2 +1   2>3 +2   3>0 +3"
    assert "the busiest rank sends 8,000 bytes, all 24,000" in repr(collective(tree(4), numel=1000))
    two = repr(collective(all_to_all(2), numel=10))
    assert two.startswith("all-to-all of 40 bytes on 2 ranks: 1 round; each rank sends 20 bytes")


# --- where it is drawn


@every_plan
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("view", ["ring", "rows"])
def test_everything_is_inside_and_no_rank_covers_another(name, n, view):
    picture = collective(EVERY[name](n), view=view)
    for mark in picture.marks:
        for x, y in mark.points or [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]:
            assert 0 <= x <= picture.width and 0 <= y <= picture.height, mark
    spans = []  # of each rank, its pieces and the words above or beside them
    for rank in range(n):
        own = pieces(picture, rank)
        right, bottom = max(b.x + b.w for b in own), max(b.y + b.h for b in own)
        spans.append((min(b.x for b in own) - 2, min(b.y for b in own) - 2, right + 2, bottom + 2))
    for one, other in itertools.combinations(range(n), 2):
        (a, b, c, d), (x, y, z, w) = spans[one], spans[other]
        assert c < x or z < a or d < y or w < b, (one, other)


def test_a_stripe_stands_where_its_rank_stands():
    picture = collective(ring(4), view="rows")
    for rank in range(4):
        frame = box(picture, f"rank {rank}, piece {(rank + 1) % 4}, ")  # one that stays
        inside = [m for m in picture.marks if m.kind == "box" and m.fill == style.piece(rank)
                  and m.x == frame.x and frame.y <= m.y < frame.y + frame.h]  # fmt: skip
        assert [m.y for m in inside] == [frame.y + rank * frame.h / 4]
        assert inside[0].h == frame.h / 4 and inside[0].w == frame.w


@every_plan
def test_an_arrow_for_each_message_of_the_first_round(name):
    plan = EVERY[name](6)
    for view in ("ring", "rows"):
        lines = [m for m in collective(plan, view=view).marks if m.kind == "line" and m.about]
        drawn = [m.about.split(":")[0] for m in lines]
        assert drawn == [f"rank {m.source} to rank {m.destination}" for m in plan.rounds[0]]


def test_arrows_in_rows_start_at_who_sends_and_end_at_who_receives():
    picture = collective(PLANS["halving_doubling"](4))
    for mark in picture.marks:
        if mark.kind != "line" or not mark.about:
            continue
        ends = [int(word) for word in re.findall(r"rank (\d+)", mark.about)]
        for rank, (x, y) in zip(ends, (mark.points[0], mark.points[-1])):
            rows = [b for b in pieces(picture, rank) if b.x + b.w <= x < b.x + b.w + 9]
            assert rows and all(b.y < y < b.y + b.h for b in rows)


def test_the_strip_has_every_round_and_gets_fuller():
    picture = collective(ring(4))
    frames = boxes(picture, "before the first round") + boxes(picture, "after round ")
    assert len(frames) == 7 and texts(picture)[-7:] == ["start", *"123456"]
    parts = []  # stripes at full strength, round by round
    for a, b in zip(frames, [*frames[1:], None]):
        ends = picture.marks.index(a), picture.marks.index(b) if b else None
        drawn = [m for m in picture.marks[slice(*ends)] if m.kind == "box"]
        parts.append(sum(m.fill in [style.piece(r) for r in range(4)] for m in drawn))
    # adding: a piece of 1 becomes one of 2, 3, 4 parts, and one is handed on; passing: 4 more
    assert parts == [16, 16, 16, 16, 32, 48, 64]


def test_the_strip_of_many_ranks_is_in_shades():
    picture = collective(ring(8))
    frames = boxes(picture, "before the first round") + boxes(picture, "after round ")
    last = [m for m in picture.marks[picture.marks.index(frames[-1]) + 1 :] if m.kind == "box"]
    full = {style.INK, style.COMM["message"]}  # everything is there: old, or new in this round
    assert len(frames) == 15 and {m.fill for m in last} == full
    assert sum(m.w * m.h for m in last) == pytest.approx(frames[-1].w * frames[-1].h)


def test_halves_are_called_what_they_are():
    assert "round 1 of 6: what arrives is added (reduce-scatter)" in texts(collective(ring(4)))
    assert "round 1 of 4: what arrives is added (reduce)" in texts(collective(tree(4)))
    assert "round 1 of 4: what arrives is added" in texts(collective(two_level(4)))
    assert "round 1 of 3: what arrives is kept" in texts(collective(PLANS["everyone"](4)))
    odd = collective(PLANS["halving_doubling"](5))  # its first round is no part of either
    assert "round 1 of 6: what arrives is added" in texts(odd)


def test_what_lives_is_given_what_is_drawn():
    kind, data = collective(ring(3), numel=9, itemsize=2).live
    assert kind == "plan_steps" and data["view"] == "ring" and data["bytes"] == [6, 6, 6]
    assert data["sent"] == act(ring(3), 9, 2).sent and data["held"] == act(ring(3), 9, 2).held
    assert data["moves"][0][0] == [0, 1, 0, 1, 1] and data["phases"] == (
        "reduce-scatter",
        "all-gather",
    )
    assert collective(tree(3)).live[1]["view"] == "rows"
    assert collective(all_to_all(3)).live[1]["view"] == "ring"


def test_a_round_in_which_nobody_speaks_is_said():
    quiet = collective(Plan("mine", 2, 1, ((), (Move(0, 1),))))
    assert "round 1 of 2: nobody sends" in texts(quiet)
    assert not [m for m in quiet.marks if m.kind == "line"]


# --- before and after


def test_grids_stand_below_one_another_where_they_have_no_room_beside():
    wide, narrow = (
        collective("reduce_scatter", "all_gather"),
        collective("all_to_all", "all_gather", ranks=8),
    )
    for picture, ranks, grids in ((wide, 4, 1), (narrow, 8, 3)):
        names = [m for m in picture.marks if m.kind == "text" and m.text == "rank 0"]
        assert len(names) == grids, ranks
        for mark in picture.marks:
            assert mark.x + mark.w <= picture.width and mark.y + mark.h <= picture.height
        for mark in picture.marks:  # no letters wider than their box
            if mark.kind == "text" and re.fullmatch(r"[A-HΣ]\d", mark.text):
                assert any(b.w >= 2 * style.LETTER for b in picture.marks
                           if b.kind == "box" and abs(b.x + b.w / 2 - mark.x) < 0.1)  # fmt: skip


# --- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: collective(ring(16)), "16 ranks cannot be drawn step by step: 2 to 8 ranks"),
        (lambda: collective(ring(1)), "ring on 1 ranks cannot be drawn"),
        (lambda: collective(ring(4), tree(4)), "2 plans do not fit one picture"),
        (lambda: collective(ring(4), view="star"), "not in 'star'"),
        (lambda: collective(ring(4), numel=-1), "-1 elements of 4 bytes"),
        (lambda: collective(Plan("mine", 2, 1, ((Move(0, 2),),))), "says 0>2 =0: ranks are 0 to 1"),
        (lambda: collective(Plan("mine", 2, 1, ((Move(0, 1, 1),),))), "its pieces are 0 to 0"),
        (lambda: collective(Plan("mine", 2, 1, ())), "mine has no rounds"),
        (lambda: collective(), "0 collectives on 4 ranks"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
