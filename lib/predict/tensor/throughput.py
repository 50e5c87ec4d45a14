"""Tokens per second of tensor parallelism, from one measured run and the bytes of its all-reduces.

A group of t ranks spends c/t seconds on a token's computation and a(t) on its all-reduces:

    tokens/s of each GPU = 1 / (t · (c/t + a(t))) = 1 / (c + t·a(t))

c are GPU-seconds for a token, taken from one measured run. a(t) are the bytes that a rank sends in
rings for a token, divided by the bus bandwidth that was measured for an all-reduce of t ranks (a
bus bandwidth counts bytes in the same way). Nothing is hidden, and products of all sizes run at one
rate. What a rank sends hardly grows with t, but t ranks send it for the same token.
"""

from collections.abc import Mapping

from lib.predict.arguments import real
from lib.predict.collectives.exchange import sent_bytes
from lib.predict.shape import GPTShape
from lib.predict.tensor.traffic import of_step

# Tokens/s of each H100 by the ranks of tensor parallelism, for a model of 3 billion parameters on
# nodes of 8. Source: the Ultra-Scale Playbook (Hugging Face, 2025), data of its figure:
# vinjn/nanotron-ultrascale-playbook@e3bcfc5, assets/data/benchmarks/tp_scaling.html.
ULTRA_SCALE = {2: 13_923.18, 4: 12_420.76, 8: 10_903.32, 16: 6_245.6, 32: 2_146.44}
# Its 3B model. Two matrices of 12,288 stand for its gated MLP's three of 8,192.
ULTRA_SCALE_SHAPE = GPTShape(
    131_072, sequence=4096, width=3072, heads=32, layers=28, hidden=12_288, tied=True,
    positions="rotary",
)  # fmt: skip


def seconds_of_sums(shape: GPTShape, ranks: int, bandwidth: float, itemsize: int = 2) -> float:
    """Return the seconds of all of a step's all-reduces for each token, if none is hidden.

    `bandwidth` is the bus bandwidth of an all-reduce of `ranks` ranks, in bytes/s.
    """
    sent = sent_bytes(of_step(shape, ranks, 1, 1, itemsize))
    return sent / real(bandwidth, "The bandwidth")


def tokens_per_second(
    shape: GPTShape, bandwidths: Mapping[int, float], measured: tuple[int, float],
    itemsize: int = 2,
) -> dict[int, float]:  # fmt: skip
    """Return the tokens/s of each GPU for each number of ranks of `bandwidths`.

    `measured` is the one run from which the time of computation is taken: its ranks and the
    tokens/s of each GPU. Raises ValueError if its all-reduces alone take longer than it took.
    """
    moving = {
        ranks: ranks * seconds_of_sums(shape, ranks, bandwidth, itemsize)
        for ranks, bandwidth in bandwidths.items()
    }
    ranks, rate = measured
    computing = 1 / rate - moving[ranks]
    if computing <= 0:
        raise ValueError(
            f"On {ranks} ranks the all-reduces alone take {moving[ranks]:.2g} s for a token, and "
            f"at {rate:,.0f} tokens/s the whole token took less. Check the bandwidth."
        )
    return {ranks: 1 / (computing + seconds) for ranks, seconds in moving.items()}
