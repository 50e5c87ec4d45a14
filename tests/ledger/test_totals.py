"""Totals, text and refusals of the ledger, and how fast it is."""

import json
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from lib.ledger import LANES, NAMES, SOURCES, Ledger, Row, columns
from tests.every import every
from tests.ledger.test_ledger import by_rank, some_rows


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@pytest.fixture(scope="module")
def merged(rows):
    return Ledger.merge(by_rank(rows))


# --- totals


@pytest.mark.parametrize(
    "by",
    [("rank", "op", "group"), ("op",), ("members", "op"), ("lane", "stage"), ("note", "rank"), ()],
)
def test_totals_are_the_sums_of_the_rows(merged, by):
    expected = {}
    for row in merged:
        if row.lane in ("compute", "comm"):
            key = tuple(getattr(row, name) for name in by)
            sums = expected.setdefault(key, [0, 0, 0.0, 0.0, 0.0])
            for i, more in enumerate((1, row.bytes, row.seconds, row.waiting, row.moving)):
                sums[i] += more
    found = merged.totals(by)
    assert [tuple(total.of.values()) for total in found] == sorted(expected)
    for total in found:
        count, size, *times = expected[tuple(total.of.values())]
        assert (total.count, total.bytes) == (count, size)
        assert [total.seconds, total.waiting, total.moving] == pytest.approx(times)


def test_totals_keep_a_wait_from_counting_its_bytes_twice(merged):
    assert len(merged.where(lane="wait")) > 0
    usual = {total["op"]: total.bytes for total in merged.totals("op")}
    comm = {total["op"]: total.bytes for total in merged.totals("op", lanes=("comm",))}
    assert usual["all_reduce"] == comm["all_reduce"] > 0
    assert "forward" in usual and "forward" not in comm
    waits = merged.totals("lane", lanes=("wait",))
    assert [total["lane"] for total in waits] == ["wait"]


def test_bytes_are_added_exactly():
    big = 2**53  # where floating point loses the odd ones
    ledger = Ledger(
        [Row(0, "comm", "send", 0, 1, bytes=big), Row(0, "comm", "send", 0, 1, bytes=1)]
    )
    assert ledger.totals()[0].bytes == big + 1


def test_a_table_prints_the_same_whatever_the_clock_said(rows):
    slower = [
        Row(**{n: getattr(r, n) * (7 if n in ("start", "end") else 1) for n in NAMES}) for r in rows
    ]
    a, b = Ledger.merge(by_rank(rows)), Ledger.merge(by_rank(slower))
    assert str(a.totals()) == repr(b.totals())
    assert a.totals().table(times=True) != b.totals().table(times=True)


def test_a_table_is_aligned():
    ledger = Ledger(
        [
            Row(0, "comm", "all_reduce", 0.0, 2.0, arrived=0.5, group="dp", bytes=1234567),
            Row(10, "comm", "send", 0.0, 1.0, bytes=8),
        ]
    )
    assert str(ledger.totals()) == (
        "rank  op          group  count      bytes\n"
        "   0  all_reduce  dp         1  1,234,567\n"
        "  10  send        -          1          8"
    )
    assert ledger.totals("members").table(times=True) == (
        "members  count      bytes   seconds   waiting    moving\n"
        "-            2  1,234,575  3.000000  0.500000  2.500000"
    )
    assert repr(ledger) == "<Ledger: 2 rows of 2 ranks, measured>"
    assert repr(ledger[:1]) == "<Ledger: 1 row of 1 rank, measured>"


def test_keys_stay_apart_when_columns_are_too_wide_for_64_bits():
    first = np.array([0, 2**24, 0, 2**24])  # times 2**40: a multiple of 2**64, which is 0
    second = np.array([5, 5, 2**40 - 1, 5])
    key = columns.keys([first, second])
    assert key[1] == key[3] and len(set(key.tolist())) == 3


# --- text


def test_json_and_traces_bring_everything_back(merged, tmp_path):
    ledger = Ledger(list(merged), source="predicted", meta={"ranks": 4, "of": ["a", None, 1.5]})
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert Ledger.from_trace(ledger.to_trace()) == ledger
    for name in ("run.json", "run.trace.json"):
        ledger.save(tmp_path / name)
        assert Ledger.load(tmp_path / name) == ledger
    assert "traceEvents" in json.loads((tmp_path / "run.trace.json").read_text())
    assert "columns" in json.loads((tmp_path / "run.json").read_text())
    backwards = ledger[::-1]  # the order of rows is kept, whatever it is
    assert Ledger.from_trace(backwards.to_trace()) == backwards != ledger


def test_json_is_strict_so_that_a_browser_reads_it(merged):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    for text in (merged.to_json(), merged.to_trace()):
        json.loads(text, parse_constant=refuse)


def events(ledger):
    return json.loads(ledger.to_trace())["traceEvents"]


def test_a_trace_has_a_process_a_rank_and_a_thread_a_lane(merged):
    names = {(e["pid"], e["args"]["name"]) for e in events(merged) if e["ph"] == "M"}
    for rank in range(4):
        assert {(rank, f"rank {rank}"), (rank, "compute"), (rank, "wait"), (rank, "comm")} <= names
    slices = [e for e in events(merged) if e["ph"] == "X"]
    for event in slices:
        assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} <= set(event)
    counters = [e for e in events(merged) if e["ph"] == "C"]
    assert len(counters) == len(merged.where(lane="memory"))
    assert every(e["args"] == {"bytes": e["row"]["bytes"]} for e in counters)


