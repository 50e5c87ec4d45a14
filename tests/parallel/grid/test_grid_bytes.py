"""Every collective of a step on a grid against the prediction, and the memory of a rank."""

import time

import pytest
import torch
import torch.distributed as dist

from lib.parallel.grid import grid_cross_entropy, grid_parallel
from lib.predict.tensor import grid_memory
from lib.predict.tensor.grid_traffic import gpt_moves
from lib.ranks.memory import Memory
from lib.ranks.mesh import Layout, mesh
from lib.single import GPT
from tests import on_gpus
from tests.every import every
from tests.parallel.grid.steps import GRIDS, ROTARY, SHAPE, TIED, batch

SAMPLES = 36
CASES = [(4, SHAPE, False), (4, TIED, True), (8, TIED, True), (8, ROTARY, False)]


def one_step(shape, grid, options):
    here = mesh(**grid.axes)
    model = grid_parallel(GPT(shape), here, grid.kind, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = batch(shape, samples=SAMPLES)
    dist.barrier()
    with Memory(model, optimizer) as memory:
        logits = model(x)
        after_model = settled(memory)
        loss = grid_cross_entropy(logits, y, here, grid.kind)
        after_loss = settled(memory)
        loss.backward()
        optimizer.step()
    return after_model, after_loss, memory.now


def settled(memory):
    """What is held once gloo's threads have let go of what they summed: after a next collective."""
    dist.barrier()
    same, now = 0, memory.now
    while same < 3:
        time.sleep(0.005)
        before, now = now, memory.now
        same = same + 1 if now == before else 0
    return now


def launched(ledger, rank, axis):
    """Collectives along an axis behind the barrier, in their order."""
    rows = list(ledger.where(rank=rank, lane="comm"))
    start = min(row.start for row in rows if row.op == "barrier")
    rows = [row for row in rows if row.group == axis and row.start > start]
    return [(r.op, len(r.members), r.bytes) for r in sorted(rows, key=lambda r: r.number)]


@pytest.mark.parametrize(("ranks", "shape", "option"), CASES)
def test_a_step_sends_and_keeps_what_is_predicted(worlds, ranks, shape, option):
    for grid in GRIDS[ranks]:
        options = {"keep_gathered" if grid.kind == "3d" else "overlap": option}
        ledger = worlds(ranks).record(one_step, shape, grid, options)
        for rank in range(ranks):
            check_traffic(ledger, shape, grid, rank, option and grid.kind == "3d")
        # The kernels of attention on a GPU keep something else.
        if not on_gpus.WANTED and not (option and grid.kind == "3d"):
            check_memory(ledger, shape, grid)


def check_traffic(ledger, shape, grid, rank, kept):
    place = Layout(**grid.axes).place(rank)
    diagonal = grid.kind != "3d" and place["row"] == place["column"]
    moves = gpt_moves(shape, grid, SAMPLES, keep_gathered=kept, diagonal=diagonal).all
    for axis in {move.axis for move in moves}:
        expected = [(m.op, m.ranks, m.bytes) for m in moves if m.axis == axis]
        found = launched(ledger, rank, axis)
        order = sorted if axis == "row,column" else list  # of messages, whichever comes first
        assert order(found) == order(expected), f"{grid}, rank {rank}, axis {axis}"


def check_memory(ledger, shape, grid):
    for after_model, after_loss, after_step in ledger.results:
        expected = grid_memory.held(shape, grid, SAMPLES)
        loss = grid_memory.loss(shape, grid, SAMPLES)
        assert after_model["activations"] == expected.activations - loss, str(grid)
        # It is computed outside the model, so it counts as "other", with its own 4 bytes. Gloo may
        # hold what the ranks have summed, two numbers a token, a moment longer.
        more = sum(after_loss.values()) - sum(after_model.values()) - loss - 4
        assert 0 <= more <= 9 * SAMPLES * shape.sequence // grid.row_ranks, (str(grid), more)
        kinds = ("parameters", "gradients", "optimizer")
        assert every(after_step[kind] == getattr(expected, kind) for kind in kinds)
