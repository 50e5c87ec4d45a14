"""Ranks from a real notebook kernel: what cells define travels, lives on, ends with the kernel."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from jupyter_client.manager import KernelManager


class Notebook:
    """A kernel that runs cells as JupyterLab does, and gives what a reader would see."""

    def __init__(self):
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def send(self, source):
        return self.client.execute(source)

    def read(self, sent, timeout=60):
        shown = []
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown.append(content["text"])
            elif kind == "execute_result":
                shown.append(content["data"]["text/plain"] + "\n")
            elif kind == "error":
                shown.append("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return re.sub(r"\x1b\[[0-9;]*m", "", "".join(shown))

    def cell(self, source, timeout=60):
        return self.read(self.send(source), timeout)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)


@pytest.fixture(scope="module")
def notebook():
    opened = Notebook()
    opened.cell("import torch, torch.distributed as dist\nfrom lib import World\nworld = World(4)")
    yield opened
    opened.close()


def test_a_tensor_that_a_cell_made_is_there_after_a_failure(notebook):
    """Chapter 0 says so of `pair_sum`."""
    notebook.cell("%%ranks\nkept = torch.tensor(dist.get_rank())")
    notebook.cell("def alone(x):\n    if dist.get_rank() == 0:\n        dist.all_reduce(x)")
    assert "rank 0 waits for ever" in notebook.cell("world.run(alone, torch.ones(1))")
    notebook.cell("%%ranks\ndist.all_reduce(kept)")
    assert notebook.cell("%%ranks 0,3\nkept.item()") == "rank 0 │ 6\nrank 3 │ 6\n"


def test_functions_see_the_globals_of_the_notebook(notebook):
    notebook.cell("scale = 10\ndef scaled(): return scale * dist.get_rank()")
    assert notebook.cell("world.run(scaled)") == "[0, 10, 20, 30]\n"
    notebook.cell("scale = 7")
    assert notebook.cell("world.run(scaled)") == "[0, 7, 14, 21]\n"


def test_a_ranks_cell_sees_the_notebook_as_it_is_now(notebook):
    """Case 23: in a real notebook too, globals and values changed in place go again."""
    notebook.cell("size, seen = 10, [1]\ndef sized(): return size, len(seen), _own()")
    notebook.cell("def _own(): return 'a'")
    assert notebook.cell("%%ranks 0\nsized()") == "rank 0 │ (10, 1, 'a')\n"
    notebook.cell("size = 7; seen.append(2)\ndef _own(): return 'b'")
    assert notebook.cell("%%ranks 0\nsized()") == "rank 0 │ (7, 2, 'b')\n"
    assert notebook.cell("world.run(sized)[0]") == "(7, 2, 'b')\n"


def test_a_redefined_function_takes_effect_at_the_next_call(notebook):
    notebook.cell("def answer(): return 1")
    assert notebook.cell("world.run(answer)") == "[1, 1, 1, 1]\n"
    notebook.cell("def answer(): return 2")
    assert notebook.cell("world.run(answer)") == "[2, 2, 2, 2]\n"


def test_lambdas_closures_and_decorated_functions(notebook):
    notebook.cell(
        "import functools\n"
        "def twice(f):\n"
        "    @functools.wraps(f)\n"
        "    def both(*a): return [f(*a), f(*a)]\n"
        "    return both\n"
        "def adder(n): return lambda x: x + n\n"
        "@twice\n"
        "def square(x): return x * x"
    )
    assert notebook.cell("world.run(lambda: dist.get_rank() + 1)") == "[1, 2, 3, 4]\n"
    assert notebook.cell("world.map(adder(100), range(4))") == "[100, 101, 102, 103]\n"
    assert notebook.cell("world.map(square, range(4))") == "[[0, 0], [1, 1], [4, 4], [9, 9]]\n"


def test_classes_and_dataclasses_of_a_cell_go_and_come_back_as_themselves(notebook):
    notebook.cell(
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "    y: int = 0\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2)\n"
        "        self.a.weight = torch.nn.Parameter(torch.ones(2, 2))\n"
        "    def forward(self, x): return self.a(x)\n"
        "def move(point): return Point(point.x + 1, dist.get_rank())"
    )
    assert notebook.cell("points = world.run(move, Point(1)); points[2]") == "Point(x=2, y=2)\n"
    assert notebook.cell("all(isinstance(p, Point) for p in points)") == "True\n"
    shown = notebook.cell(
        "nets = world.run(Net); type(nets[0]) is Net, nets[1].a.weight.sum().item()"
    )
    assert shown == "(True, 4.0)\n"


def test_tensors_that_share_memory_share_it_on_the_ranks_too(notebook):
    notebook.cell("whole = torch.zeros(4)\ndef fill(a, b): a[0] = 5; return b[0].item()")
    assert notebook.cell("world.run(fill, whole, whole.view(2, 2)[0])") == "[5.0, 5.0, 5.0, 5.0]\n"


def test_a_ranks_cell_leaves_its_names_on_the_ranks(notebook):
    assert notebook.cell("%%ranks\nmine = [dist.get_rank()]") == ""
    assert notebook.cell("%%ranks\nmine.append(5)\nmine") == "".join(
        f"rank {r} │ [{r}, 5]\n" for r in range(4)
    )
    assert "NameError" in notebook.cell("mine")


def test_a_ranks_cell_on_some_ranks(notebook):
    shown = notebook.cell("%%ranks 0,2\nprint('here', dist.get_rank())")
    assert shown == "rank 0 │ here 0\nrank 2 │ here 2\n"
    assert "There is no rank 7: this World has ranks 0 to 3" in notebook.cell("%%ranks 7\n1")
    assert "name the ranks by number" in notebook.cell("%%ranks first\n1")


def test_a_ranks_cell_that_waits_for_a_rank_outside_it(notebook):
    shown = notebook.cell("%%ranks 0,1\ndist.all_reduce(torch.ones(2))")
    assert "ranks 0 and 1 wait for ever: ranks 2 and 3 are not in this call" in shown


def test_a_ranks_cell_sees_the_notebook_and_functions_see_the_ranks_names(notebook):
    notebook.cell("start = 3\ndef peek(): return model.sum().item()")
    notebook.cell("%%ranks\nmodel = torch.full((2,), float(start + dist.get_rank()))")
    assert notebook.cell("world.run(peek)") == "[6.0, 8.0, 10.0, 12.0]\n"
    assert notebook.cell("%%ranks 1\npeek()") == "rank 1 │ 8.0\n"
    notebook.cell("%%ranks\nmodel = model * 2")
    assert notebook.cell("%%ranks 1\npeek()") == "rank 1 │ 16.0\n"
    notebook.cell("start = 100")
    assert notebook.cell("%%ranks 3\nstart") == "rank 3 │ 100\n"


def test_an_error_shows_the_readers_lines_and_no_others(notebook):
    notebook.cell("def broken(x):\n    if dist.get_rank() == 1:\n        raise ValueError(x)\n")
    shown = notebook.cell("world.run(broken, 'so')")
    assert shown.startswith("RankError: rank 1 raised ValueError: so\n  cell In[")
    assert ", line 3, in broken\n    raise ValueError(x)" in shown
    assert "lib/ranks" not in shown and "ipykernel" not in shown
    shown = notebook.cell("%%ranks\nfine = 1\nmissing + fine")
    assert re.search(r"ranks 0, 1, 2 and 3 raised NameError.*\n  cell In\[\d+\], line 3\n", shown)
    assert "    missing + fine" in shown
    assert "SyntaxError" in notebook.cell("%%ranks\nif :")


def test_the_stop_button_of_jupyter(notebook):
    notebook.cell("def wait_for_nothing():\n    while dist.get_rank() == 0:\n        pass\n")
    sent = notebook.send("world.run(wait_for_nothing)")
    time.sleep(1.0)
    notebook.manager.interrupt_kernel()
    shown = notebook.read(sent)
    assert "KeyboardInterrupt: stopped.\nrank 0 was at cell In[" in shown
    assert notebook.cell("world.run(dist.get_rank)") == "[0, 1, 2, 3]\n"
    assert notebook.cell("%%ranks 0\nmine") == "rank 0 │ [0, 5]\n"  # still there


def test_prints_come_by_rank_and_live_on_request(notebook):
    notebook.cell("def hello(): print('hello'); print('from', dist.get_rank())")
    expected = "".join(f"rank {r} │ hello\nrank {r} │ from {r}\n" for r in range(4))
    assert notebook.cell("_ = world.run(hello)") == expected
    live = notebook.cell("_ = world.live(hello)")
    assert sorted(re.findall(r"from (\d)", live)) == ["0", "1", "2", "3"]


def test_a_notebook_run_again_from_the_top(notebook):
    for _ in range(3):
        notebook.cell("world = World(4)\ndef answer(): return 3")
        assert notebook.cell("world.run(answer)") == "[3, 3, 3, 3]\n"
    time.sleep(0.5)  # the Worlds that nobody holds any more have ended
    shown = notebook.cell(
        "import gc, psutil; gc.collect(); import os\n"
        "len([p for p in psutil.Process(os.getpid()).children(recursive=True) "
        "if 'forkserver' in ' '.join(p.cmdline())])"
    )
    assert int(shown) <= 1 + 2 * 4  # the server; the last error shown may hold one World more


def children_of(pid):
    import psutil

    return psutil.Process(pid).children(recursive=True)


def test_nothing_is_left_two_seconds_after_the_kernel_was_killed():
    import psutil

    opened = Notebook()
    opened.cell("from lib import World\nworld = World(4)")
    kernel = int(opened.cell("import os; os.getpid()"))
    folder = opened.cell("print(world._processes.folder)").strip()
    left = children_of(kernel)
    assert len(left) >= 5 and os.path.isdir(folder)  # four ranks and the server
    os.kill(kernel, signal.SIGKILL)
    gone, alive = psutil.wait_procs(left, timeout=2.0)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not os.path.exists(folder)
    opened.client.stop_channels()
    opened.manager.cleanup_resources()


SCRIPT = """
from lib import World
world = World({size})
print(sum(world.run({step})))
"""


def test_a_script_without_a_main_guard():
    source = SCRIPT.format(size=2, step="len, 'four'")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "8\n" and done.stderr == ""


def test_a_script_file_without_a_main_guard(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('once')\n" + SCRIPT.format(size=2, step="lambda: 2"))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "once\n4\n" and done.stderr == ""
