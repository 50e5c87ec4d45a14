"""A tensor-parallel step in slow motion: four small ranks stand for four H100s on a link."""

import torch
import torch.distributed as dist

from lib.course.data_parallel.lessons import after_barrier
from lib.ledger import Ledger
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.larger import Larger
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import tensor_parallel_step
from lib.ranks import World, span
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT

RANKS, FACTOR = 4, 60
# What runs is small and stands for a GPT with one layer of width 8,192 and one sample.
SMALL = GPTShape(vocabulary=1000, sequence=14, width=320, heads=16, layers=1, hidden=400)
LARGE = GPTShape(32_000, sequence=4096, width=8192, heads=64, layers=1)
FEW = 7  # samples of the small run; they stand for one


def step(span) -> None:
    """Run forward and backward of the small GPT on this rank, after a barrier."""
    model = tensor_parallel(GPT(SMALL))
    tokens = torch.arange(FEW * (SMALL.sequence + 1)).view(FEW, -1) % SMALL.vocabulary
    dist.barrier()
    with span("forward"):
        loss = vocab_parallel_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    with span("backward"):
        loss.backward()


def on(link: str) -> tuple[Ledger, Ledger]:
    """Record a step as four H100s on this link; print what both ledgers say.

    Returns rank 0's rows of the recording, and its predicted all_reduces.
    """
    lengths = SMALL.sequence, LARGE.sequence
    two = {2: 2}  # the two sums of the loss stand for themselves
    stands = Larger(SMALL, LARGE, (FEW, 1), lengths, shared_by=(RANKS,), sizes=two)
    speeds = SlowMotion("H100", link=link, factor=FACTOR, stands_for=stands)
    with World(RANKS, slow_motion=speeds) as world:
        recorded = after_barrier(world.record(step, span)).where(rank=0)
    predicted = tensor_parallel_step(LARGE, RANKS, 1, speeds).where(rank=0)
    sums = [_sums(ledger) for ledger in (recorded, predicted)]
    print(f"{link}: {exposed(predicted):.0%} of the predicted step is exposed")
    print("  recorded and predicted all_reduces have the same bytes:", sums[0] == sums[1])
    return recorded, predicted.where(lane="comm")


def exposed(predicted: Ledger) -> float:
    """Return the share of one rank's predicted step in which it waits for an all_reduce."""
    computed = sum(row.seconds for row in predicted.where(lane="compute"))
    return 1 - computed / predicted.makespan


def _sums(ledger: Ledger) -> list[int]:
    """Return the bytes of the all_reduces of one rank's rows, in order."""
    rows = ledger.where(lane="comm", op="all_reduce")
    return [row.bytes for row in sorted(rows, key=lambda row: row.start)]
