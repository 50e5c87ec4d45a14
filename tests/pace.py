"""How fast this machine is just now: a yardstick for tests that bound a time."""

import io
import time

from matplotlib.figure import Figure


def seconds(work) -> float:
    """Processor time of `work()`, best of five: other tests may run beside."""
    took = []
    for _ in range(5):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return min(took)


def bars() -> None:
    """Draw 150 bars with matplotlib alone, as a PNG."""
    figure = Figure(figsize=(7, 3))
    axes = figure.subplots()
    for n in range(150):
        axes.barh(n, 1.0, left=n)
    figure.savefig(io.BytesIO(), format="png")
