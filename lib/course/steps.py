"""`make test`: the steps that tell whether everything holds, up to the first that fails."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from lib.course.book import ROOT
from lib.course.chromium import REMEDY, chromium

CELL_SECONDS = 120  # a cell that takes longer has hung
CODE = ["lib", "tests"]
CHAPTERS = ["--line-length", "88", "chapters"]  # narrower: they are read on small screens too

Command = list[str]


def _ruff(*words: str) -> Command:
    return [sys.executable, "-m", "ruff", *words]


def _pytest(*words: str) -> Command:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]


NBVAL = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
SPHINX = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E"]
SPHINX += ["-c", "lib/course/site", "-d", "_build/doctrees", ".", "_build/book"]

BROWSER = "browser"  # the pictures as a reader has them: in JupyterLab and in the book
APART = ("test_house.py", "browser")  # of tests/, in steps of their own
# name -> the commands of that step
STEPS: dict[str, list[Command]] = {
    "lint": [
        _ruff("check", *CODE),
        _ruff("check", *CHAPTERS),
        _ruff("format", "--check", *CODE),
        _ruff("format", "--check", *CHAPTERS),
    ],
    "house rules": [_pytest("tests/test_house.py")],
    "tests": [
        _pytest("tests", *(f"--ignore=tests/{name}" for name in APART), "--durations=10"),
    ],
    "chapters": [_pytest(*NBVAL, "chapters")],
    "book": [SPHINX],
    BROWSER: [_pytest("tests/browser", "--durations=10")],
}
TIDY = [
    _ruff("check", "--fix", *CODE),
    _ruff("check", "--fix", *CHAPTERS),
    _ruff("format", *CODE),
    _ruff("format", *CHAPTERS),
]
COUNTED = ("tests", "failures", "errors", "skipped")


def call(command: Command, counts: dict[str, int]) -> bool:
    """Runs one command from the root and adds what pytest counted; True where it went well."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [*command, f"--junitxml={report}"] if "pytest" in command else command
        code = subprocess.run(words, cwd=ROOT, env=surroundings()).returncode
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                for key in COUNTED:
                    counts[key] += int(suite.get(key, 0))
    return code == 0


def surroundings() -> dict[str, str]:
    """The environment of the steps: the repository's own `lib`, and no word from a debugger."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def summary(counts: dict[str, int], seconds: float) -> str:
    """The last line, as pytest would write it."""
    good = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    words = {"failures": "failed", "skipped": "skipped", "errors": "errors"}
    told = [f"{counts[key]} {word}" for key, word in words.items() if counts[key]]
    return f"{', '.join([f'{good} passed', *told])} in {seconds:.1f}s"


def main(names: list[str]) -> int:
    """Runs the steps called `names`, or all, and stops at the first that fails."""
    if names == ["tidy"]:
        return max([subprocess.run(command, cwd=ROOT).returncode for command in TIDY])
    if unknown := [name for name in names if name not in STEPS]:
        print(f"there is no step {unknown[0]!r}: {', '.join(STEPS)}", file=sys.stderr)
        return 2
    counts, began, times = dict.fromkeys(COUNTED, 0), time.perf_counter(), []
    untried = ""
    for name in names or STEPS:
        print(f"--- {name}", flush=True)
        if name == BROWSER and not chromium():
            untried = f"NOT TRIED: tests/browser, for want of Chromium: {REMEDY}."
            print(untried, flush=True)
            continue
        start = time.perf_counter()
        for command in STEPS[name]:
            if not call(command, counts):
                words = shlex.join(["python", *command[1:]])
                print(f"\nThe step '{name}' failed at: {words}", flush=True)
                print(summary(counts, time.perf_counter() - began))
                return 1
        times.append(f"{name} {time.perf_counter() - start:.0f} s")
    if times:
        print(f"\nEvery step passed: {', '.join(times)}.")
    if untried:
        print(untried)
    if times:
        print(summary(counts, time.perf_counter() - began) if counts["tests"] else "passed")
    return 0 if times else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
