"""Timelines: rows in, bars and words out; what differs, what idles, what the end waited for."""

import json
import re
import time

import numpy as np
import pytest

from lib.draw import timeline
from lib.draw.parts import live, style
from lib.draw.timelines.compare import compare
from lib.draw.timelines.critical_path import Step, bubble, critical_path
from lib.draw.timelines.events import MOST, read
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import dualpipe_v, gpipe, one_f_one_b, zb_h1, zb_v
from tests import pace
from tests.draw.marks import bar, texts
from tests.every import every

BOTH = {"group": "dp", "members": (0, 1)}


def late():
    """Rank 1 computes 3 s, rank 0 1 s; an all_reduce moves 1 s; then each computes 1 s."""
    rows = []
    for rank, long in ((0, 1.0), (1, 3.0)):
        rows.append(Row(rank, "compute", "forward", 0.0, long))
        rows.append(
            Row(rank, "comm", "all_reduce", long, 4.0, arrived=3.0, number=0, bytes=8, **BOTH)
        )
        rows.append(Row(rank, "compute", "step", 4.0, 5.0))
    return Ledger(rows)


def many(rows, ranks=4, seed=0):
    """Short events of three operations one after another, a few of them long."""
    random, each = np.random.default_rng(seed), rows // ranks
    lengths = random.random((ranks, each)) * 1e-5
    lengths[random.random((ranks, each)) < 0.002] *= 100
    end = lengths.cumsum(1)
    ops = [("forward", "backward", "mm")[i % 3] for i in range(ranks * each)]
    return Ledger.from_columns(
        rank=np.repeat(np.arange(ranks), each), lane="compute", op=ops, bytes=[3] * (ranks * each),
        start=(end - lengths).ravel(), end=end.ravel(),
    )  # fmt: skip


# --- bars and their words


def test_microbatch_numbers_stand_in_bars_where_they_fit():
    run = play(one_f_one_b(2, 4), Costs(1e-3, 1e-3, 1e-3))
    words = texts(timeline(run.ledger))
    assert [f"F{n}" in words and f"B{n}" in words for n in range(4)] == [True] * 4
    narrow = texts(timeline(play(one_f_one_b(4, 12), Costs(1e-3, 1e-3, 1e-3)).ledger))
    assert {"0", "11"} & set(narrow) and "F11" not in narrow  # the number alone


def test_a_word_stays_before_a_span_inside_its_span():
    rows = [Row(0, "compute", "forward", 0.0, 10.0), Row(0, "compute", "backward", 4.0, 6.0)]
    picture = timeline(Ledger(rows))
    (word,) = [m for m in picture.marks if m.text == "forward" and m.y < 40]
    inner = bar(picture, 0, "backward")
    assert word.x + len(word.text) * style.LETTER / 2 <= inner.x


def test_a_forward_and_a_backward_that_overlap_share_the_line():
    run = play(dualpipe_v(2, 8), Costs(1.0, 1.0, 1.0, overlap=2.5))
    pairs = str(run.schedule).count("OVERLAP_F_B")
    drawn = [m for m in timeline(run.ledger).marks if m.about.startswith("rank ")]
    upper = {(m.x, m.w): m.y for m in drawn if m.h == 9 and (m.y - 8) % 27 == 0}
    lower = {(m.x, m.w): m.y for m in drawn if m.h == 9 and (m.y - 8) % 27 == 9}
    assert pairs and sum(m.h == 9 for m in drawn) == 2 * pairs
    assert len({m.h for m in drawn}) == 2 and upper.keys() == lower.keys()


def test_operations_at_one_time_get_lines_of_their_own():
    one, other = {"group": "dp", "members": (0, 1)}, {"group": "tp", "members": (0, 2)}
    rows = [Row(0, "comm", "all_reduce", 0.0, 4.0, number=0, **one),
            Row(0, "comm", "all_gather", 1.0, 3.0, number=0, **other)]  # fmt: skip
    picture = timeline(Ledger(rows))
    first = bar(picture, 0, "all_reduce")
    second = bar(picture, 0, "all_gather")
    assert first.y + first.h < second.y
    alone = bar(timeline(Ledger(rows[:1])), 0, "all_reduce")
    assert alone.h > first.h


