"""Published tokens per second of tensor parallelism, and what we predict for them."""

from lib.course.data_parallel.scaling import MEASURED_BANDWIDTH
from lib.predict.tensor import throughput


def beside() -> str:
    """Write tokens/s of each GPU, predicted from the run on 2 ranks, beside those published.

    The last column predicts what a node's bandwidth among all ranks would give.
    """
    measured = throughput.ULTRA_SCALE
    # Inside a node every GPU has the same link, so fewer ranks have the bandwidth of all eight.
    bandwidths = {ranks: MEASURED_BANDWIDTH[max(ranks, 8)] for ranks in measured}
    found, fast = (
        throughput.tokens_per_second(throughput.ULTRA_SCALE_SHAPE, links, (2, measured[2]))
        for links in (bandwidths, dict.fromkeys(measured, MEASURED_BANDWIDTH[8]))
    )
    lines = ["ranks  published  predicted  error  at 436 GB/s"]
    for ranks, rate in measured.items():
        error = f"{found[ranks] / rate - 1:+.0%}" if ranks > 2 else ""
        lines.append(
            f"{ranks:>5}{rate:>11,.0f}{found[ranks]:>11,.0f}{error:>7}{fast[ranks]:>13,.0f}"
        )
    return "\n".join(lines)


def drop(before: int, after: int) -> float:
    """Return by how many percent published tokens/s fall from one number of ranks to another."""
    measured = throughput.ULTRA_SCALE
    return round(100 * (1 - measured[after] / measured[before]))
