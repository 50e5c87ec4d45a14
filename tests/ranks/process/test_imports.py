"""An import that is under way on a rank when another rank fails."""

import importlib
import os
import sys

import torch.distributed as dist

from tests.ranks.test_failures import failing, total

SLOW_MODULE = """
import time
with open({path!r}, "a") as file:
    file.write("begun ")
    file.flush()
    time.sleep(0.4)
    file.write("done ")
"""


def one_fails_beside_an_import(folder):
    path = os.path.join(folder, f"slow_module_{dist.get_rank()}.py")
    with open(path, "w") as file:
        file.write(SLOW_MODULE.format(path=path + ".told"))
    total()
    assert dist.get_rank() != 1, "not this one"
    sys.path.insert(0, folder)
    try:
        importlib.import_module(f"slow_module_{dist.get_rank()}")
    finally:
        sys.path.remove(folder)
    total()


def what_the_import_told(folder):
    name = f"slow_module_{dist.get_rank()}"
    if dist.get_rank() == 1:
        return "", False
    with open(os.path.join(folder, f"{name}.py.told")) as file:
        return file.read(), name in sys.modules


def test_an_import_is_not_cut_off(worlds, tmp_path):
    """C++ remembers half an import, such as its operators, and would refuse the next one."""
    world = worlds(4)
    text = str(failing(world, one_fails_beside_an_import, str(tmp_path)))
    assert "rank 1 raised AssertionError: not this one" in text
    done, never = ("begun done ", True), ("", False)
    assert world.run(what_the_import_told, str(tmp_path)) == [done, never, done, done]