def test_without_communication_no_room_is_kept_for_it():
    rows = [Row(rank, "compute", "forward", 0.0, 1.0) for rank in (0, 1)]
    first, second = (bar(timeline(Ledger(rows)), rank, "forward") for rank in (0, 1))
    assert second.y - first.y == 27
    assert bar(timeline(late()), 1, "forward").y - first.y == 43


def test_the_legend_names_only_what_occurs():
    words = texts(timeline(play(gpipe(2, 2), Costs()).ledger))
    assert "forward" in words and "backward for weights" not in words


def test_rows_may_have_names_in_place_of_ranks():
    ledger, names = play(one_f_one_b(2, 3), Costs()).ledger, ["a long name 0", "name 1"]
    picture = timeline(ledger, rows=names)
    words, about = texts(picture), [m.about for m in picture.marks if m.about]
    assert words[:2] == names and not [word for word in words if "rank" in word]
    assert about and not [text for text in about if text.startswith("rank")]
    assert "a long name 0, name 1: " in picture.summary
    said = picture.live[1]["said"]
    assert "name 1" in said["bubble"] and "name" in said["path"] and "rank 0" not in str(said)
    (label,) = [m for m in picture.marks if m.text == names[0]]
    assert label.x - len(label.text) * style.LETTER > 0  # nothing is cut off
    with pytest.raises(ValueError, match="1 names do not fit 2 rows"):
        timeline(ledger, rows=names[:1])


# --- two runs


def test_two_runs_are_compared_by_operation():
    slow = play(one_f_one_b(2, 3), Costs([1.0, 1.4], 1.0, 1.0)).ledger
    paper = play(one_f_one_b(2, 3), Costs(1.0, 1.0, 1.0)).ledger
    found = compare(slow, paper)
    assert found.makespan == pytest.approx(slow.makespan - paper.makespan) and found.makespan > 0
    rank, op, microbatch = found.worst
    assert (rank, op) == (1, "F") and 0 <= microbatch < 3
    assert found.seconds == pytest.approx(0.4) and found.waiting == 0
    for row, pair in zip(paper, found.pairs.tolist()):
        same = slow[pair]
        assert (row.rank, row.op, row.stage, row.microbatch) == (
            same.rank, same.op, same.stage, same.microbatch)  # fmt: skip
    assert not found.missing


def test_waiting_is_told_apart_in_a_difference():
    prompt = Ledger([Row(r, "comm", "all_reduce", 3.0, 4.0, arrived=3.0, **BOTH) for r in (0, 1)])
    found = compare(late(), prompt)
    assert found.worst == (0, "all_reduce", -1) and found.seconds == found.waiting == 2.0
    said = timeline(late(), over=prompt).live[1]["heading"]
    assert "This run 5 s, the one in outlines 1 s: 4 s (400%) longer." in said
    assert said.endswith("all_reduce takes 2 s longer than the one in outlines, 2 s of it waiting.")
    same = timeline(late(), over=late()).live[1]["heading"]
    assert same == "This run 5 s, the one in outlines 5 s: equally long. No operation differs."


def test_a_difference_below_one_percent_of_an_operation_is_not_named():
    paper = play(one_f_one_b(2, 3), Costs(1.0, 1.0, 1.0)).ledger
    for forward, words in ((1.009, "differs by less than 1%."), (1.02, "takes 20 ms longer than")):
        slow = play(one_f_one_b(2, 3), Costs([1.0, forward], 1.0, 1.0)).ledger
        assert compare(slow, paper).length == 1.0
        assert words in timeline(slow, over=paper).live[1]["heading"]


def test_a_second_stage_of_a_rank_is_lighter_and_has_its_key():
    keys = {}
    for rule in (zb_v(4, 4), one_f_one_b(2, 4)):
        run = play(rule, Costs(1.0, 1.0, 1.0))
        keys[rule.name] = texts(timeline(run.ledger.where(lane="compute")))
    assert "2nd stage of a rank" in keys["ZB-V"] and "3rd stage of a rank" not in keys["ZB-V"]
    assert "2nd stage of a rank" not in keys["1F1B"]


