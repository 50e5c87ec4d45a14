"""The ledger: rows in, rows out; merged as plain Python would merge them; quick; in words."""

import math
import random

import numpy as np
import pytest

from lib.ledger import NAMES, Ledger, Row
from tests.every import every


def some_rows(seed=0, ranks=4, steps=12):
    """What four ranks do in a dozen steps: spans, waits, collectives of two groups, messages."""
    rng = random.Random(seed)
    rows = []
    for rank in range(ranks):
        clock = 100 + rng.random()
        pair = tuple(r for r in range(ranks) if r % 2 == rank % 2)
        for step in range(steps):
            end = clock + rng.random()
            rows.append(Row(rank, "compute", "forward", clock, end, stage=rank, microbatch=step))
            done = end + rng.random()
            rows.append(
                Row(rank, "comm", "all_reduce", end, done, group="world",
                    members=tuple(range(ranks)), number=step, bytes=64 * (step + 1))
            )  # fmt: skip
            rows.append(
                Row(rank, "comm", "all_gather", end, done + 1, group="dp", members=pair,
                    number=step, bytes=32, note="ring" if step % 3 else "",
                    parts=(20, 12) if step % 2 else ())
            )  # fmt: skip
            rows.append(Row(rank, "wait", "all_reduce", end, done, bytes=64 * (step + 1)))
            rows.append(Row(rank, "memory", "parameters", done, done, bytes=1000 + step))
            clock = done
    for number in range(3):
        rows.append(Row(0, "comm", "send", 101 + number, 103.0 + number, members=(0, 1),
                        number=number, bytes=8, peer=1, group="world"))  # fmt: skip
        rows.append(Row(1, "comm", "recv", 102 + number, 103.5 + number, members=(0, 1),
                        number=number, bytes=8, peer=0, group="world"))  # fmt: skip
    return rows


def by_rank(rows):
    return [
        Ledger([row for row in rows if row.rank == rank]) for rank in sorted({r.rank for r in rows})
    ]


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@pytest.fixture(scope="module")
def merged(rows):
    return Ledger.merge(by_rank(rows))


# --- rows and columns


def test_what_goes_in_comes_out(rows):
    ledger = Ledger(rows)
    assert list(ledger) == rows
    assert (len(ledger), ledger[0], ledger[-1], ledger[7]) == (
        len(rows),
        rows[0],
        rows[-1],
        rows[7],
    )
    assert list(ledger[3:9:2]) == rows[3:9:2]
    assert list(ledger[ledger.column("rank") == 2]) == [row for row in rows if row.rank == 2]
    assert rows[5] in ledger and Row(9, "compute", "mm", 0, 1) not in ledger
    for name in set(NAMES) - {"arrived"}:
        assert ledger.column(name).tolist() == [getattr(row, name) for row in rows]
    assert np.isnan(ledger.column("arrived")).all()
    with pytest.raises(IndexError):
        ledger[len(rows)]


def test_rows_hold_plain_python_values(rows):
    row = Ledger(rows)[1]
    kinds = {name: type(getattr(row, name)) for name in NAMES}
    assert kinds == {
        name: int if name in ("rank", "number", "bytes", "peer", "stage", "microbatch")
        else float if name in ("start", "end", "arrived")
        else tuple if name in ("members", "parts") else str
        for name in NAMES
    }  # fmt: skip


def test_rows_that_do_not_know_when_the_last_rank_came_are_equal():
    mine = Row(0, "comm", "send", 0.0, 1.0, arrived=float("nan"))
    assert mine == Row(0, "comm", "send", 0.0, 1.0) and hash(mine) == hash(mine)
    assert mine != Row(0, "comm", "send", 0.0, 1.0, arrived=0.5)
    assert mine != Row(0, "comm", "send", 0.0, 1.0, note="ring")


def test_columns_one_value_stands_for_all():
    ledger = Ledger.from_columns(
        rank=np.arange(3),
        lane="comm",
        op=["send", "recv", "send"],
        start=0,
        end=[1, 2, 3.5],
        members=(0, 1),
    )
    assert list(ledger) == [
        Row(0, "comm", "send", 0.0, 1.0, members=(0, 1)),
        Row(1, "comm", "recv", 0.0, 2.0, members=(0, 1)),
        Row(2, "comm", "send", 0.0, 3.5, members=(0, 1)),
    ]
    each = Ledger.from_columns(
        rank=[0, 1], lane="comm", op="send", start=0, end=1, members=[(0,), [1, 2]]
    )
    assert [row.members for row in each] == [(0,), (1, 2)]
    assert list(Ledger.from_columns(rank=0, lane="wait", op="x", start=0, end=0)) == [
        Row(0, "wait", "x", 0.0, 0.0)
    ]


