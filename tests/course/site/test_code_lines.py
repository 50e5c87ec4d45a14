"""Code in the book: the same text, each line with its indentation, names broken between words."""

import re
from html import unescape

import pytest
from pygments import highlight
from pygments.lexers import PythonLexer

from lib.course.site.code_lines import CodeLines, breakable

CODE = """def f(x):
    if x:

        return torch.cat(parts).detach()[0] + 1.5  # a (long) end...
"""


def test_lines_keep_their_text_and_know_their_indentation():
    html = highlight(CODE, PythonLexer(), CodeLines())
    assert re.sub("<[^>]*>", "", html).rstrip("\n") == CODE.rstrip("\n")
    assert re.findall(r"--indent: (\d+)", html) == ["0", "4", "0", "8"]


def joints(code):
    html = highlight(code, PythonLexer(), CodeLines())
    return unescape(re.sub("<(?!wbr)[^>]*>", "", html)).replace("<wbr>", "|").strip()


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        ('print("still alive", world.run(ranks))', 'print("still alive", world.run(ranks))'),
        ("x = f(torch.cat(parts).detach()[0].flatten())", None),
        (" " * 12 + "x = torch.cat(parts)[0] + 1.5", "x = torch.cat(|parts)[|0] + 1.5"),
        (
            "a = abcdefghijklm.abcdefghijklm.abcdefghijklm(first[0])",
            "a = abcdefghijklm|.abcdefghijklm|.abcdefghijklm(|first[|0])",
        ),
        ('x["' + '"' * 12 + '"]', None),  # quotes are one letter each, however HTML writes them
        ("f(abcdefghijklmnopqrstuvwxyz1.25)", "f(|abcdefghijklmnopqrstuvwxyz1.25)"),
    ],
)
def test_a_word_goes_on_below_only_where_it_has_no_room(code, broken):
    """Where brackets are enough, a name keeps its dots."""
    if broken is None:
        broken = code.replace("f(t", "f(|t").replace("cat(p", "cat(|p").replace("[0", "[|0")
    assert joints(code) == broken


def test_a_long_name_goes_on_below_between_its_words_and_a_short_one_stays_whole():
    names = "ShardedGradScaler all_reduce ScheduleZBVZeroBubble lib/ranks/slow/"
    names += " ScheduleInterleaved1F1B Float16Optimizer f(x,1.5)/2.25 --a-long-flag"
    html = "".join(f'<code><span class="pre">{name}</span></code>' for name in names.split())
    parts = [part.split("<wbr>") for part in re.findall(r'"pre">(.*?)</span>', breakable(html))]
    assert parts == [
        ["Sharded", "Grad", "Scaler"],
        ["all_reduce"],
        ["Schedule", "ZBV", "Zero", "Bubble"],
        ["lib/", "ranks/", "slow/"],
        ["Schedule", "Interleaved", "1F1B"],
        ["Float16", "Optimizer"],
        ["f(", "x,1.5)/2.25"],
        ["--a-", "long-", "flag"],
    ]
    assert breakable("<p>ShardedGradScaler</p>") == "<p>ShardedGradScaler</p>"
    assert breakable("<h2>Run it (12 min)</h2>") == "<h2>Run it (12&nbsp;min)</h2>"
    assert breakable("<p>in 5 min</p>") == "<p>in 5 min</p>"
    assert re.sub("<wbr>", "", breakable(html)) == html