def test_pieces_of_a_span_are_compared_as_one():
    pieces = Ledger(
        [Row(0, "compute", "forward", 0.0, 1.0), Row(0, "compute", "forward", 2.0, 4.0)]
    )
    whole = Ledger([Row(0, "compute", "F", 0.0, 2.5)], source="predicted")
    found = compare(pieces, whole)
    assert found.worst == (0, "forward", -1) and found.seconds == pytest.approx(0.5)
    assert found.pairs.tolist() == [-1]


def products(*numbers, source="measured", between="relu"):
    """Rank 0 does so many products one after the other, each followed by another operation."""
    rows, clock = [], 0.0
    for seconds in numbers:
        rows += [Row(0, "compute", "mm", clock, clock + seconds)]
        rows += [Row(0, "compute", between, clock + seconds, clock + seconds + 0.1)] * bool(between)
        clock += seconds + 0.1
    return Ledger(rows, source=source)


@pytest.mark.parametrize("between", ["relu", ""])
def test_products_that_have_no_like_are_named_and_not_compared(between):
    """Case 31: eight recorded products were added up and compared with 23 predicted ones."""
    recorded = Ledger(
        [*products(*[1.0] * 8, between=between), Row(0, "compute", "backward", 20.0, 30.0)]
    )
    paper = products(*[1.0] * 23, source="predicted", between=between)
    found = compare(recorded, paper)
    assert ("mm", 8, 23) in [each[1:] for each in found.uneven]
    assert found.worst is None and found.added == ("backward",) and not found.missing
    assert (found.pairs == -1).all()
    said = timeline(recorded, over=paper).live[1]["heading"]
    assert "Not compared: mm on rank 0 (measured 8 ×, predicted 23 ×)" in said
    assert "only measured has backward." in said and "Largest" not in said
    assert said.endswith("No operation is in both as often.")


def test_what_has_its_like_is_compared_beside_what_has_not():
    """Case 31: the operations that both runs have equally often are still paired, row by row."""
    sums = [Row(0, "comm", "all_reduce", t, t + 0.5, number=0, **BOTH) for t in (1.0, 2.0)]
    recorded = Ledger([*products(1.0, 1.0), *sums, Row(0, "compute", "step", 5.0, 6.0)])
    paper = [*products(1.0, 1.0, 1.0), *sums[:1], Row(0, "compute", "step", 7.0, 7.25)]
    found = compare(recorded, Ledger(paper, source="predicted"))
    assert {each.op for each in found.uneven} == {"mm", "relu", "all_reduce"}
    assert found.worst == (0, "step", -1) and found.seconds == pytest.approx(0.75)
    step = [row.op for row in paper].index("step")
    assert [recorded[p].op for p in found.pairs.tolist() if p >= 0] == ["step"]
    assert found.pairs[step] >= 0


def test_pieces_are_one_span_only_where_nothing_lies_between_them():
    """Case 31: with other work between them, two forwards are two, and one is not their like."""
    two = Ledger([Row(0, "compute", "forward", 0.0, 1.0), Row(0, "compute", "step", 1.0, 2.0),
                  Row(0, "compute", "forward", 2.0, 3.0)])  # fmt: skip
    one = Ledger([Row(0, "compute", "F", 0.0, 2.5)], source="predicted")
    found = compare(two, one)
    assert found.uneven == ((0, "forward", 2, 1),) and found.worst is None
    twice = Ledger([Row(0, "compute", "F", 0.0, 1.5), Row(0, "compute", "step", 1.5, 2.5),
                    Row(0, "compute", "F", 3.0, 4.0)], source="predicted")  # fmt: skip
    cut = Ledger([Row(0, "compute", "forward", 0.0, 0.5), *two])
    found = compare(cut, twice)
    assert not found.uneven and found.worst[1] == "forward" and found.seconds == 0.0


def test_ranks_and_operations_that_only_one_run_has_are_told():
    other = Ledger(
        [Row(r, "comm", "broadcast", 0.0, 1.0, members=(1, 2)) for r in (1, 2)], source="predicted"
    )
    lines = timeline(late(), over=other).summary.splitlines()
    assert "  rank 2: predicted rows only, not drawn" in lines
    assert "  rank 0: no predicted rows" in lines
    assert "  predicted only: broadcast" in lines and lines[-1] == "  dashed: predicted"
    alone = timeline(late().where(rank=0)).summary
    assert "rank 1: named by a group, and without a row" in alone


