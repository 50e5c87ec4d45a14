"""What every test shares: one warm World per size for the whole session.

Its ranks are on the CPU. With RANKS_TEST_GPUS=1, as `make test-gpu` sets it, they are on GPUs.
"""

import os
import signal
from pathlib import Path

import pytest

from tests import on_gpus


def _device() -> str:
    if not on_gpus.WANTED:
        return "cpu"
    from lib.ranks.gpus.devices import accelerator

    found = accelerator()
    assert found, "RANKS_TEST_GPUS is set, and there is no GPU"
    return found


os.environ.setdefault("PRETEND_MACHINE", str(os.getpid()))  # other tests' GPUs are not ours
DEVICE = _device()
if on_gpus.WANTED:
    os.environ["RANKS_DEVICE"] = "cpu"  # for Worlds of scripts and kernels that a test starts


AGAIN = pytest.mark.flaky(reruns=3, reruns_delay=2, only_rerun=["AssertionError"])


def pytest_collection_modifyitems(items):
    """Let what compares times be tried again: another machine's load on this one passes by."""
    for item in items:
        quiet = item.get_closest_marker("quiet")
        if quiet and quiet.kwargs.get("again", True):
            item.add_marker(AGAIN)
    for item in items if on_gpus.WANTED else ():
        if why := on_gpus.left_out(item.nodeid):
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_sessionfinish():
    """Write what a run on GPUs has told: the messages of failures, and how far each cell goes."""
    for name, lines in on_gpus.told.items():
        (Path(__file__).parents[1] / "_build" / name).write_text("\n".join(lines) + "\n", "utf-8")


LIMIT = 300.0  # seconds: a test that takes longer has hung, unless it is marked limit(seconds)


class HasHung(BaseException):
    """A test took longer than any test may; what it waited for stands in its traceback."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """End a test that has hung, and the warm Worlds too: they may be in the middle of a call."""

    marker = item.get_closest_marker("limit")
    limit = marker.args[0] if marker else LIMIT

    def end(*_):
        while made:
            made.popitem()[1].close()
        raise HasHung(f"{item.nodeid} took more than {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return (yield)
    except HasHung as hung:
        raise AssertionError(str(hung)) from hung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


made: dict = {}  # the warm Worlds, by size and options


@pytest.fixture(scope="session")
def worlds():
    """`worlds(4)` is the session's World of four ranks, made when first asked for."""

    def of(size: int, **options):
        key = (size, *sorted((name, repr(value)) for name, value in options.items()))
        if key not in made:
            from lib import World

            slow = options.get("slow_motion")  # it is of the CPU's ranks
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("RANKS_DEVICE", raising=False)
                made[key] = World(size, **{"device": "cpu" if slow else DEVICE, **options})
        if on_gpus.WANTED:
            made[key].run(on_gpus.draw_on_the_cpu)  # each time: a rank may have been started anew
        return made[key]

    yield of
    while made:
        made.popitem()[1].close()


@pytest.fixture(params=[1, 2, 4], ids="{} ranks".format)
def world(request, worlds):
    """The warm World of 1, of 2 and of 4 ranks, one after the other."""
    return worlds(request.param)