def test_an_empty_ledger_answers_everything():
    for empty in (Ledger(), Ledger.from_columns(), Ledger.merge([]), Ledger.merge([Ledger()])):
        assert (len(empty), list(empty), empty.ranks, empty.makespan) == (0, [], (), 0.0)
        assert empty.totals() == [] and str(empty.totals()) == "no rows"
        assert Ledger.from_json(empty.to_json()) == Ledger.from_trace(empty.to_trace()) == empty
        assert len(empty.where(op="mm")) == 0 == len(empty.to_numpy()) == len(empty.column("op"))


def test_where_keeps_what_matches(rows):
    ledger = Ledger(rows, meta={"chapter": 0})
    for wanted, test in [
        ({"lane": "comm", "op": "all_reduce", "rank": 0},
         lambda r: r.lane == "comm" and r.op == "all_reduce" and r.rank == 0),
        ({"op": ["send", "recv"]}, lambda r: r.op in ("send", "recv")),
        ({"rank": {1, 3}, "lane": "memory"}, lambda r: r.rank in (1, 3) and r.lane == "memory"),
        ({"members": (0, 2)}, lambda r: r.members == (0, 2)),
        ({"members": [(0, 2), (0, 1)]}, lambda r: r.members in ((0, 2), (0, 1))),
        ({"microbatch": range(3)}, lambda r: r.microbatch in range(3)),
        ({"op": "nothing"}, lambda r: False),
    ]:  # fmt: skip
        assert list(ledger.where(**wanted)) == [row for row in rows if test(row)]
    assert ledger.where(rank=1).meta == {"chapter": 0}


def test_nobody_can_write_into_a_ledger_through_a_column(rows):
    ledger = Ledger(rows)
    with pytest.raises(ValueError):
        ledger.column("start")[0] = 5.0
    with pytest.raises(ValueError):
        ledger[:4].column("bytes")[0] = 5
    mine = np.zeros(2)
    Ledger.from_columns(rank=[0, 1], lane="wait", op="x", start=mine, end=1.0)
    mine[0] = 7.0  # the caller's own array stays the caller's


def test_to_numpy_has_all_fields(rows):
    table = Ledger(rows).to_numpy()
    assert table.dtype.names == NAMES
    assert table["op"].tolist() == [row.op for row in rows]
    assert table["members"][1] == rows[1].members
    assert table["bytes"].sum() == sum(row.bytes for row in rows)


# --- merging


def plainly_merged(rows, offset=lambda rank: 0.0):
    """Merge in plain Python: shift, find each operation's last launch, sort by start."""
    first = min(row.start + offset(row.rank) for row in rows)
    launches = {}
    for row in rows:
        if row.lane == "comm":
            kind = "message" if row.op in ("send", "recv") else row.op
            key = row.group, row.members, kind, row.number
            launches.setdefault(key, {})[row.rank] = row.start + offset(row.rank)
    out = []
    for row in rows:
        shift = offset(row.rank) - first
        kind = "message" if row.op in ("send", "recv") else row.op
        seen = launches.get((row.group, row.members, kind, row.number), {})
        whole = row.lane == "comm" and row.members and set(seen) == set(row.members)
        values = {name: getattr(row, name) for name in NAMES}
        values |= {"start": row.start + shift, "end": row.end + shift}
        values["arrived"] = max(seen.values()) - first if whole else math.nan
        out.append(Row(**values))
    return sorted(out, key=lambda row: (row.start, row.rank))


def close(a, b):
    for name in NAMES:
        x, y = getattr(a, name), getattr(b, name)
        same = x == y or (
            isinstance(x, float) and (x == pytest.approx(y, abs=1e-9) or x != x and y != y)
        )
        if not same:
            return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_merge_is_what_plain_python_would_do(seed):
    rows = some_rows(seed)
    merged = Ledger.merge(by_rank(rows))
    expected = plainly_merged(rows)
    assert len(merged) == len(expected)
    assert every(close(a, b) for a, b in zip(merged, expected))
    assert merged[0].start == 0.0
    assert not np.isnan(merged.where(lane="comm").column("arrived")).any()
    assert np.isnan(merged.where(lane=["compute", "wait", "memory"]).column("arrived")).all()


