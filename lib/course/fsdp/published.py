"""A published measurement that chapter 3 predicts: what backward prefetch gains for GPT-175B."""

from typing import NamedTuple

from lib.predict.collectives.formulas import time_of
from lib.predict.hardware import gpu
from lib.predict.shape import GPTShape
from lib.predict.sharded.prefetch import play_units


class Prefetch(NamedTuple):
    """Holds what FSDP's paper measured for GPT-175B, and the step without backward prefetch."""

    batch: int
    published: float  # FLOP/s of a GPU, with prefetch
    step: float  # seconds, of which the computation takes those of the published rate
    without: float  # seconds, predicted

    @property
    def gain(self) -> float:
        """Return how much faster the step is with prefetch."""
        return self.without / self.step - 1


GPT3 = GPTShape(50_000, sequence=2048, width=12_288, heads=96, layers=96)
PUBLISHED = {1: 173e12, 2: 186e12}  # FLOP/s of an A100 by batch; Zhao et al. 2023, 2304.11277
HOST = 250e9  # bytes/s: 2 Tb/s of RoCE for each host of eight A100s
GAIN = 0.18  # of throughput, by backward prefetch


def prefetch_of_gpt3(ranks: int = 512) -> list[Prefetch]:
    """Predict what backward prefetch gains for GPT-175B in bfloat16 with recomputation.

    The seconds of computation are those of the published rate; forward takes a quarter of them.
    Forward's gathers are launched ahead in both cases. The authors' run on 128 GPUs with batch 2
    lost time in the allocator's retries, so the default is the most GPUs that they used.
    """
    units, found = [2 * GPT3.numel // GPT3.layers] * GPT3.layers, []
    link = {"ranks": ranks, "alpha": 0.0, "bandwidth": HOST}
    gather = time_of("all_gather", ranks, units[0], alpha=0.0, beta=1 / HOST)
    for batch, rate in PUBLISHED.items():
        layer = 8 * GPT3.numel * batch * GPT3.sequence / rate / GPT3.layers  # seconds
        times = [0.25 * layer] * GPT3.layers, [0.75 * layer] * GPT3.layers
        late, ahead = (play_units(units, *times, prefetch=limit, **link) for limit in (0, 1))
        without = late.end - (GPT3.layers - 1) * gather
        found.append(Prefetch(batch, rate, ahead.end, without))
    return found


def table() -> str:
    """Return the predicted gains beside the published one, and by how much the peak is above."""
    lines = ["batch  step, s  without  gain   published"]
    for run in prefetch_of_gpt3():
        gain = f"{run.gain:>5.0%}   {GAIN:.0%}"
        lines.append(f"{run.batch:<7}{run.step:>6.1f}{run.without:>9.1f} {gain}")
    peak = gpu("A100").peak["bf16"]
    for batch, rate in PUBLISHED.items():
        lines.append(f"batch {batch}: the peak is {peak / rate - 1:.0%} above the published rate")
    return "\n".join(lines)
