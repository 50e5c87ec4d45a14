"""Ring attention in slow motion: four small ranks stand for four H100s with a long sequence."""

from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist

from lib.course.data_parallel.lessons import after_barrier
from lib.ledger import Ledger
from lib.parallel.sequence import ring_attention
from lib.predict.larger import Larger
from lib.predict.roofline import speeds
from lib.predict.sequence.ring_step import Attention, ring_step
from lib.predict.shape import GPTShape
from lib.ranks import span
from lib.ranks.slow_motion import SlowMotion

RANKS, LINK = 4, "InfiniBand NDR"
OWN = 32  # tokens of a rank in the small run
# What runs is small: each size of its attention stands for one of Llama 3 8B's.
SMALL = GPTShape(5, OWN, 252, 21, 1, kv_heads=7, hidden=9)
LARGE = replace(SMALL, sequence=2**17, width=4096, heads=32, kv_heads=8)
WALL = 1.5  # seconds to which a recording is stretched, about
ATTEMPTS = 3


def step(span) -> None:
    """Run forward and backward of this rank's attention, once to warm up, then after a barrier."""
    draw = torch.Generator("cpu").manual_seed(dist.get_rank())
    heads = SMALL.heads, SMALL.kv_heads, SMALL.kv_heads, SMALL.heads
    sizes = [(1, h, OWN, SMALL.head_size) for h in heads]
    q, k, v, gradient = (torch.randn(s, generator=draw, device="cpu").bfloat16() for s in sizes)
    for counted in (False, True):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        dist.barrier()
        with span("forward") if counted else nullcontext():
            out = ring_attention(*leaves)
        with span("backward") if counted else nullcontext():
            out.backward(gradient)


def predicted(tokens: int) -> Ledger:
    """Predict the step of LARGE's attention, with `tokens` on each rank in 2 bytes a number."""
    it = Attention(1, LARGE.heads, LARGE.kv_heads, tokens * RANKS, LARGE.head_size, 2)
    return ring_step(it, RANKS, speeds("H100", LINK))


def recorded(world, tokens: int) -> Ledger:
    """Record the step on four CPU ranks that stand for H100s, and return it after its barrier.

    Of up to ATTEMPTS recordings it is the one in which ranks were least late.
    """
    factor = 2 * round(WALL / predicted(tokens).makespan / 2)
    stands = Larger(SMALL, LARGE, (1, 1), (OWN, tokens), shared_by=(2,), sizes={2: 2},
                    name="attention on a rank")  # fmt: skip
    before, runs = world.slow_motion, []
    world.slow_motion = SlowMotion("H100", link=LINK, factor=factor, stands_for=stands)
    try:
        while len(runs) < ATTEMPTS and (not runs or _late(runs[-1]) > 0.01):
            runs.append(world.record(step, span))
    finally:
        world.slow_motion = before
    return after_barrier(min(runs, key=_late))


def _late(run: Ledger) -> float:
    """Return the share of a recording by which a rank was late, because the machine was busy."""
    return max(run.meta["slipped"]) / run.makespan


def sends(world, tokens: int) -> Ledger:
    """Record the step; return what rank 0 computes and sends, and print what was predicted of it.

    What arrives is left out: each rank receives while it sends.
    """
    run, expected = recorded(world, tokens).where(rank=0), predicted(tokens).where(rank=0)
    messages = [[row.bytes for row in one.where(op="send", lane="comm")] for one in (run, expected)]
    print(f"{tokens:,} tokens: predicted to wait {exposed(expected):.0%} of the step")
    print(f"  {len(messages[0])} sends, same bytes as predicted:", messages[0] == messages[1])
    rows = [row for row in run if row.op != "recv"]
    return Ledger(rows, source=run.source, results=run.results, meta=run.meta)


def exposed(ledger: Ledger) -> float:
    """Return the share of one rank's predicted time in which it waits for a message."""
    return sum(row.seconds for row in ledger.where(lane="wait")) / ledger.makespan