# --- idle, and the critical path


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1])
@pytest.mark.parametrize("send", [0.0, 0.25])
def test_bubble_and_critical_path_agree_with_play(make, send):
    run = play(make(4, 8), Costs(1.0, 1.25, 0.75, send=send))
    found = bubble(run.ledger)
    assert found.share == pytest.approx(run.bubble())
    work = run.work / run.makespan
    assert [found.by_rank[r] for r in range(4)] == pytest.approx((1 - work).tolist())
    path = critical_path(run.ledger)
    assert sum(step.end - step.start for step in path) == pytest.approx(run.makespan)
    assert every(a.end == pytest.approx(b.start) for a, b in zip(path, path[1:]))
    assert not [step for step in path if step.lane == "idle"]  # all is explained


def test_the_critical_path_goes_through_the_rank_that_came_last():
    assert critical_path(late()) == [
        Step(1, "compute", "forward", 0.0, 3.0),
        Step(0, "comm", "all_reduce", 3.0, 4.0),
        Step(0, "compute", "step", 4.0, 5.0),
    ]
    assert bubble(late()).by_rank == pytest.approx({0: 0.6, 1: 0.2})


def test_what_memory_did_before_the_first_row_moves_the_critical_path():
    early = Row(0, "memory", "parameters", -2.0, -2.0, bytes=1)
    moved = critical_path(Ledger([*late(), early]))
    assert [(s.start, s.end) for s in moved] == [(2.0, 5.0), (5.0, 6.0), (6.0, 7.0)]


def test_the_critical_path_follows_a_wait_to_its_operation():
    rows = [
        Row(0, "compute", "forward", 0.0, 1.0),
        Row(0, "comm", "recv", 1.0, 4.0, arrived=3.0, members=(1, 0), number=0, peer=1),
        Row(0, "wait", "recv", 1.0, 4.1, members=(1, 0), number=0, peer=1),
        Row(0, "compute", "backward", 4.1, 5.0),
        Row(1, "compute", "forward", 0.0, 3.0),
        Row(1, "comm", "send", 3.0, 3.9, arrived=3.0, members=(1, 0), number=0, peer=0),
    ]
    path = critical_path(Ledger(rows))
    assert [(s.rank, s.op) for s in path if s.lane != "idle"] == [
        (1, "forward"), (0, "recv"), (0, "backward")]  # fmt: skip
    assert sum(s.end - s.start for s in path if s.lane == "idle") == pytest.approx(0.0, abs=0.11)


def test_what_stood_behind_another_operation_leads_to_that_one():
    rows = [Row(r, "compute", "backward", 0.0, 1.0) for r in (0, 1)]
    rows += [Row(r, "comm", "all_reduce", 0.5, 3.0, arrived=0.5, number=0, **BOTH) for r in (0, 1)]
    rows += [Row(r, "comm", "all_reduce", 1.0, 4.0, arrived=1.0, number=1, **BOTH) for r in (0, 1)]
    path = critical_path(Ledger(rows))
    moving = [(s.start, s.end) for s in path if s.lane == "comm"]
    assert moving == [(0.5, 4.0)] and path[0] == Step(path[0].rank, "compute", "backward", 0.0, 0.5)


# --- too much, and what cannot be


def test_many_rows_are_thinned_and_nothing_is_lost():
    ledger = many(60_000)
    found = read(ledger, range(4), 0.0)
    events = found.events
    assert MOST / 2 < len(events) <= MOST and found.slot > 0
    assert events.count.sum() == 60_000 and events.bytes.sum() == 180_000
    for rank in range(4):
        for code, op in enumerate(found.ops):
            mine = (events.place == rank) & (events.op == code)
            wanted = ledger.where(rank=rank, op=op).column("seconds").sum()
            assert (events.end - events.start)[mine].sum() == pytest.approx(wanted)
        starts, ends = (c[events.place == rank] for c in (events.start, events.end))
        assert (starts[1:] >= ends[:-1] - 1e-12).all()  # no bar over another
    long = ledger.column("seconds")[ledger.column("seconds") > found.slot]
    kept = (events.end - events.start)[events.count == 1]
    assert np.isin(np.round(long, 12), np.round(kept, 12)).all()  # what is long stays as it is


