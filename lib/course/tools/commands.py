"""The commands of `make test`: how each is called, and which of its tests failed."""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lib.course.tools.book import ROOT
from lib.course.tools.run import CELL_SECONDS

Command = list[str]
NBVAL = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
NBVAL += ["-p", "tests.solutions"]  # then the folded solutions, in the same kernel
SOME_FAILED, INTERRUPTED = 1, 2  # pytest's exit statuses
COUNTED = ("tests", "failures", "errors", "skipped")


def ruff(*words: str) -> Command:
    """Give the command that calls ruff with these words."""
    return [sys.executable, "-m", "ruff", *words]


def pytest(*words: str) -> Command:
    """Give the command that calls pytest with these words."""
    return [sys.executable, "-m", "pytest", "-q", *words]


@dataclass
class Outcome:
    """How one command went: its exit status, what pytest counted, and which tests failed."""

    status: int
    counts: Counter = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False  # by Ctrl-C, or by a test that took a signal for one

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return self.status == 0

    @property
    def ended(self) -> str:
        """How it ended, in words, where no failed test says it."""
        if self.status in (0, SOME_FAILED):
            return ""
        return f" (exit status {self.status}{', interrupted' * self.interrupted})"

    def passed_alone(self) -> None:
        """Count what failed as passed."""
        self.status = 0
        self.counts.update({"failures": -self.counts["failures"], "errors": -self.counts["errors"]})


def call(command: Command, environ: dict[str, str], output=None) -> Outcome:
    """Run one command from the root; its words go to `output`, a file, if given."""
    with tempfile.TemporaryDirectory() as folder:
        report, cache = Path(folder) / "report.xml", Path(folder) / "cache"
        notes = [f"--junitxml={report}", "-o", f"cache_dir={cache}"]
        words = [*command, *notes] if "pytest" in command else command
        streams = {"stdout": output, "stderr": subprocess.STDOUT} if output else {}
        status = subprocess.run(words, cwd=ROOT, env=environ, **streams).returncode
        interrupted = "pytest" in command and status == INTERRUPTED  # others mean more by it
        outcome = Outcome(status, interrupted=interrupted)
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                outcome.counts.update({key: int(suite.get(key, 0)) for key in COUNTED})
        failed = cache / "v/cache/lastfailed"
        if status == SOME_FAILED and failed.exists():
            outcome.failed = list(json.loads(failed.read_text()))
    return outcome


def alone(command: Command, failed: list[str]) -> Command:
    """Give the command that tries these tests again; of a chapter all cells: they share names."""
    if "--nbval" in command:
        return pytest(*NBVAL, *sorted({name.split("::")[0] for name in failed}))
    return pytest(*failed)
