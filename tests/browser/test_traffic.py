"""Traffic, alive: one operation or all, one group or all, and what crosses between nodes."""

import re

import pytest

from lib.draw import traffic
from lib.draw.parts import style
from lib.ledger import Ledger, Row
from tests.browser.same import crowded, same


def mixed(n=8, node=4) -> Ledger:
    """All-gathers inside nodes, all-reduces between, an all-to-all and a pipeline's messages."""
    rows = []
    for r in range(n):
        mates = tuple(range(r // node * node, r // node * node + node))
        twins = tuple(range(r % node, n, node))
        for op, group, members, size in (
            ("all_gather", "tp", mates, 4_000_000),
            ("all_reduce", "dp", twins, 1_000_000),
            ("all_reduce", "tp", mates, 50_000),
            ("all_to_all", "world", tuple(range(n)), 12_250),
        ):
            rows.append(Row(r, "comm", op, 0.0, 1.0, group=group, members=members, bytes=size))
        if r + 1 < n:
            rows.append(Row(r, "comm", "send", 0.0, 1.0, members=(r, r + 1), peer=r + 1, bytes=7))
    return Ledger(rows)


def total(ledger) -> int:
    return sum(route[4] for route in traffic(ledger).live[1]["routes"])


@pytest.mark.parametrize("n", [2, 8, 16, 64])
def test_a_phone_has_room_for_it(bench_page, n):
    assert crowded(bench_page(traffic(mixed(n, 2), node=2), 376)) == []


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "send"])
def test_one_operation_is_what_python_draws_of_it_alone(bench_page, op):
    ledger = mixed()
    seen = bench_page(traffic(ledger), 640)
    seen.control("Operation").select_option(label=op)
    seen.settle()
    alone = ledger.where(op=op)
    assert seen.status.startswith(f"{op}: {total(alone):,} bytes in ")
    ours = [m.about for m in traffic(alone).marks if m.kind == "box" and m.about]
    assert [m["about"] for m in seen.marks if m.get("about")] == ours and len(ours) == 64
    fullest = [m for m in seen.marks if m.get("fill") == list(style.colour(op))]
    assert fullest, "one operation is drawn in its own colour"


def test_one_group_alone_and_both_choices_together(bench_page):
    ledger = mixed()
    seen = bench_page(traffic(ledger), 640)
    assert seen.status.startswith(f"all operations: {total(ledger):,} bytes")
    seen.control("Group").select_option(label="tp")
    seen.settle()
    inside = total(ledger.where(group="tp"))
    assert seen.status.startswith(f"all operations in tp: {inside:,} bytes")
    seen.control("Operation").select_option(label="all_reduce")
    seen.settle()
    both = total(ledger.where(group="tp", op="all_reduce"))
    assert seen.status.startswith(f"all_reduce in tp: {both:,} bytes") and 0 < both < inside
    assert seen.status.endswith("all_reduce: as a ring would move it")


def test_rows_without_a_group_can_be_chosen_too(bench_page):
    seen = bench_page(traffic(mixed()), 640)
    seen.control("Group").select_option(label="no name")
    seen.settle()
    assert seen.status.startswith("all operations in no named group: 49 bytes in 7 messages")


def test_what_crosses_between_nodes_is_told(bench_page):
    ledger = mixed()
    seen = bench_page(traffic(ledger), 640)
    assert "between" not in seen.status
    seen.control("Ranks a node").select_option(label="4")
    seen.settle()
    same(seen, traffic(ledger, node=4))
    told = re.search(r"([\d,]+) inside nodes of 4, ([\d,]+) between nodes", seen.status).groups()
    wanted = re.search(
        r"nodes of 4: ([\d,]+) bytes inside, ([\d,]+) bytes", repr(traffic(ledger, node=4))
    )
    assert told == wanted.groups()
    seen.control("Group").select_option(label="tp")
    seen.settle()
    assert seen.status.splitlines()[0].endswith("inside nodes of 4, 0 between nodes")


def test_hovering_tells_who_whom_and_by_which_operations(bench_page):
    seen = bench_page(traffic(mixed()), 640)
    (cell,) = [m for m in seen.marks if m.get("id") == "0 1"]
    assert seen.hover(cell).splitlines() == [
        "rank 0 to rank 1: 3,076,538 bytes in 11 messages",
        "all_gather in tp × 1: 3,000,000 bytes, 3 messages",
        "all_reduce in tp × 1: 75,000 bytes, 6 messages",
        "all_to_all in world × 1: 1,531 bytes, 1 message",
        "send × 1: 7 bytes, 1 message",
    ]
    assert seen.press("Home").startswith("rank 0 to rank 0: 0 bytes")
    assert seen.press("ArrowDown").startswith("rank 1 to rank 0: ")


def test_a_choice_of_one_is_no_choice(bench_page):
    rows = [Row(r, "comm", "all_reduce", 0.0, 1.0, group="dp", members=(0, 1, 2), bytes=9)
            for r in range(3)]  # fmt: skip
    seen = bench_page(traffic(Ledger(rows)))
    assert seen.node.locator("select:visible").count() == 0
