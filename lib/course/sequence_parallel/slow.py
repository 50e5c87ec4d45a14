"""Ring attention in slow motion: four small ranks stand for four H100s with a long sequence."""

import torch
import torch.distributed as dist

from lib.course.data_parallel.lessons import after_barrier
from lib.ledger import Ledger
from lib.parallel.sequence import ring_attention
from lib.predict.larger import Larger
from lib.predict.roofline import speeds
from lib.predict.sequence.ring_step import Attention, ring_step
from lib.predict.shape import GPTShape
from lib.ranks import World
from lib.ranks.slow_motion import SlowMotion

RANKS, LINK = 4, "InfiniBand NDR"
OWN = 32  # tokens of a rank in the small run
# What runs is small: each of its sizes stands for one of Llama 3 8B's.
SMALL = GPTShape(5, OWN, 252, 21, 1, kv_heads=7, hidden=9)
LARGE = GPTShape(11, 2**17, 4096, 32, 1, kv_heads=8, hidden=14_336)
WALL = 1.5  # seconds that a recording is stretched to, about


def step() -> None:
    """Run forward and backward of this rank's attention, once to warm up, then after a barrier."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    sizes = [(1, heads, OWN, SMALL.head_size) for heads in (21, 7, 7, 21)]
    q, k, v, gradient = (torch.randn(size, generator=draw).bfloat16() for size in sizes)
    for _ in range(2):
        dist.barrier()
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        ring_attention(*leaves).backward(gradient)


def attention(tokens: int) -> Attention:
    """Describe LARGE's attention over `tokens` on each rank, in 2 bytes a number."""
    return Attention(1, LARGE.heads, LARGE.kv_heads, tokens * RANKS, LARGE.head_size, 2)


def predicted(tokens: int) -> Ledger:
    """Predict the same step with `tokens` on each rank, with masked blocks counted whole."""
    return ring_step(attention(tokens), RANKS, speeds("H100", LINK))


def recorded(tokens: int) -> Ledger:
    """Record a step whose ranks stand for H100s with `tokens` each; return rank 0's rows."""
    factor = 2 * round(WALL / predicted(tokens).makespan / 2)
    stands = Larger(SMALL, LARGE, (1, 1), (OWN, tokens), shared_by=(2,), sizes={2: 2})
    speeds = SlowMotion("H100", link=LINK, factor=factor, stands_for=stands)
    with World(RANKS, device="cpu", slow_motion=speeds) as world:
        return after_barrier(world.record(step)).where(rank=0)
