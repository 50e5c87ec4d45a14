"""Recomputation as Korthikanti and others measured it, beside what we predict."""

from lib.predict.recompute.published import (
    FIGURE_7,
    MODELS,
    OPERATIONS_ADDED,
    TABLE_5,
    WAYS,
    operations_added,
    shares,
)
from lib.predict.roofline import speeds
from lib.predict.sequence.published_times import (
    RANKS,
    SAMPLES,
    SHAPE_22B,
    TABLE_4,
    recomputed_scores,
)


def one_layer() -> str:
    """Write the milliseconds that recomputation adds to a layer of 22B, published and predicted."""
    forward, backward = TABLE_4["tensor parallel"]
    again = 1e3 * recomputed_scores(SHAPE_22B, RANKS, SAMPLES, speeds("A100"))
    rows = [
        ("all", TABLE_4["all recomputed"][1] - backward, forward),
        ("selective", TABLE_4["selective"][1] - backward, again),
    ]
    lines = ["added to a layer     published   predicted"]
    for name, published, predicted in rows:
        parts = (f"{ms:5.1f} ms{ms / (forward + backward):>4.0%}" for ms in (published, predicted))
        lines.append(f"{name:<17}" + "".join(f"{part:>12}" for part in parts))
    return "\n".join(lines)


def kept_by_a_layer() -> str:
    """Write what a layer keeps by way of recomputation, in percent of tensor parallelism alone.

    The model 1T has the figures of 530B, and is left out.
    """
    names = [name for name in MODELS if name != "1T"]
    lines = ["% of a layer  " + "".join(f"{name:>11}" for name in names)]
    predicted = [shares(MODELS[name]) for name in names]
    for n, way in enumerate(WAYS):
        pairs = ((FIGURE_7[name][n], 100 * found[n]) for name, found in zip(names, predicted))
        cells = "".join(f"{a:>6.1f}{b:>5.1f}" for a, b in pairs)
        lines.append(f"{way.replace('sequence', 'seq.'):<14}{cells}")
    return "\n".join(lines)


def whole_steps() -> str:
    """Write the seconds of an iteration with full and with selective recomputation."""
    lines = ["        all  selective  gain"]
    for name, (full, present) in TABLE_5.items():
        lines.append(f"{name:<5}{full:>6.2f} s{present:>8.2f} s{full / present - 1:>7.1%}")
    return "\n".join(lines)


def operations() -> str:
    """Write by how much selective recomputation adds to the operations, published and counted."""
    lines = ["operations added   published  counted"]
    for name, share in OPERATIONS_ADDED.items():
        lines.append(f"selective, {name:<8}{share:>9.1%}{operations_added(MODELS[name]):>9.1%}")
    return "\n".join(lines)
