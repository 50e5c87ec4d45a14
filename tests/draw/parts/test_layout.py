"""V8 inside Python: when it starts, who may ask it, and that it always says the same."""

import hashlib
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lib.draw import collective, guess, schedule
from lib.draw.parts import layout

ROOT = Path(__file__).parents[3]
DRAW = "from lib.draw import *; from tests.draw.parts.test_layout import prints; print(prints())"


def prints() -> str:
    """The stills of some pictures, light and dark and as text, in one number."""
    pictures = schedule("interleaved", 8, 8, 2), collective("all_gather"), guess("How many?")
    parts = [part for p in pictures for part in (p.png(), p.png(dark=True), p.svg().encode())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def python(code: str, **environ) -> str:
    """What a fresh Python prints; it has to end by itself, and well."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, text=True,
                          capture_output=True, env=os.environ | environ)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


def test_a_still_has_the_same_bytes_in_every_process():
    assert {python(DRAW, PYTHONHASHSEED=seed) for seed in ("0", "7")} == {prints()}


def test_v8_is_loaded_when_the_first_still_is_drawn_and_not_before():
    code = "import sys; from lib.draw import *; p = schedule(); "
    known = "print('py_mini_racer' in sys.modules)"
    assert python(code + known) == "False"
    assert python(code + "p.png(); " + known) == "True"


def test_a_process_that_has_drawn_ends_by_itself():
    ends = "import threading, os; p = schedule().png(); ", "raise SystemExit(0)", "os._exit(0)"
    for end in ends[1:]:
        python(f"from lib.draw import *; {ends[0]}{end}")


def test_threads_may_draw_at_once():
    make = [lambda n=n: schedule("gpipe", 2 + n % 3, 4).svg() for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda call: call(), make))
    assert found == [call() for call in make]


def test_an_event_loop_that_stands_still_does_not_hold_it_up():
    """A notebook's cells run inside its event loop: V8 must not wait for that loop."""
    code = """
import asyncio, threading
from lib.draw import schedule

async def cell():
    schedule().png()  # the first still of the process
    other = threading.Thread(target=lambda: schedule("gpipe").png(), daemon=True)
    other.start()
    other.join(60)  # the loop stands still meanwhile
    print(other.is_alive())

asyncio.run(cell())
"""
    assert python(code) == "False"


def test_an_interrupt_while_it_is_asked_leaves_it_whole(monkeypatch):
    class Stopped:
        def eval(self, code):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(layout, "_v8", Stopped)
        with pytest.raises(KeyboardInterrupt):
            schedule("gpipe", 3, 3).png()
    assert schedule("gpipe", 3, 3).png()[:4] == b"\x89PNG"


def _drawn_on_a_rank():
    return layout._forked, prints()


def test_ranks_may_draw_beside_a_notebook_that_has_drawn(worlds):
    ours = prints()
    assert worlds(2).run(_drawn_on_a_rank) == [(False, ours)] * 2
    assert prints() == ours


def test_what_ranks_are_forked_from_has_no_v8():
    code = "import sys, lib.ranks.kernel.preloaded; print('py_mini_racer' in sys.modules)"
    assert python(code) == "False"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_copy_of_a_process_that_has_drawn_says_why_it_cannot():
    code = """
import os, sys
from lib.draw import schedule

schedule().png()
if os.fork() == 0:
    try:
        schedule("gpipe").png()
    except RuntimeError as wrong:
        print(wrong, flush=True)
    sys.exit(0)  # as a copy ends
_, status = os.wait()
schedule("naive").png()
print(status)
"""
    said = python(code).splitlines()
    assert said[0].startswith("This process was forked from one that had drawn a picture, ")
    assert said[0].endswith(".") and said[1:] == ["0"]


def test_nothing_of_the_browser_is_there():
    """What pictures need before they are shown is found in any JavaScript."""
    schedule("gpipe", 2, 2).png()
    v8 = layout._v8()
    assert v8.eval("typeof document + typeof window + typeof navigator") == "undefined" * 3


def test_words_of_marks_are_asked_for_only_where_they_are_shown():
    picture = schedule("gpipe", 2, 2)
    assert not any(mark.about for mark in picture.still(words=False).marks)
    told = [mark.about for mark in picture.marks if mark.about]
    assert "0F0 on rank 0: forward, stage 0, microbatch 0, from 0 to 1" in told
    assert len(picture.marks) == len(picture.still(words=False).marks)
