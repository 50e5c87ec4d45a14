"""What PyTorch reports by itself, and the chapter's stopwatch and prediction."""

import time

import pytest
import torch
import torch.distributed as dist

from lib.course.ranks.lessons import predicted_overlap, seconds_of
from lib.course.ranks.plain_pytorch import Reports, pytorch_reports
from lib.predict.collectives.formulas import time_of
from lib.predict.hardware import gpu, link
from lib.ranks.slow_motion import SlowMotion
from tests.course.stored_chapter import stored_chapter
from tests.every import every


def rank_1_fails(x):
    assert dist.get_rank() != 1, "no data left"
    dist.all_reduce(x)


def rank_0_alone(x):
    if dist.get_rank() == 0:
        dist.all_reduce(x)


def all_come(x):
    dist.all_reduce(x)


def test_gloo_reports_a_broken_connection_at_once_and_a_missing_rank_at_the_limit():
    steps = rank_1_fails, rank_0_alone, all_come
    reports = pytorch_reports(steps, torch.ones(4), ranks=3, seconds=(10, 1, 10))
    failed, alone, fine = reports.by_step.values()
    assert failed[1] == "AssertionError: no data left"
    assert every("Error" in failed[rank] and "no data" not in failed[rank] for rank in (0, 2))
    assert "Timed out waiting 1000ms" in alone[0] and alone[1:] == ["no error"] * 2
    assert fine == ["no error"] * 3
    assert reports.reaction("rank_1_fails") == "an error at once"
    assert reports.reaction("rank_0_alone") == "a wait until the time limit"
    assert reports.reaction("all_come") == "a sum without it"
    assert str(reports).splitlines()[:1] == ["----- rank_1_fails"]
    assert "rank 1  AssertionError: no data left" in str(reports)


def test_which_of_the_waiting_ranks_is_at_its_limit_first_is_not_printed():
    late, closed = "RuntimeError: Timed out", "RuntimeError: Connection closed"
    one, other = [late, closed, late], [closed, late, late]
    assert str(Reports({"wait": one})) == str(Reports({"wait": other}))
    head, report, *note = str(Reports({"wait": one})).splitlines()
    assert report == f"ranks 0, 1, 2  {late}"
    assert every(line.startswith("    ") for line in note)
    assert note[0].strip().startswith("(The course's note, not PyTorch's words:")
    assert "note" not in str(Reports({"wait": [late, "no error"]}))
    broken = Reports({"fail": [closed, "AssertionError: no data", closed]})
    assert str(broken).splitlines()[1:] == [
        f"ranks 0, 2  {closed}",
        "rank 1  AssertionError: no data",
    ]


def test_reports_fit_a_narrow_screen_and_lose_no_word():
    report = "RuntimeError: " + "word " * 40
    lines = str(Reports({"wait": [report, "no error"]})).splitlines()
    assert len(lines) > 4 and every(len(line) <= 44 for line in lines)
    assert " ".join(lines).count("word") == 40


def test_a_report_of_nobody_is_refused():
    with pytest.raises(KeyError):
        Reports({}).reaction("a step that was not run")


def wait_a_little(x):
    time.sleep(0.02)
    assert x.numel() == 250


@pytest.mark.quiet
def test_the_stopwatch_gives_the_seconds_of_a_step(worlds):
    times = worlds(2).run(seconds_of, wait_a_little, 1000, repeats=3)
    assert every(0.02 <= seconds < 0.2 for seconds in times)


def test_the_predicted_overlap_is_the_roofline_and_the_ring():
    speeds = SlowMotion("H100", link="NVLink4", dtype="fp32", factor=10)
    ledger = predicted_overlap(speeds, 4, 1024, 1_000_000)
    nvlink, peak = link("NVLink4"), gpu("H100").peak["fp32"]
    ring = time_of("all_reduce", 4, 4_000_000, alpha=nvlink.alpha, beta=nvlink.beta)
    assert ledger.source == "predicted" and len(ledger) == 8
    assert {row.end for row in ledger.where(lane="compute")} == {2 * 1024**3 / peak}
    assert every(row.end == pytest.approx(ring) for row in ledger.where(lane="comm"))
    assert {row.bytes for row in ledger.where(lane="comm")} == {4_000_000}


def rank_2_leaves_and_others_live_on(x):
    assert dist.get_rank() != 2, "no data left"
    try:
        dist.all_reduce(x)
    except RuntimeError:
        time.sleep(5)
        raise


def test_a_rank_whose_neighbours_live_on_waits_for_the_limit():
    """In gloo's ring of four ranks, rank 0 exchanges messages with ranks 1 and 3 alone."""
    steps = (rank_2_leaves_and_others_live_on,)
    reports = pytorch_reports(steps, torch.ones(4), ranks=4, seconds=(2,))
    (by_rank,) = reports.by_step.values()
    assert "Timed out waiting 2000ms" in by_rank[0]
    assert every("onnection" in by_rank[rank] for rank in (1, 3))  # closed, or reset


def one_call_too_many_on_rank_0(x):
    """As in chapter 0: rank 0 alone gives ones to a call, and then all four sum tens."""
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    total = 10 * torch.ones(4)
    dist.all_reduce(total)
    time.sleep(2)  # a rank that ends here would break the others' connections
    raise ValueError(f"the sum is {total.tolist()}")


def test_a_call_too_many_gives_wrong_sums_and_no_error():
    assert "ranks 1 to 3 get 31 instead of 40" in text_of_chapter()
    reports = pytorch_reports((one_call_too_many_on_rank_0,), torch.ones(4), seconds=10)
    (by_rank,) = reports.by_step.values()
    assert by_rank[1:] == [f"ValueError: the sum is {[31.0] * 4}"] * 3


def text_of_chapter():
    return "\n".join(cell.source for cell in stored_chapter("00-ranks").cells)


def after_a_reduce_the_root_alone_holds_the_sum(x):
    total = x + dist.get_rank()
    dist.reduce(total, dst=0)
    raise ValueError(f"{total.tolist()}")


def test_pytorchs_reduce_leaves_no_zeros_on_the_other_ranks():
    assert (
        "after a reduce, only the root's tensor is defined (the course's makes the others zeros)"
        in text_of_chapter()
    )
    steps = (after_a_reduce_the_root_alone_holds_the_sum,)
    (by_rank,) = pytorch_reports(steps, torch.ones(2), ranks=2, seconds=10).by_step.values()
    assert by_rank[0] == "ValueError: [3.0, 3.0]" and "[0.0, 0.0]" not in by_rank[1]