def test_slices_of_one_thread_lie_side_by_side_or_inside_one_another(merged):
    """Perfetto draws nothing else rightly; rows of one lane that cross get another thread."""
    threads = {}
    for event in events(merged):
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            threads.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert any(tid > 201 for _, tid in threads), "the rows of this test do cross"
    for spans in threads.values():
        for i, (a, b) in enumerate(spans):
            for c, d in spans[:i]:
                tiny = 1e-6
                apart = b <= c + tiny or d <= a + tiny
                inside = (a >= c - tiny and b <= d + tiny) or (c >= a - tiny and d <= b + tiny)
                assert apart or inside


def test_a_trace_shows_the_wait_inside_the_collective():
    row = Row(0, "comm", "all_reduce", 1.0, 3.0, arrived=2.5, bytes=8)
    outer, inner = (e for e in events(Ledger([row])) if e["ph"] == "X")
    assert (outer["name"], outer["ts"], outer["dur"]) == ("all_reduce", 1e6, 2e6)
    assert (inner["name"], inner["ts"], inner["dur"]) == ("waiting", 1e6, 1.5e6)


# --- refusals


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"end": [1.0, -1.0]}, "Row 1 (rank 1, mm) ends at -1.0 s, before it starts at 0.0 s."),
        ({"end": [1.0, math.nan]}, "Row 1 (rank 1, mm) ends at nan s"),
        ({"end": [1.0, math.inf]}, "Row 1 (rank 1, mm) ends at inf"),
        ({"start": [math.nan, 0.0]}, "Row 0 (rank 0, mm) starts at nan"),
        (
            {"lane": "compue"},
            "is in lane 'compue', but a lane is one of compute, wait, comm, memory.",
        ),
        ({"rank": [0, -1]}, "Row 1 (rank -1, mm) has a rank below 0"),
        ({"rank": [0, 0.5]}, "Column 'rank' must hold whole numbers"),
        ({"bytes": [0, -8]}, "has -8 bytes, but a size must be at least 0."),
        ({"bytes": [0, 1, 2]}, "equally long"),
        ({"start": np.zeros((2, 2))}, "Column 'start' has 2 dims"),
        ({"colour": "red"}, "A ledger has no column 'colour'. Its columns are rank, lane"),
        ({"source": "guessed"}, "predicted, slow motion, measured, not 'guessed'"),
    ],
)
def test_bad_rows_are_refused_in_a_sentence(columns, words):
    good = {"rank": [0, 1], "lane": "compute", "op": "mm", "start": [0.0, 0.0], "end": [1.0, 1.0]}
    assert len(Ledger.from_columns(**good)) == 2
    with pytest.raises(ValueError, match=re.escape(words)):
        Ledger.from_columns(**(good | columns))


def test_other_refusals(rows):
    one = Ledger(rows[:1])
    for call, words in [
        (lambda: Ledger.from_columns(op="mm", start=0, end=1), "Every row needs rank, lane."),
        (lambda: one.where(ranks=0), "A ledger has no column 'ranks'"),
        (lambda: one.column("duration"), "A ledger has no column 'duration'"),
        (lambda: one.totals("kind"), "A ledger has no column 'kind'"),
        (lambda: one.totals(lanes=("memory",)), "cannot be added up"),
        (lambda: Ledger.merge([one, one], [0.0]), "There are 2 ledgers and 1 offsets."),
        (lambda: Ledger.merge([one, Ledger(source="predicted")]), "measured and predicted"),
        (lambda: Ledger.from_json("[1]"), "This JSON is not a ledger"),
        (lambda: Ledger.from_trace('{"traceEvents": []}'), "not written by a ledger"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            call()
    assert LANES == ("compute", "wait", "comm", "memory")
    assert SOURCES == ("predicted", "slow motion", "measured")


# --- speed and floors


@pytest.mark.quiet
def test_a_million_rows_are_merged_and_added_up_in_two_seconds():
    """Best of three, for a noisy machine; about 0.25 s measured on two cores."""
    ranks, each = 8, 125_000
    ops = [
        "mm",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "send",
        "recv",
        "forward",
        "backward",
    ]
    i = np.arange(each)
    parts = []
    for rank in range(ranks):
        start = np.sort(np.random.default_rng(rank).random(each))
        parts.append(
            Ledger.from_columns(
                rank=rank, start=start, end=start + 1e-6, number=i // 8, bytes=1024, group="world",
                op=[ops[k] for k in (i % 8).tolist()], members=tuple(range(ranks)),
                lane=["comm" if 1 <= k <= 5 else "compute" for k in (i % 8).tolist()],
            )
        )  # fmt: skip
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        totals = Ledger.merge(parts).totals()
        best = min(best, time.perf_counter() - began)
    assert len(totals) == ranks * len(ops)
    assert sum(total.count for total in totals) == ranks * each
    assert best < 2.0


@pytest.mark.quiet
def test_ten_times_the_rows_take_about_ten_times_as_long():
    """Something quadratic would take a hundred times; bounded at thirty, best of three."""

    def seconds(each):
        start = np.linspace(0, 1, each)
        parts = [
            Ledger.from_columns(rank=r, lane="comm", op="send", start=start, end=start + 1,
                                number=np.arange(each), members=(0, 1)) for r in (0, 1)
        ]  # fmt: skip
        times = []
        for _ in range(3):
            began = time.perf_counter()
            Ledger.merge(parts).totals()
            times.append(time.perf_counter() - began)
        return min(times)

    assert seconds(200_000) < 30 * seconds(20_000)


def test_torch_stays_out():
    code = (
        "import sys, lib.ledger, lib.predict.collectives.formulas, lib.predict.hardware;"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
