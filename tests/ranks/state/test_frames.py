"""Where threads stand can be asked at any moment: garbage and threads that end do not matter."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

from lib.ranks.state.frames import current_frames

# Garbage whose end runs Python code and lets others have the interpreter, beside threads that end.
BUSY = """
    import gc, threading, time, weakref
    from {module} import {name} as ask

    class Kept: ...

    def begin_and_end():
        while True:
            thread = threading.Thread(target=time.sleep, args=(0,))
            thread.start()
            thread.join()

    gc.set_threshold(1, 2, 2)
    callbacks = []
    for _ in range(3):
        threading.Thread(target=begin_and_end, daemon=True).start()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        kept = Kept()
        kept.itself = kept
        callbacks.append(weakref.ref(kept, lambda _: time.sleep(0.0002)))
        del kept, callbacks[:-3]
        ask()
    print("all asked", flush=True)
    import os; os._exit(0)
"""


def test_frames_are_those_of_all_threads():
    ready, over = threading.Event(), threading.Event()

    def beside():
        ready.set()
        over.wait()

    thread = threading.Thread(target=beside)
    thread.start()
    ready.wait()
    frames = current_frames()
    over.set()
    thread.join()
    assert frames[threading.get_ident()] is None
    inner = frames[thread.ident]
    while inner and inner.f_code is not beside.__code__:
        inner = inner.f_back
    assert inner is not None


def test_asking_while_threads_end_and_garbage_is_collected_never_hangs():
    """With `sys._current_frames` itself the program never ends on Python 3.11.7."""
    program = textwrap.dedent(BUSY).format(module=current_frames.__module__, name="current_frames")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert told.stdout == b"all asked\n", told.stderr


def test_the_collector_is_left_as_it_was():
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        current_frames()
        assert gc.isenabled() == before


class Held: ...


def keeps_frames(held):
    frames = current_frames()
    return weakref.ref(held), len(frames)


def test_whoever_keeps_the_frames_keeps_nothing_alive_by_them():
    """A gradient would stay until the collector of garbage comes: on a GPU backward asks too."""
    gc.collect()
    gc.disable()
    try:
        reference, threads = keeps_frames(Held())
        assert reference() is None and threads
    finally:
        gc.enable()
