"""`make test`: the steps that tell whether everything holds.

[Note: side by side]
A test of ranks waits about as long as it computes, and a browser waits most of the time. So the
steps named in `BESIDE` run beside one another, as many at a time as the machine has cores, and at
least two. What compares times is marked `quiet`. It runs alone after them and is tried up to four
times, since the machine may have others on it whom nobody here sees.

[Note: alone]
What fails while others run beside it is tried once more alone, at most `FEW` tests of a command.
What passes then is named in the last lines: the test or the code has a race that somebody should
find. It fails the run no more, or one race in twelve thousand tests would hide all the others.

`make test ONLY=pipeline` tries what is called so: the tests and the chapter of one family.
"""

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from lib.course.tools.book import ROOT
from lib.course.tools.chromium import REMEDY, chromium
from lib.course.tools.commands import NBVAL, Command, Outcome, alone, call, pytest, ruff
from lib.ranks.gpus.devices import accelerator

CODE, TESTS = ["lib", "tests"], ROOT / "tests"
CHAPTERS = ["--line-length", "88", "chapters"]  # narrower: they are read on small screens too


# What stands in a test file that asks for ranks of no device, or looks whether there are GPUs.
_FOR_GPUS = re.compile(r"worlds|PRETENDED|accelerator\(\)|on_gpus\.WANTED")


def _on_gpus() -> list[str]:
    """The test files that `make test-gpu` runs on GPUs."""
    files = [file for file in TESTS.rglob("test_*.py") if _FOR_GPUS.search(file.read_text("utf-8"))]
    return sorted(str(file.relative_to(ROOT)) for file in files)


SPHINX = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E"]
SPHINX += ["-c", "lib/course/site", "-d", "_build/doctrees", ".", "_build/book"]

BROWSER = "browser"  # the pictures as a reader has them: in JupyterLab and in the book
QUIET = "quiet"  # what compares times: nothing may run beside it
GPUS = "gpus"  # ranks and chapters on four pretended GPUs: tests/pretend/README.md
HOUSE = [f"tests/test_house{part}.py" for part in ("", "_text", "_words")]
APART = [f"--ignore={name}" for name in HOUSE]
APART += [
    f"--ignore=tests/{name}" for name in ("browser", "test_pretend.py", "test_chapters_on_gpus.py")
]
ON_GPUS = ["test_pretend", "test_chapters_on_gpus", "ranks/test_failures", "ranks/test_stop_button"]
ON_GPUS += ["ranks/test_collectives", "ranks/observed/test_messages", "parallel/data/test_ddp"]
ON_GPUS += ["parallel/pipeline/test_runtime", "parallel/pipeline/test_runtime_oracle"]
ON_GPUS += ["ranks/test_calibrate"]
BUILD = [sys.executable, "tests/pretend/build.py"]
COMPILER = "install one (Debian, Ubuntu: sudo apt install g++)"
# name -> the commands of that step
STEPS: dict[str, list[Command]] = {
    "lint": [
        ruff("check", *CODE),
        ruff("check", *CHAPTERS),
        ruff("format", "--check", *CODE),
        ruff("format", "--check", *CHAPTERS),
    ],
    "house rules": [pytest(*HOUSE)],
    "tests": [pytest("tests", *APART, "-m", "not quiet", "--durations=10")],
    "chapters": [pytest(*NBVAL, "chapters")],
    "book": [SPHINX],
    GPUS: [
        BUILD,
        pytest(*(f"tests/{name}.py" for name in ON_GPUS), "-m", "not quiet", "--durations=10"),
    ],
    BROWSER: [pytest("tests/browser", "--durations=10")],
    QUIET: [pytest("tests", *APART, "-m", "quiet", "--durations=10")],
}
BESIDE = ["tests", GPUS, BROWSER, "chapters", "book"]  # the longest first
LANES = max(2, os.cpu_count() or 1)  # steps that run at a time
WHOLE = "test-gpu"  # all that ranks do, on the GPUs that are there; without any, on pretended ones
_PRETENDED = [] if accelerator() else [BUILD]
# Chapters first, and by themselves: their Worlds take GPUs that the tests would hold.
_CHAPTERS = pytest("tests/test_chapters_on_gpus.py")
ASKED = {
    WHOLE: [*_PRETENDED, _CHAPTERS, pytest(*_on_gpus(), "--durations=10")]
}  # steps that run when named
TIDY = [
    ruff("check", "--fix", *CODE),
    ruff("check", "--fix", *CHAPTERS),
    ruff("format", *CODE),
    ruff("format", *CHAPTERS),
]
FEW = 10  # tests of one command that may fail beside others and be tried again


