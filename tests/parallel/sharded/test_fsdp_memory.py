"""The memory of a step of FSDP over time, by kind."""

import torch

from lib.parallel.sharded import FSDP
from lib.predict.shape import MLPShape
from lib.ranks.memory import Memory
from lib.single import MLP, mean_squares

CHAIN = MLPShape((6, 30, 20, 4))  # 4 ranks do not divide what these layers have
ROWS = 2
NARROW = {"param_dtype": torch.bfloat16}


def in_every_step(times):
    """The different sequences of memory rows in many equal steps."""
    fsdp = FSDP(MLP(CHAIN), **NARROW)
    x, y = torch.ones(ROWS, CHAIN.widths[0]), torch.ones(ROWS, CHAIN.widths[-1])
    found = set()
    for _ in range(times):
        for parameter in fsdp.parameters():
            parameter.grad = None
        with Memory(fsdp) as memory:
            mean_squares(fsdp(x), y.bfloat16()).backward()
        found.add(tuple((row.op, row.bytes) for row in memory.rows))
    return len(found)


def test_a_shard_that_was_cast_is_gone_when_its_gather_is_over(worlds):
    """Gloo's thread drops it a little later, so each step would hold something else."""
    assert worlds(4).run(in_every_step, 60) == [1] * 4
