"""What `%%ranks` cells get of the notebook, and when they get it again."""

import threading

import pytest
import torch

from lib import RankError, World


class Notebook:
    """Names and cells as a notebook has them; `ranks` runs a `%%ranks` cell, and gives rank 0's."""

    def __init__(self, world):
        self.world, self.names = world, {"__name__": "__main__", "torch": torch}

    def cell(self, source):
        exec(source, self.names)

    def ranks(self, source, *ranks):
        self.world.cell(source, "<cell>", self.names, list(ranks) or None)
        return self.world.printed[ranks[0] if ranks else 0].strip()


@pytest.fixture(scope="module")
def own_world():
    with World(2) as world:
        yield world


@pytest.fixture
def notebook(own_world):
    own_world._lending.made.clear()
    own_world._lending.watched.clear()
    own_world._lending.lent.clear()
    own_world.run(forget)
    return Notebook(own_world)


def forget():
    from lib.ranks.state import namespace

    for name in [name for name in namespace.names() if not name.startswith("__")]:
        del namespace.names()[name]


def test_globals_of_functions_are_the_notebooks_of_now(notebook):
    """Case 23: a function sees a global that was bound anew, as it does in `world.run`."""
    notebook.cell("scale = 10\ndef f(): return scale\ndef g(): return f() + 1\ntable = {'g': g}")
    assert notebook.ranks("f(), g(), table['g']()") == "(10, 11, 11)"
    notebook.cell("scale = 7")
    assert notebook.ranks("f(), g(), table['g']()") == "(7, 8, 8)"
    assert notebook.world.run(notebook.names["g"]) == [8, 8]


def test_a_helper_that_was_redefined_takes_effect(notebook):
    """Case 23: helpers of functions, decorators, classes and partials are those of now."""
    notebook.cell(
        "import functools\n"
        "def helper(): return 1\n"
        "class Net:\n"
        "    def forward(self): return helper()\n"
        "net, later = Net(), functools.partial(lambda n: n * helper(), 10)\n"
        "def outer():\n"
        "    def inner(): return helper()\n"
        "    return inner\n"
        "made = outer()"
    )
    assert notebook.ranks("net.forward(), later(), made()") == "(1, 10, 1)"
    notebook.cell("def helper(): return 2")
    assert notebook.ranks("net.forward(), later(), made()") == "(2, 20, 2)"


def test_values_changed_in_place_go_again(notebook):
    """Case 23: a list appended to, a tensor written to, an attribute set: each is seen."""
    notebook.cell("steps, w = [1], torch.zeros(2)\nclass Config: lr = 1\nconfig = Config()")
    notebook.cell("def peek(): return len(steps), w.tolist(), config.lr")
    assert notebook.ranks("peek()") == "(1, [0.0, 0.0], 1)"
    notebook.cell("steps.append(2); w[1] = 5; config.lr = 3")
    assert notebook.ranks("peek()") == "(2, [0.0, 5.0], 3)"
    notebook.cell("w.numpy()[0] = 4; w.data.mul_(2); Config.lr = 9; del config.lr")
    assert notebook.ranks("peek()") == "(2, [8.0, 10.0], 9)"


def test_what_the_ranks_did_to_their_copy_survives_other_changes(notebook):
    """Case 23: a model trained on the ranks stays trained until the notebook changes its own."""
    notebook.cell("model, lr = torch.nn.Linear(1, 1, bias=False), 1\nmodel.weight.data.fill_(1)")
    notebook.cell("def train(): model.weight.data.add_(lr); return model.weight.item()")
    assert notebook.ranks("train()") == "2.0"
    notebook.cell("lr = 10\nunrelated = 3")
    assert notebook.ranks("unrelated; train()") == "12.0"
    assert notebook.ranks("model.weight.item()") == "12.0"
    notebook.cell("model.weight.data.fill_(5)")  # the notebook's own changed: it goes
    assert notebook.ranks("train()") == "15.0"
    notebook.cell("import copy\nmodel = copy.deepcopy(model)")  # bound anew, to equal bytes
    assert notebook.ranks("train()") == "15.0"