def test_a_thinned_timeline_says_so():
    picture = timeline(many(60_000))
    assert "  thinned: at most 8,000 bars; short neighbours of one operation are one" in (
        picture.summary.splitlines()
    )
    assert picture.live[1]["said"]["thin"].startswith("Thinned: 60,000 rows are ")
    assert "thin" not in timeline(late()).live[1]["said"]


@pytest.mark.quiet
def test_a_million_rows_are_drawn_in_seconds():
    ledger = many(1_000_000, ranks=16)
    start = time.perf_counter()
    picture = timeline(ledger)
    assert picture.live[1]["runs"][0]["n"] <= MOST
    assert time.perf_counter() - start < 30  # 2 s alone


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [Row(3, "compute", "forward", 0.0, 2.0), Row(3, "compute", "step", 1.0, 3.0)],
            "Rank 3 computes two things at once: forward until 2 s, and step from 1 s to 3 s.",
        ),
        ([Row(r, "compute", "step", 0.0, 1.0) for r in range(65)], "choose up to 64 of them"),
        ([Row(0, "memory", "other", 0.0, 0.0, bytes=1)], "There is nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_a_sentence(rows, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        timeline(Ledger(rows))


def test_spans_may_lie_inside_one_another_or_touch():
    spans = [(0.0, 4.0), (1.0, 3.0), (1.0, 2.0), (3.0, 4.0), (4.0, 5.0)]
    timeline(Ledger([Row(0, "compute", f"span {i}", *span) for i, span in enumerate(spans)]))


# --- small and quick


def crowd():
    """16 ranks × 500 events of random lengths, half of them collectives."""
    random, parts = np.random.default_rng(1), []
    for rank in range(16):
        lengths, start = random.gamma(4, 2.5e-4, 250), 0.0
        start = np.cumsum(lengths) - lengths
        waits, moves = random.random(250) * 3e-4, 2e-4 + random.random(250) * 3e-4
        parts.append(Ledger.from_columns(
            rank=rank, lane="compute", op=["forward", "backward"] * 125, start=start,
            end=start + lengths, microbatch=np.arange(250) % 8))  # fmt: skip
        parts.append(Ledger.from_columns(
            rank=rank, lane="comm", op=["all_reduce", "all_gather"] * 125, start=start + 1e-4,
            arrived=start + 1e-4 + waits, end=start + 1e-4 + waits + moves, number=np.arange(250),
            bytes=np.arange(250) % 3 * 4096, group="world", members=tuple(range(16))))  # fmt: skip
    return Ledger.merge(parts)


def test_8000_events_take_less_than_70_kb_in_a_notebook():
    picture = timeline(crowd())
    assert picture.live[1]["runs"][0]["n"] == 8_000
    widget = len(json.dumps(live.packed({"summary": picture.summary} | picture.live[1])))
    png = len(picture.png()) * 4 / 3  # in base64
    assert widget + png < 70_000
    thinned = timeline(many(60_000))
    packed = live.packed({"summary": thinned.summary} | thinned.live[1])
    assert len(json.dumps(packed)) + len(thinned.png()) * 4 / 3 < 60_000


@pytest.mark.quiet
def test_an_ordinary_still_takes_less_than_150_bars_in_matplotlib():
    ledger = play(one_f_one_b(4, 16), Costs(1e-3, 1e-3, 1e-3, send=1e-4)).ledger
    still = pace.seconds(lambda: timeline(ledger).png())
    assert still < 0.75 * pace.seconds(pace.bars)


def test_what_travels_says_when_to_a_part_in_10000():
    data = timeline(crowd()).live[1]
    run, ledger = data["runs"][0], crowd()
    assert data["tick"] * 10_000 <= ledger.makespan
    ends = np.cumsum(np.array(run["gap"][:250]) + np.array(run["length"][:250])) * data["tick"]
    wanted = ledger.where(rank=0, lane="compute").column("end")
    assert ends == pytest.approx(wanted - wanted[0] + ends[0], abs=data["tick"])