def test_merge_shifts_each_ledger_by_its_offset(rows):
    offsets = [0.0, -3.0, 2.5, 10.0]
    merged = Ledger.merge(by_rank(rows), offsets)
    expected = plainly_merged(rows, lambda rank: offsets[rank])
    assert every(close(a, b) for a, b in zip(merged, expected))


def test_without_all_members_nobody_knows_who_came_last(rows):
    partial = Ledger.merge(by_rank(rows)[:3])
    world = partial.where(op="all_reduce", lane="comm")
    assert np.isnan(world.column("arrived")).all(), "rank 3 is missing"
    assert not np.isnan(partial.where(group="dp", members=(0, 2)).column("arrived")).any()
    assert np.isnan(partial.where(group="dp", members=(1, 3)).column("arrived")).all()


def test_waiting_and_moving():
    late = [
        Ledger([Row(0, "comm", "all_reduce", 1.0, 5.0, members=(0, 1), number=0)]),
        Ledger([Row(1, "comm", "all_reduce", 4.0, 5.5, members=(0, 1), number=0)]),
    ]
    first, last = Ledger.merge(late)
    assert (first.seconds, first.waiting, first.moving) == (4.0, 3.0, 1.0)
    assert (last.seconds, last.waiting, last.moving) == (1.5, 0.0, 1.5)
    # A send that leaves before its receiver comes has ended when the receiver arrives.
    early = Row(0, "comm", "send", 0.0, 1.0, arrived=3.0)
    assert (early.waiting, early.moving) == (1.0, 0.0)
    mm = Row(0, "compute", "mm", 0.0, 1.0)
    assert (mm.seconds, mm.waiting, mm.moving) == (1.0, 0.0, 0.0)


def test_durations_as_columns_are_those_of_the_rows(merged):
    for name in ("seconds", "waiting", "moving"):
        assert merged.column(name).tolist() == [getattr(row, name) for row in merged]
    assert merged.column("waiting").sum() > 1


def test_a_second_group_of_the_same_name_has_operations_of_its_own():
    """A group made anew counts from 0 again: each rank's k-th belongs to the others' k-th."""

    def rank(r, *starts):
        return Ledger(
            [
                Row(r, "comm", "all_reduce", s, s + 9, group="dp", members=(0, 1), number=0)
                for s in starts
            ]
        )

    merged = Ledger.merge([rank(0, 0.0, 20.0), rank(1, 3.0, 15.0)])
    assert merged.column("arrived").tolist() == [3.0, 3.0, 20.0, 20.0]


def test_the_same_number_elsewhere_is_another_operation():
    def one(r, **other):
        named = {"group": "dp", "members": (0, 1), "number": 0, "op": "all_reduce"} | other
        return Ledger([Row(r, "comm", start=float(r), end=9.0, **named)])

    assert not np.isnan(Ledger.merge([one(0), one(1)]).column("arrived")).any()
    for other in ({"group": "tp"}, {"members": (1, 2)}, {"number": 1}, {"op": "all_gather"}):
        assert np.isnan(Ledger.merge([one(0), one(1, **other)]).column("arrived")).all()


def test_what_is_known_already_is_kept():
    """Slow motion knows when the last rank would have come on the chosen hardware."""
    named = {"arrived": 4.5, "members": (0, 1), "number": 0}
    parts = [Ledger([Row(r, "comm", "all_reduce", 2.0 + r, 5.0, **named)]) for r in (0, 1)]
    assert Ledger.merge(parts).column("arrived").tolist() == [2.5, 2.5], "on the new clock"


def test_merge_keeps_results_and_meta():
    parts = [
        Ledger(results=[f"rank {r}"], meta={"ranks": 2, r: True}, source="slow motion")
        for r in range(2)
    ]
    merged = Ledger.merge(parts)
    assert merged.results == ["rank 0", "rank 1"]
    assert merged.meta == {"ranks": 2, 0: True, 1: True}
    assert merged.source == "slow motion" and Ledger.merge([Ledger()]).results is None


def test_makespan_and_ranks(rows, merged):
    assert merged.ranks == (0, 1, 2, 3)
    span = max(row.end for row in rows) - min(row.start for row in rows)
    assert merged.makespan == pytest.approx(span) and span > 0