def test_an_optimizer_keeps_its_model(notebook):
    """Case 23: names that share tensors go together, also where one of them was bound anew."""
    notebook.cell("model = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)")
    same = "opt.param_groups[0]['params'][0] is model.weight"
    assert notebook.ranks(same) == "True"
    notebook.cell("opt = torch.optim.SGD(model.parameters(), 0.2)")
    assert notebook.ranks(same) == "True"
    notebook.cell("first = model.weight")
    assert notebook.ranks("first.sum().item() == 0") == "False"
    assert notebook.ranks("first is model.weight and " + same) == "True"


def test_what_cells_made_stays_the_ranks_own(notebook):
    """Case 23: a name that a cell made is the ranks', for the notebook's functions too."""
    notebook.cell("model, lr = 'the notebook', 1\ndef peek(): return model, lr")
    notebook.ranks("model = 'the ranks'")
    assert notebook.ranks("peek()") == "('the ranks', 1)"
    notebook.cell("model, lr = 'anew', 2")
    assert notebook.ranks("model, *peek()") == "('the ranks', 'the ranks', 2)"


def test_a_function_made_on_the_ranks_sees_the_notebook_of_now(notebook):
    """Case 23: what such a function reads is looked at again in every later cell."""
    notebook.cell("scale = 1")
    notebook.ranks("def g(): return scale + later")
    notebook.cell("scale, later = 2, 10")
    assert notebook.ranks("g()") == "12"
    notebook.cell("later = threading_lock = __import__('threading').Lock()")
    with pytest.raises(RankError, match="`later` .*: cannot pickle"):
        notebook.ranks("1")


def test_a_failed_sending_is_no_sending(notebook):
    """Case 23: names beside one that could not be sent are sent the next time."""
    notebook.names |= {"a": 1, "lock": threading.Lock()}
    with pytest.raises(RankError, match=r"nothing was run.*\n  `lock` \(lock\): cannot pickle"):
        notebook.ranks("a, lock")
    assert notebook.ranks("a") == "1"
    notebook.cell(
        "class Hard:\n    def __reduce__(self): return (int, ('x',))\nb, hard = 2, Hard()"
    )
    with pytest.raises(RankError, match="ranks 0 and 1 raised ValueError: invalid literal"):
        notebook.ranks("b, hard")
    assert notebook.ranks("b") == "2"


def test_ranks_outside_a_cell_are_given_its_names_later(notebook):
    """Case 23: each rank has what it was given, no rank what another was."""
    notebook.cell("a = [1]")
    assert notebook.ranks("a.append(2); a", 0) == "[1, 2]"
    assert notebook.ranks("a", 1) == "[1]"
    notebook.ranks("a")
    assert notebook.world.printed == ["[1, 2]\n", "[1]\n"]


def test_a_rank_started_anew_is_given_the_names_again(notebook):
    """Case 23: the new process has nothing, and the other keeps what it did to its copy."""
    notebook.cell("import os\na = [1]")
    notebook.ranks("a.append(2)")
    with pytest.raises(RankError, match="rank 1 died"):
        notebook.ranks("os._exit(3)", 1)
    notebook.ranks("a")
    assert notebook.world.printed == ["[1, 2]\n", "[1]\n"]


@pytest.mark.parametrize("read", ["f()", "deep()", "[lock]"])
def test_an_unpicklable_global_is_named(notebook, read):
    """Case 23: the sentence names the variable, and the function that reads it."""
    notebook.names["lock"] = threading.Lock()
    notebook.cell("def f(): return lock\ndef deep(): return [f() for _ in range(2)]")
    label = "`lock`" if read == "[lock]" else "global `lock` of f"
    with pytest.raises(RankError, match=rf"{label} \(lock\): cannot pickle"):
        notebook.ranks(read)
    with pytest.raises(RankError, match=r"  global `lock` of f \(lock\): cannot pickle"):
        notebook.world.run(notebook.names["deep"])
