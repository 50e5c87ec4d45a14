"""The whole script that chapter 0 prints, started as it says."""

import os
import re
import subprocess
import sys

import pytest

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


WAITING = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=6))
rank, x = dist.get_rank(), torch.ones(4)
try:
    if sys.argv[1] == "if":
        if rank == 0:
            dist.all_reduce(x)
    else:
        dist.send(x, (rank + 1) % 4)
        dist.recv(x, (rank - 1) % 4)
except RuntimeError as error:
    open(f"{rank}.txt", "w").write(str(error))
time.sleep(8)
"""


FAILING = """
import sys
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

def main():
    dist.init_process_group("gloo")
    assert dist.get_rank() != 2, "no data left"
    dist.barrier()

(record(main) if sys.argv[1] == "record" else main)()
"""


@pytest.mark.parametrize("way", ["record", "plain"])
def test_torchrun_names_the_failed_rank_and_with_record_its_exception(text, tmp_path, way):
    assert "so that `torchrun` can print the failed rank's exception under `Root Cause`" in text
    assert "`@record`, imported from `torch.distributed.elastic.multiprocessing.errors`" in text
    (tmp_path / "script.py").write_text(FAILING)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "4", "script.py", way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    cause = done.stderr.partition("Root Cause (first observed failure):")[2]
    assert "rank      : 2 (local_rank: 2)" in cause
    assert ("AssertionError: no data left" in cause) == (way == "record"), cause


@pytest.mark.parametrize("mistake, reported", [("if", True), ("send", False)])
def test_pytorchs_detail_names_ranks_missing_from_a_collective_only(
    text, tmp_path, mistake, reported
):
    assert "A second run with `TORCH_DISTRIBUTED_DEBUG=DETAIL` then names the ranks missing" in text
    assert "but it does not check sends and receives" in text
    (tmp_path / "script.py").write_text(WAITING)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "4", "script.py", mistake]
    detail = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    subprocess.run(command, cwd=tmp_path, env=detail, capture_output=True, timeout=200)
    error = (tmp_path / "0.txt").read_text()
    named = "Ranks 1, 2, 3 failed to pass monitoredBarrier" in error
    assert named == reported, error
    assert named or "Timed out" in error or "Connection closed" in error
