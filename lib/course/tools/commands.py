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
COUNTED = ("tests", "failures", "errors", "skipped")


def ruff(*words: str) -> Command:
    """Give the command that calls ruff with these words."""
    return [sys.executable, "-m", "ruff", *words]


def pytest(*words: str) -> Command:
    """Give the command that calls pytest with these words."""
    return [sys.executable, "-m", "pytest", "-q", *words]


@dataclass
class Outcome:
    """How one command went: what pytest counted, and the names of the tests that failed."""

    good: bool
    counts: Counter = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def passed_alone(self) -> None:
        """Count what failed as passed."""
        self.good = True
        self.counts.update({"failures": -self.counts["failures"], "errors": -self.counts["errors"]})


def call(command: Command, environ: dict[str, str], output=None) -> Outcome:
    """Run one command from the root; its words go to `output`, a file, if given."""
    with tempfile.TemporaryDirectory() as folder:
        report, cache = Path(folder) / "report.xml", Path(folder) / "cache"
        notes = [f"--junitxml={report}", "-o", f"cache_dir={cache}"]
        words = [*command, *notes] if "pytest" in command else command
        streams = {"stdout": output, "stderr": subprocess.STDOUT} if output else {}
        code = subprocess.run(words, cwd=ROOT, env=environ, **streams).returncode
        outcome = Outcome(code == 0)
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                outcome.counts.update({key: int(suite.get(key, 0)) for key in COUNTED})
        failed = cache / "v/cache/lastfailed"
        if code == 1 and failed.exists():  # 1: tests ran, and some failed
            outcome.failed = list(json.loads(failed.read_text()))
    return outcome


def alone(command: Command, failed: list[str]) -> Command:
    """Give the command that tries these tests again; of a chapter all cells: they share names."""
    if "--nbval" in command:
        return pytest(*NBVAL, *sorted({name.split("::")[0] for name in failed}))
    return pytest(*failed)
