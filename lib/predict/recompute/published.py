"""Recomputation in large models as it was published, and the formulas from which it follows.

    a layer keeps, of tensor parallelism's s·b·h·(10 + 24/t + 5as/(ht)) bytes:
    sequence parallelism   34/t + 5as/(ht)        selective   10 + 24/t
    both                   34/t                   full        2

Of a layer's 72·b·s·h² + 12·b·s²·h operations the products of attention in forward, which selective
recomputation repeats, are 4·b·s²·h. The paper's appendix A adds 12·b·s²·h, three times as many.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv
2205.05198), table 2 and figure 7. The figure has bars without numbers. Those here were computed by hand
from table 2, and agree within 0.1 % with a transcription of the bars.
"""  # noqa: E501

from typing import NamedTuple

from lib.predict.tensor.memory import published_layer


class Large(NamedTuple):
    """Describes a model of the paper: width, heads, sequence, samples of a microbatch, ranks."""

    width: int
    heads: int
    sequence: int
    batch: int
    ranks: int


MODELS = {
    "22B": Large(6144, 64, 2048, 4, 8),
    "175B": Large(12_288, 96, 2048, 1, 8),
    "530B": Large(20_480, 128, 2048, 1, 8),
    "1T": Large(25_600, 160, 2048, 1, 8),
}
WAYS = ("sequence parallel", "selective", "both", "full")
# Percent of what tensor parallelism alone keeps, in the order of WAYS.
FIGURE_7 = {
    "22B": (66.8, 49.4, 16.1, 7.6),
    "175B": (62.0, 56.5, 18.5, 8.7),
    "530B": (58.3, 61.9, 20.2, 9.5),
    "1T": (58.3, 61.9, 20.2, 9.5),
}
# Seconds of an iteration with everything recomputed, and with selective recomputation and sequence
# parallelism: two of the four rows of table 5.
TABLE_5 = {"22B": (1.42, 1.10), "530B": (49.05, 37.83)}


def shares(model: Large) -> tuple[float, ...]:
    """Return what a layer keeps in each of WAYS, as a share of tensor parallelism alone."""
    alone = published_layer(*model)
    full = 2 * model.sequence * model.batch * model.width
    both = {"scores": False, "sequence_parallel": True}
    kept = (
        published_layer(*model, sequence_parallel=True), published_layer(*model, scores=False),
        published_layer(*model, **both), full,
    )  # fmt: skip
    return tuple(nbytes / alone for nbytes in kept)


# By how much selective recomputation adds to the operations of a step, as the paper says.
OPERATIONS_ADDED = {"175B": 0.027, "530B": 0.016}


def operations_added(model: Large, repeated: int = 4) -> float:
    """Return by which share selective recomputation adds to the operations of a layer's step.

    `repeated` is the multiple of b·s²·h that is computed again: 4 by our count, 12 by the paper's.
    """
    return repeated * model.sequence / (72 * model.width + 12 * model.sequence)
