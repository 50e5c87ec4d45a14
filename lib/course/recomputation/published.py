"""Recomputation as Korthikanti and others measured it, beside what we predict."""

from lib.predict.recompute.published import MODELS, shares
from lib.predict.roofline import speeds
from lib.predict.sequence.published_times import (
    RANKS,
    SAMPLES,
    SHAPE_22B,
    TABLE_4,
    recomputed_scores,
)


def one_layer(*policies: str) -> str:
    """Write the milliseconds that "all" or "selective" add to a layer of 22B, by their names.

    The published ones stand beside those that are predicted.
    """
    forward, backward = TABLE_4["tensor parallel"]
    again = 1e3 * recomputed_scores(SHAPE_22B, RANKS, SAMPLES, speeds("A100"))
    added = {
        "all": (TABLE_4["all recomputed"][1] - backward, forward),
        "selective": (TABLE_4["selective"][1] - backward, again),
    }
    lines = ["added to a layer     published   predicted"]
    for name in policies:
        parts = (f"{ms:5.1f} ms{ms / (forward + backward):>4.0%}" for ms in added[name])
        lines.append(f"{name:<17}" + "".join(f"{part:>12}" for part in parts))
    return "\n".join(lines)


def kept_on_a_rank() -> str:
    """Write what a layer keeps on each of 8 ranks, in percent of tensor parallelism alone."""
    lines = ["keeps  sequence  selective   both    all"]
    for name in ("22B", "175B", "530B"):
        sequence, selective, both, everything = shares(MODELS[name])
        lines.append(f"{name:<5}{sequence:>10.1%}{selective:>11.1%}{both:>7.1%}{everything:>7.1%}")
    return "\n".join(lines)
