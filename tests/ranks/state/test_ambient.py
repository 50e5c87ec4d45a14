"""What a call finds on a rank: the notebook as it is now, nothing of the call before."""

import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

from lib import RankError, World
from lib.ranks.kernel import launch


@pytest.fixture(scope="module")
def own_world():
    with World(2) as world:
        yield world


def state():
    return (
        os.getcwd(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_device(),
        torch.get_num_threads(),
        list(sys.path),
    )


left_open = []


def leave_it_all_changed():
    os.chdir("/")
    sys.path.append("/somewhere")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    for mode in (torch.inference_mode(), torch.autocast("cpu")):
        mode.__enter__()
        left_open.append(mode)
    torch.set_grad_enabled(False)
    sys.stdout = sys.stderr = None


def close_what_was_left_open():
    while left_open:
        left_open.pop().__exit__(None, None, None)


def test_a_call_begins_without_what_the_last_one_left(own_world):
    """Case 29: directory, path, dtype, device, modes and streams are not the last call's."""
    before = own_world.run(state)
    assert before[0][:-2] == (
        os.getcwd(),
        torch.float32,
        True,
        False,
        False,
        False,
        torch.device("cpu"),
    )
    own_world.run(leave_it_all_changed)
    assert own_world.run(state) == before
    own_world.run(print, "still heard")
    assert own_world.printed == ["still heard\n"] * 2
    own_world.run(close_what_was_left_open)
    assert own_world.run(state) == before


def test_a_call_begins_as_a_function_in_the_notebook_would(own_world, monkeypatch, tmp_path):
    """Case 29: the notebook's directory, path, variables, dtype and modes are the ranks' too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COURSE", "new")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            here = state()[:6]
            assert [there[:6] for there in own_world.run(state)] == [here] * 2
    finally:
        torch.set_default_dtype(torch.float32)
    assert own_world.run(variable, "COURSE") == ["new"] * 2
    assert own_world.run(path) == [sys.path] * 2
    monkeypatch.delenv("COURSE")
    assert own_world.run(variable, "COURSE") == [None] * 2
    assert own_world.run(torch.is_grad_enabled) == [True] * 2
    with torch.inference_mode():
        assert own_world.run(torch.is_inference_mode_enabled) == [True] * 2
    with torch.autocast("cpu", torch.float16):
        assert own_world.run(product) == [torch.float16] * 2
    assert own_world.run(product) == [torch.float32] * 2


def variable(name):
    return os.environ.get(name)


def path():
    return list(sys.path)


def product():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_what_a_cell_sets_stays_as_its_names_do(own_world):
    """Case 29: a `%%ranks` cell chooses for the calls after it; one that fails does not."""
    before = own_world.run(state)
    with pytest.raises(RankError, match="ZeroDivisionError"):
        own_world.cell("import torch; torch.set_default_dtype(torch.float16); 1 / 0", "<c>", {})
    assert own_world.run(state) == before
    own_world.cell("torch.set_default_dtype(torch.float64); torch.set_num_threads(2)", "<c>", {})
    own_world.cell("print(torch.ones(1).dtype, torch.get_num_threads())", "<c>", {})
    assert own_world.printed == ["torch.float64 2\n"] * 2
    assert own_world.run(torch.get_default_dtype) == [torch.float64] * 2
    own_world.cell("torch.set_default_dtype(torch.float32); torch.set_num_threads(1)", "<c>", {})
    assert own_world.run(torch.get_default_dtype) == [torch.float32] * 2


def test_what_is_said_to_stay_stays(own_world):
    """Case 29: random states, warnings filters and variables of a rank go on, as World says."""
    own_world.run(leave_what_stays)
    assert own_world.run(variable, "OWN") == ["1"] * 2
    torch.manual_seed(0)
    torch.rand(1)
    assert own_world.run(torch.rand, 1) == [torch.rand(1)] * 2
    own_world.run(warnings.resetwarnings)


def leave_what_stays():
    os.environ["OWN"] = "1"
    torch.manual_seed(0)
    torch.rand(1)


def test_a_module_loaded_anew_in_the_notebook_is_loaded_anew_on_the_ranks(
    own_world, monkeypatch, tmp_path
):
    """Case 23: after `importlib.reload` here, calls and cells there use the new text, in order."""
    import importlib

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_rule.py").write_text("rule = 1\n")
    (tmp_path / "own_steps.py").write_text("from own_rule import rule\ndef step(): return rule\n")
    importlib.invalidate_caches()
    steps = importlib.import_module("own_steps")
    own_world.cell("import own_steps", "<c>", {})
    assert own_world.run(steps.step) == [1, 1]
    (tmp_path / "own_rule.py").write_text("rule = 2  # changed\n")
    assert own_world.run(steps.step) == [1, 1] == [steps.step()] * 2  # as in the notebook
    importlib.reload(sys.modules["own_rule"])
    importlib.reload(steps)
    assert own_world.run(steps.step) == [2, 2]
    own_world.cell("print(own_steps.step())", "<c>", {})
    assert own_world.printed == ["2\n", "2\n"]
    (tmp_path / "own_rule.py").write_text("rule = \n")
    with pytest.raises(SyntaxError):
        importlib.reload(sys.modules["own_rule"])
    with pytest.raises(RankError, match="the module `own_rule` anew, .* could not: SyntaxError"):
        own_world.run(steps.step)
    assert own_world.run(steps.step) == [2, 2]


@pytest.mark.parametrize(
    ("chosen", "cores", "size", "threads"),
    [("3", 8, 2, 3), ("", 8, 2, 4), ("4,2", 8, 2, 4), ("none", 8, 16, 1), (None, 6, 4, 1)],
)
def test_threads_per_rank(monkeypatch, chosen, cores, size, threads):
    """Case 29: OMP_NUM_THREADS counts, else the cores that this process may use."""
    if chosen is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert launch.threads_per_rank(size) == threads


def test_ranks_take_the_threads_that_were_chosen(monkeypatch):
    """Case 29: what OMP_NUM_THREADS says is what torch uses on each rank."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with World(2) as world:
        assert world.run(torch.get_num_threads) == [3, 3]


ASCII = """
    import sys
    from lib import World
    with World(2) as world:
        world.run(print, "na\\xefve \\u6570")
        world.live(print, "na\\xefve \\u6570")
"""


def test_output_with_an_ascii_locale():
    """Case 29: where the output has no such letters they are written as escapes."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ASCII)],
        env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and not done.stderr, done.stderr
    assert lines[0] == "rank 0 \\u2502 na\\xefve \\u6570"


def write_everywhere():
    sys.stdout.buffer.write("eins ä".encode()[:-1])
    sys.stdout.buffer.write("ä\n".encode()[1:])
    print("two", file=sys.stdout, flush=True)
    subprocess.run(["echo", "three"], stdout=sys.stdout, check=True)
    print("four", sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno() > 0)
    os.system("echo five")
    if os.fork() == 0:
        print("six")
        os._exit(0)
    os.wait()
    return sys.stdout.writable()


@pytest.mark.parametrize("call", ["run", "live"])
def test_what_readers_code_asks_of_the_output(own_world, call, capsys):
    """Case 29: bytes, descriptor, encoding and isatty are there, and all lines come in order."""
    assert getattr(own_world, call)(write_everywhere) == [True] * 2
    words = ["eins ä", "two", "three", "four utf-8 False True", "five", "six"]
    shown = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        assert [line[9:] for line in shown if line.startswith(f"rank {rank}")] == words


def test_a_memory_error_while_unpacking_is_a_sentence():
    """Case 29: the rank says how much was sent and that it has no room; it lives on."""
    with World(1) as world:
        world.run(limit_memory, 400_000_000)
        with pytest.raises(
            RankError, match=r"rank 0 raised MemoryError: The 0\.2 GB that were sent"
        ):
            world.run(len, bytes(240_000_000))  # it arrives, but is unpacked beside it
        assert world.run(len, [1, 2]) == [2]


def limit_memory(more):
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))
