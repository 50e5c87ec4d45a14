"""Which lines are the reader's own, wherever PyTorch was installed."""

import site

import torch

from lib.ranks.state import this_rank


def test_pytorch_is_hidden_wherever_it_is():
    assert torch.__path__[0] in this_rank._HIDDEN, "a container may have it outside site-packages"
    assert this_rank.hidden(f"{torch.__path__[0]}/distributed/distributed_c10d.py")
    assert this_rank.hidden(f"{site.getusersitepackages()}/numpy/__init__.py")
    assert this_rank.hidden(this_rank.__file__)


def test_a_readers_file_is_not():
    assert not this_rank.hidden("/home/reader/train.py")
    assert not this_rank.hidden(__file__)
