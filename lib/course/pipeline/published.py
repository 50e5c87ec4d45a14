"""Published figures of zero-bubble pipelines on GPUs, beside what `play` computes.

All are from Qi et al. 2023, arXiv 2401.10241: measured times in table 9, bubbles that the authors
calculated from these in table 5, measured throughput in table 4. Each model is taken with its
smallest number of microbatches.
"""

from typing import NamedTuple

from lib.course.pipeline.bubbles import score
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import Costs


class Published(NamedTuple):
    """Holds what is printed about one model, whose stages are as equal as possible.

    `times` are milliseconds of F, I and W of one microbatch of `samples` sequences on one stage,
    `message` those of a message. Interleaved schedules give each rank `chunks` stages. Bubbles
    (spans) and samples per second and GPU are those of 1F1B, ZB-1p and interleaved 1F1B.
    """

    ranks: int
    microbatches: int
    samples: int
    chunks: int
    times: tuple[float, float, float]
    message: float
    bubbles: tuple[float, float, float]
    throughput: tuple[float, float, float]


MODELS = {
    "1.5B": Published(
        8, 24, 6, 3, (18.522, 18.086, 9.337), 0.601, (0.2431, 0.1585, 0.1055), (11.8, 12.9, 13.1)
    ),
    "6.2B": Published(
        8, 24, 3, 4, (29.718, 29.444, 19.927), 0.527, (0.2347, 0.1323, 0.0808), (3.50, 3.88, 4.01)
    ),
    "14.6B": Published(
        16, 48, 1, 3, (11.347, 11.248, 8.132), 0.377, (0.2552, 0.1397, 0.1104), (1.40, 1.61, 1.54)
    ),
}


class Compared(NamedTuple):
    """Holds a schedule's computed bubble (span) and samples per second and GPU, and the printed."""

    schedule: str
    bubble: float
    printed_bubble: float
    throughput: float
    measured: float


def compare(model: Published) -> list[Compared]:
    """Compute bubble and throughput of 1F1B, ZB-1p and interleaved 1F1B from the measured times.

    ZB-1p is simulated as ZB-H1, which has the same bubble in the authors' table 5.
    """
    p, m, v = model.ranks, model.microbatches, model.chunks
    orders = {
        "1F1B": schedules.one_f_one_b(p, m),
        "ZB-1p": schedules.zb_h1(p, m),
        "interleaved": schedules.interleaved(v * p, m, v),
    }
    rows = []
    printed = zip(model.bubbles, model.throughput, strict=True)
    for (name, order), (bubble, measured) in zip(orders.items(), printed, strict=True):
        played = score(order, Costs(*model.times, send=model.message))
        samples = 1e3 * m * model.samples / (p * played.makespan)
        rows.append(Compared(name, played.span, bubble, samples, measured))
    return rows


def bubbles() -> str:
    """Return the computed bubbles (spans) of all models beside the printed ones, as text."""
    lines = [f"{'span bubble':<12}{'ours':>7}{'table 5':>9}"]
    for name, model in MODELS.items():
        lines.append(_heading(name, model))
        lines += [
            f"{row.schedule:<12}{row.bubble:>7.4f}{row.printed_bubble:>9.4f}"
            for row in compare(model)
        ]
    return "\n".join(lines)


def throughputs() -> str:
    """Return samples per second and GPU beside the measured ones, and gains over 1F1B, as text."""
    lines = [
        f"{'':<12}{'samples/s, GPU':>15}{'gain over 1F1B':>20}",
        f"{'':<12}{'ours':>6}{'meas.':>6}{'error':>6}{'ours':>8}{'meas.':>8}",
    ]
    for name, model in MODELS.items():
        plain, *_ = rows = compare(model)
        lines.append(_heading(name, model))
        for row in rows:
            lines.append(
                f"{row.schedule:<12}{row.throughput:>6.2f}{row.measured:>6.2f}"
                f"{row.throughput / row.measured - 1:>+6.0%}"
                f"{row.throughput / plain.throughput - 1:>+8.1%}"
                f"{row.measured / plain.measured - 1:>+8.1%}"
            )
    return "\n".join(lines)


def _heading(name: str, model: Published) -> str:
    return f"{name} weights, p = {model.ranks}, m = {model.microbatches}"
