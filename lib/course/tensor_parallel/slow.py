"""A tensor-parallel step in slow motion: four small ranks stand for four H100s on a link."""

from contextlib import nullcontext

import torch
import torch.distributed as dist

from lib.course.data_parallel.lessons import after_barrier
from lib.ledger import Ledger, Row
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.larger import Larger
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import SUM, WAIT, passes, tensor_parallel_step
from lib.ranks import World, span
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT

RANKS, FACTOR = 4, 60
# What runs is small and stands for a GPT with one layer of width 8,192 and one sample.
SMALL = GPTShape(vocabulary=1000, sequence=14, width=320, heads=16, layers=1, hidden=400)
LARGE = GPTShape(32_000, sequence=4096, width=8192, heads=64, layers=1)
BFLOAT16 = 2  # bytes of a number, in the small run as in the large model
FEW = 7  # samples of the small run; they stand for one


def step(span) -> None:
    """Run the small GPT in bfloat16, forward and backward: to warm up, then after a barrier."""
    model = tensor_parallel(GPT(SMALL).to(torch.bfloat16))
    tokens = torch.arange(FEW * (SMALL.sequence + 1)).view(FEW, -1) % SMALL.vocabulary
    for counted in (False, True):
        model.zero_grad()
        dist.barrier()
        with span("forward") if counted else nullcontext():
            loss = vocab_parallel_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        with span("backward") if counted else nullcontext():
            loss.backward()


def on(link: str) -> tuple[Ledger, Ledger]:
    """Record a step as four H100s on this link; print what both ledgers say.

    Returns rank 0's rows of the recording, and those of the prediction.
    """
    lengths = SMALL.sequence, LARGE.sequence
    two = {2: 2}  # the two sums of the loss stand for themselves
    stands = Larger(SMALL, LARGE, (FEW, 1), lengths, shared_by=(RANKS,), sizes=two)
    speeds = SlowMotion("H100", link=link, factor=FACTOR, stands_for=stands)
    with World(RANKS, slow_motion=speeds) as world:
        recorded = after_barrier(world.record(step, span)).where(rank=0)
    predicted = tensor_parallel_step(LARGE, RANKS, 1, speeds, itemsize=BFLOAT16).where(rank=0)
    drawn = in_phases(predicted)
    sums = [_sums(ledger) for ledger in (recorded, drawn)]
    print(f"{link}: {exposed(drawn):.0%} exposed (predicted)")
    print("  recorded all_reduces, same bytes:", sums[0] == sums[1])
    return recorded, drawn


def exposed(predicted: Ledger) -> float:
    """Return the share of one rank's predicted time in which it waits for an all_reduce.

    What `in_phases` returns has no update, so its share is that of forward and backward.
    """
    computed = sum(row.seconds for row in predicted.where(lane="compute"))
    return 1 - computed / predicted.makespan


def in_phases(predicted: Ledger) -> Ledger:
    """Return one rank's predicted step with its operations joined as a recording has them.

    What it computes between two waits is one row, "forward" or "backward"; the update is left out.
    """
    parts = passes(LARGE, RANKS, 1, itemsize=BFLOAT16)
    computed = iter(sorted(predicted.where(lane="compute"), key=lambda row: row.start))
    phases = {"forward": [op for part in parts for op in part.forward]}
    phases["backward"] = [op for part in reversed(parts) for op in part.backward]
    rows = list(predicted.where(lane="comm"))
    for phase, operations in phases.items():
        block = []
        for name in [*(op.name for op in operations), WAIT]:
            if name not in (SUM, WAIT):
                block.append(next(computed))
            elif name == WAIT and block:
                rows.append(Row(0, "compute", phase, block[0].start, block[-1].end))
                block = []
    return Ledger(rows, source=predicted.source, meta=predicted.meta)


def _sums(ledger: Ledger) -> list[int]:
    """Return the bytes of the all_reduces of one rank's rows, in order."""
    rows = ledger.where(lane="comm", op="all_reduce")
    return [row.bytes for row in sorted(rows, key=lambda row: row.start)]
