"""A data-parallel step on paper: from shapes alone to the rows that its ranks would record.

The model is a chain of matrix products, each followed by a ReLU, without biases. Each rank takes
its own batch forward and backward. Once the gradients of a bucket are there, their average is on
its way, while backward goes on; when backward is over, each rank waits for what is missing; then
plain SGD.

    x [B/dp, I] · W [I, O] -> [B/dp, O]        dW [I, O] +dp, all_reduce over dp, one per bucket

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.3.
"""

from lib.ledger import Ledger, Row
from lib.predict.buckets import assign, limits_of


def layers_per_bucket(widths, bucket_bytes: int | None = None, itemsize: int = 4) -> list[int]:
    """Say how many layers of this chain each bucket of DDP holds, from the last layer on."""
    sizes = [i * o * itemsize for i, o in zip(widths, widths[1:])]
    return [len(bucket) for bucket in assign(sizes[::-1], limits_of(bucket_bytes))]


def exposed(ledger: Ledger) -> float:
    """Seconds that a rank waits for all_reduces, the mean over ranks: what was not hidden."""
    waits = ledger.where(lane="wait", op="all_reduce")
    return float(waits.column("seconds").sum()) / max(len(ledger.ranks), 1)


def data_parallel_step(
    widths, batches, speeds, *, buckets=None, overlap=True, itemsize=4
) -> Ledger:
    """Predict one step: `widths` of the model's layers, one of `batches` for each rank.

    `speeds.compute(flop, bytes)` and `speeds.moving(op, ranks, bytes)` give seconds. `buckets` says
    how many layers each bucket holds, from the last layer on; default one. Without `overlap`, all
    communication starts when backward is over.
    """
    layers = list(zip(widths, widths[1:]))
    buckets = buckets or [1] * len(layers)
    if sum(buckets) != len(layers):
        raise ValueError(f"buckets of {buckets} layers do not hold the model's {len(layers)}")
    lasts = [sum(buckets[: n + 1]) for n in range(len(buckets))]
    rows: list[Row] = []

    # 1. Forward and backward on each rank; when each bucket is launched.
    clocks, launched = [], []
    for rank, batch in enumerate(batches):
        clock, averaged, times = 0.0, 0, []
        for op, flop, moved in _compute(layers, batch, itemsize):
            end = clock + speeds.compute(flop, moved)
            rows.append(Row(rank, "compute", op, clock, end, bytes=moved))
            clock, averaged = end, averaged + (op == "mul")
            if op == "mul" and averaged in lasts:
                times.append(clock)
        clocks.append(clock)
        launched.append(times if overlap else [clock] * len(buckets))

    # 2. One bucket after the other in one lane; whoever is through with backward waits.
    free, everyone = 0.0, tuple(range(len(batches)))
    for number, (count, last) in enumerate(zip(buckets, lasts)):
        inside = layers[len(layers) - last : len(layers) - last + count]
        what = {"group": "world", "members": everyone, "number": number}
        what["bytes"] = sum(i * o for i, o in inside) * itemsize
        arrived = max(times[number] for times in launched)
        free = max(free, arrived) + speeds.moving("all_reduce", len(batches), what["bytes"])
        for rank in everyone:
            start = launched[rank][number]
            rows.append(Row(rank, "comm", "all_reduce", start, free, arrived=arrived, **what))
            if free > clocks[rank]:
                rows.append(Row(rank, "wait", "all_reduce", clocks[rank], free, **what))
                clocks[rank] = free

    # 3. SGD reads weight and gradient and writes the weight.
    for rank in everyone:
        for i, o in layers:
            moved, start = 3 * i * o * itemsize, clocks[rank]
            clocks[rank] += speeds.compute(0, moved)
            rows.append(Row(rank, "compute", "add", start, clocks[rank], bytes=moved))
    return Ledger(rows, source="predicted")


def _compute(layers, batch, itemsize):
    """Give (operation, FLOP, bytes) of forward and backward in the order they run."""
    for i, o in layers:
        yield "mm", 2 * batch * i * o, (batch * i + i * o + batch * o) * itemsize
        yield "relu", 0, 2 * batch * o * itemsize
    for index in reversed(range(len(layers))):
        i, o = layers[index]
        product = "mm", 2 * batch * i * o, (batch * i + i * o + batch * o) * itemsize
        yield "threshold_backward", 0, 3 * batch * o * itemsize
        yield product  # for the weights
        if index:
            yield product  # for the layer below
        yield "mul", 0, 2 * i * o * itemsize  # the gradient ÷ ranks, into its bucket