def surroundings(step: str = "") -> dict[str, str]:
    """Return the environment of a step: the repository's own `lib`, and no word from a debugger.

    Ranks are on the CPU, as the stored outputs are, also on a machine with GPUs.
    """
    paths, environ = [str(ROOT)], {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    if step != QUIET:  # threads of several processes that wait for one another take all the cores
        environ.setdefault("OMP_NUM_THREADS", "1")
    if step in (GPUS, WHOLE):
        environ["RANKS_TEST_GPUS"] = "1"
        environ.pop("RANKS_DEVICE", None)
        paths += [str(ROOT / "_build/pretend")] if step == GPUS or not accelerator() else []
    else:
        environ["RANKS_DEVICE"] = "cpu"
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def wanting(step: str) -> str:
    """Say in a sentence what this machine lacks for a step; "" where it lacks nothing."""
    if step == BROWSER and not chromium():
        return f"NOT TRIED: tests/browser, for want of Chromium: {REMEDY}."
    pretended = step == GPUS or (step == WHOLE and not accelerator())
    if pretended and not (shutil.which("g++") or shutil.which("c++")):
        return f"NOT TRIED: ranks on pretended GPUs, for want of a C++ compiler: {COMPILER}."
    return ""


def summary(counts: Counter, seconds: float) -> str:
    """Return the last line, as pytest would write it."""
    good = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    words = {"failures": "failed", "skipped": "skipped", "errors": "errors"}
    others = [f"{counts[key]} {word}" for key, word in words.items() if counts[key]]
    return f"{', '.join([f'{good} passed', *others])} in {seconds:.1f}s"


@dataclass
class Run:
    """One run of steps: what was counted, how long each took, what could not be tried or failed.

    `doubtful` are commands of which few tests failed beside others: (step, command, outcome).
    """

    counts: Counter = field(default_factory=Counter)
    times: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    doubtful: list[tuple[str, Command, Outcome]] = field(default_factory=list)
    raced: list[str] = field(default_factory=list)

    def step(self, name: str, output=None, beside: bool = False) -> bool:
        """Carry out one step, perhaps beside others; False where it failed."""
        tell = functools.partial(print, file=output, flush=True)
        tell(f"--- {name}")
        if missing := wanting(name):
            self.untried.append(missing)
            tell(missing)
            return True
        start = time.perf_counter()
        for command in (STEPS | ASKED)[name]:
            outcome = call(command, surroundings(name), output)
            if beside and 0 < len(outcome.failed) <= FEW:
                self.doubtful.append((name, command, outcome))
            elif not self.judge(name, command, outcome):
                return False
        self.times.append(f"{name} {time.perf_counter() - start:.0f} s")
        return True

    def judge(self, name: str, command: Command, outcome: Outcome) -> bool:
        """Add what was counted, and write down a failure; True where there was none."""
        self.counts.update(outcome.counts)
        if not outcome.good:
            told = f"The step '{name}' failed at: {shlex.join(['python', *command[1:]])}"
            self.failed.append(told + outcome.ended)
        return outcome.good

    def lane(self, name: str, left: deque[str], output=None) -> None:
        """Carry out a step and then, each time, the next that is left, up to one that fails."""
        while self.step(name, output, beside=True):
            try:
                name = left.popleft()
            except IndexError:
                return
        left.clear()

    def try_alone(self) -> None:
        """Try again what failed beside others."""
        for name, command, outcome in self.doubtful:
            print(f"--- {name}: {len(outcome.failed)} that failed beside others, alone", flush=True)
            if call(alone(command, outcome.failed), surroundings(name)).good:
                self.raced += outcome.failed
                outcome.passed_alone()
            self.judge(name, command, outcome)
        self.doubtful.clear()

    def side_by_side(self, names: list[str]) -> None:
        """Carry out steps beside one another: the first lane speaks at once, others at the end."""
        (first, *others), left = names[:LANES], deque(names[LANES:])
        with contextlib.ExitStack() as open_files:
            said = [open_files.enter_context(tempfile.TemporaryFile("w+")) for _ in others]
            lanes = [
                threading.Thread(target=self.lane, args=(name, left, file))
                for name, file in zip(others, said, strict=True)
            ]
            for lane in lanes:
                lane.start()
            self.lane(first, left)
            for lane, file in zip(lanes, said, strict=True):
                lane.join()
                file.seek(0)
                shutil.copyfileobj(file, sys.stdout)
        self.try_alone()

    def steps(self, names: list[str]) -> None:
        """Carry out steps, those of `BESIDE` beside one another, up to the first that fails."""
        together, begun = [name for name in BESIDE if name in names], False
        for name in names:
            if len(together) < 2 or name not in together:
                self.step(name)
            elif not begun:
                self.side_by_side(together)
                begun = True
            if self.failed:
                break


def only(word: str) -> list[Command]:
    """Give the commands that try one family or chapter: what is called `word`, whole.

    That is a folder of tests, a file of tests without its test_, or words of a chapter's name:
    "pipeline", "ledger", "data_parallel", "06". Where nothing is called so, what has the word
    somewhere in its path is taken.
    """
    tests = sorted(str(path.relative_to(ROOT)) for path in TESTS.rglob("test_*.py"))
    tests = [path for path in tests if "browser" not in path]
    chapters = sorted(f"chapters/{path.name}" for path in (ROOT / "chapters").glob("*.ipynb"))
    both = [*tests, *chapters]
    chosen = [path for path in both if _is_called(word, path)] or [
        path for path in both if word in path.replace("-", "_")
    ]
    tests, chapters = ([path for path in chosen if path in some] for some in (tests, chapters))
    commands = [pytest(*tests, "--durations=5")] if tests else []
    return commands + ([pytest(*NBVAL, *chapters)] if chapters else [])


def _is_called(word: str, path: str) -> bool:
    """Tell whether a folder, the file or, in a chapter's name, some whole words are `word`."""
    *folders, name = path.replace("-", "_").split("/")
    stem = name.partition(".")[0]
    if folders[0] == "chapters":
        return f"_{word}_" in f"_{stem}_"
    return word in (*folders, stem, stem.removeprefix("test_"))


def main(names: list[str]) -> int:
    """Run the steps called `names`, or all, and stop where one fails."""
    if names[:1] == ["--only"]:
        if not (commands := only(names[1].replace("-", "_"))):
            print(f"no test and no chapter has {names[1]!r} in its path", file=sys.stderr)
            return 2
        names = [f"only {names[1]}"]
        ASKED[names[0]] = commands
    if names == ["tidy"]:
        return max([subprocess.run(command, cwd=ROOT).returncode for command in TIDY])
    every = STEPS | ASKED
    if unknown := [name for name in names if name not in every]:
        print(f"there is no step {unknown[0]!r}: {', '.join(every)}", file=sys.stderr)
        return 2
    run, began = Run(), time.perf_counter()
    run.steps(names or list(STEPS))
    for sentence in run.failed:
        print(f"\n{sentence}", flush=True)
    for test in run.raced:
        print(f"It failed beside others and passed alone: {test}")
    if run.times and not run.failed:
        print(f"\nEvery step passed: {', '.join(run.times)}.")
    for missing in run.untried:
        print(missing)
    counted = run.counts["tests"] or run.failed
    if run.times or run.failed:
        print(summary(run.counts, time.perf_counter() - began) if counted else "passed")
    return 1 if run.failed or not run.times else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
