"""Lines of code in the book: the same text, each line with its indentation, names left whole."""

import re

from pygments import highlight
from pygments.lexers import PythonLexer

from lib.course.site.code_lines import CodeLines

CODE = """def f(x):
    if x:

        return torch.cat(parts).detach()[0] + 1.5  # a (long) end...
"""


def test_lines_keep_their_text_and_know_their_indentation():
    html = highlight(CODE, PythonLexer(), CodeLines())
    assert re.sub("<[^>]*>", "", html).rstrip("\n") == CODE.rstrip("\n")
    assert re.findall(r"--indent: (\d+)", html) == ["0", "4", "0", "8"]


def test_a_line_goes_on_behind_a_joint_and_not_inside_a_number():
    html = highlight(CODE, PythonLexer(), CodeLines())
    text = re.sub("<(?!wbr)[^>]*>", "", html)
    assert "torch<wbr>.cat(<wbr>parts)<wbr>.detach()[<wbr>0] + 1.5  # a (<wbr>long) end..." in text
