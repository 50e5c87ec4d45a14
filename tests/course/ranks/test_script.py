"""The whole script that chapter 0 prints, started as it says."""

import re
import subprocess
import sys

from tests.course.stored_chapter import chapter_fixtures

notebook, text = chapter_fixtures("00-ranks")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_the_script_gives_every_rank_the_sum(text, tmp_path):
    fold = text.partition("<summary>A whole script for torchrun</summary>")[2]
    program = re.search(r"```python\n(.*?)```", fold, re.DOTALL)[1]
    options = re.search(r"`torchrun (.*?) script.py`", fold)[1].split()
    (tmp_path / "script.py").write_text(program)
    command = [*TORCHRUN, *options, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[6.0, 6.0, 6.0]") == 4  # lines of two ranks may run into each other
    assert "prints its number and the sum, 6;" in fold
