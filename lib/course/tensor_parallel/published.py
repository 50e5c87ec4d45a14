"""Predicted steps on two links, and tokens per second beside those that were published."""

from lib.course.data_parallel.scaling import MEASURED_BANDWIDTH
from lib.ledger import Ledger
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor import throughput
from lib.predict.tensor.step import tensor_parallel_step


def exposed(ledger: Ledger) -> float:
    """Return the share of a predicted step in which rank 0 waits for an all-reduce."""
    computed = sum(row.seconds for row in ledger.where(rank=0, lane="compute"))
    return 1 - computed / ledger.makespan


def on_links(shape: GPTShape, ranks: int, links) -> list[Ledger]:
    """Predict a step of H100s with one sample in bfloat16 on each link; return rank 0's rows."""
    steps = []
    for link in links:
        step = tensor_parallel_step(shape, ranks, 1, speeds("H100", link), itemsize=2)
        print(f"{link:<15}{1e3 * step.makespan:6.1f} ms, {exposed(step):.0%} in all-reduces")
        steps.append(step.where(rank=0))
    return steps


def beside() -> str:
    """Write tokens/s of each GPU, predicted from the run on 2 ranks, beside those published."""
    measured = throughput.ULTRA_SCALE
    # Inside a node every GPU has the same link, so fewer ranks have the bandwidth of all eight.
    bandwidths = {ranks: MEASURED_BANDWIDTH[max(ranks, 8)] for ranks in measured}
    found = throughput.tokens_per_second(throughput.ULTRA_SCALE_SHAPE, bandwidths, (2, measured[2]))
    lines = ["ranks  published  predicted  error"]
    for ranks, rate in measured.items():
        error = f"{found[ranks] / rate - 1:+.0%}" if ranks > 2 else ""
        lines.append(f"{ranks:>5}{rate:>11,.0f}{found[ranks]:>11,.0f}{error:>7}".rstrip())
    return "\n".join(lines)


def drop(before: int, after: int) -> float:
    """Return by how many percent published tokens/s fall from one number of ranks to another."""
    measured = throughput.ULTRA_SCALE
    return round(100 * (1 - measured[after] / measured[before]))
