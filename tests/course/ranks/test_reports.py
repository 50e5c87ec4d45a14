"""What chapter 0 shows of ranks that fail: World's reports, and PyTorch's own."""

import re

from tests.course.stored_chapter import chapter_fixtures, shown
from tests.every import every

notebook, _ = chapter_fixtures("00-ranks")


def test_three_lost_ranks_are_told_and_the_ranks_live(notebook):
    text = shown(notebook, "def no_data_on_rank_2")
    assert "rank 2 raised AssertionError: no data left" in text
    assert "ranks 0, 1 and 3 were left waiting in all_reduce" in text
    assert "rank 0 waits for ever" in text and "they wait for each other" in text
    *reports, end = text.split("----- ")[1:]
    reports.append(end.partition("The ranks keep")[0])
    assert len(reports) == 3
    assert every(report.rstrip().endswith(".") for report in reports)
    assert text.count("The ranks keep what you made on them.") == 1  # once for all three
    assert text.index("The ranks keep what you made on them.") > text.index("all_send_first")
    assert "The next call works; build a" in text and "again before you use it." in text
    assert "still alive: ranks [0, 1, 2, 3]" in text.splitlines()


def test_pytorch_alone_blames_a_connection_and_waits_for_its_limit(notebook):
    shown_text = shown(notebook, "pytorch_reports")
    text = re.sub(r"\n {4}", " ", shown_text)  # lines are wrapped
    question, answer, *reports = shown_text.splitlines()
    assert len(reports) > 15 and max(map(len, reports)) <= 44
    assert question.startswith("gloo, ") and answer == "It is an error at once."
    (cell,) = [c for c in notebook.cells if "pytorch_reports" in c.source]
    (output,) = cell.outputs  # the answer covers the reports
    assert "<pre>----- no_data_on_rank_2" in output.data["text/html"].partition("<summary>")[2]
    failed, alone, sends = text.split("----- ")[1:]
    assert "rank 2  AssertionError: no data left" in failed
    assert "ranks 0, 1, 3  RuntimeError" in failed and "Connection closed by peer" in failed
    assert "rank 0  RuntimeError" in alone and "Timed out waiting 2000ms" in alone
    assert "ranks 1, 2, 3  no error" in alone
    assert "ranks 0, 1, 2, 3  RuntimeError" in sends and "Timed out waiting 2000ms" in sends
    assert "(The course's note, not PyTorch's words:" in sends
