"""A data-parallel step, predicted: the rows that its ranks would record, from shapes alone.

Each rank runs its own batch forward and backward (lib/predict/step.py), and divides each gradient
by the number of ranks while it moves it into its bucket. As soon as the gradients of a bucket are
ready, their all-reduce starts, while backward continues. When backward has ended, each rank waits
for the remaining all-reduces and then takes a step of plain SGD.

    x [B/dp, I] · W [I, O] -> [B/dp, O]        dW [I, O] +dp, all_reduce over dp, one per bucket

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.3.
"""

from itertools import accumulate

from lib.ledger import Ledger, Row
from lib.predict import step
from lib.predict.arguments import equal_share, whole
from lib.predict.data.buckets import assign, limits_of
from lib.predict.provenance import of_prediction
from lib.predict.shape import MLPShape, ModelShape


def gradients_per_bucket(
    shape: ModelShape, bucket_bytes: int | None = None, itemsize: int = 4
) -> list[int]:
    """Return how many gradients each bucket of DDP holds, in the order in which they arrive."""
    order, itemsize = step.arrivals(step.backward(shape, 1)), whole(itemsize, "itemsize")
    numels = {parameter.name: parameter.numel for parameter in shape.parameters}
    sizes = [numels[name] * itemsize for name in order]
    return [len(bucket) for bucket in assign(sizes, limits_of(bucket_bytes))]


def layers_per_bucket(widths, bucket_bytes: int | None = None, itemsize: int = 4) -> list[int]:
    """Return how many layers of an MLP without biases each bucket holds, from the last layer on."""
    return gradients_per_bucket(MLPShape(tuple(widths), bias=False), bucket_bytes, itemsize)


def same_buckets(small: ModelShape, large: ModelShape, bucket_bytes: int, itemsize: int = 4) -> int:
    """Return the limit with which DDP divides `small` as it divides `large` with `bucket_bytes`.

    Then each bucket of the small model stands for the large one's of the same number. Raises
    ValueError where no limit does that.
    """
    order, numels = [], {p.name: p.numel for p in small.parameters}
    for op in step.backward(small, 1, itemsize=itemsize):
        order += [numels[name] * itemsize for name in op.ready]
    counts = gradients_per_bucket(large, bucket_bytes, itemsize)
    ends = list(accumulate(counts))
    buckets = [order[end - count : end] for count, end in zip(counts, ends)]
    least = min(map(sum, buckets[:-1]), default=sum(order))  # a bucket that others follow is full
    if gradients_per_bucket(small, least, itemsize) != counts:
        raise ValueError(
            f"No limit divides the small model's {len(order)} gradients into buckets of {counts}, "
            f"as {bucket_bytes:,} bytes divide the large one's. Choose another limit, or a small "
            "model whose sizes are nearer to the proportions of the large one's."
        )
    return least


def exposed(ledger: Ledger) -> float:
    """Return the seconds that ranks wait for all_reduces, averaged over ranks: the exposed part."""
    waits = ledger.where(lane="wait", op="all_reduce")
    return float(waits.column("seconds").sum()) / max(len(ledger.ranks), 1)


def data_parallel_step(
    shape, batches, speeds, *, buckets=None, overlap=True, itemsize=4, sequence=None
) -> Ledger:
    """Predict one step of the model of this `shape`, with one of `batches` for each rank.

    A list of widths stands for an MLP without biases. `speeds.compute(flop, bytes)` and
    `speeds.moving(op, ranks, bytes)` return seconds. `buckets` lists how many gradients each bucket
    holds, in the order in which they arrive; by default each holds one. Without `overlap`, all
    communication starts when backward has ended.
    """
    if not isinstance(shape, ModelShape):
        shape = MLPShape(tuple(shape), bias=False)
    if not len(batches):
        raise ValueError("A step needs at least one rank. Give the batch of each rank.")
    batches = [whole(batch, "The batch of a rank") for batch in batches]
    numels = {p.name: p.numel for p in shape.parameters}
    buckets = [1] * len(numels) if buckets is None else buckets
    if sum(whole(count, "The gradients of a bucket") for count in buckets) != len(numels):
        raise ValueError(
            f"Buckets of {buckets} gradients do not hold the {len(numels)} gradients of the model."
        )
    rows: list[Row] = []

    # 1. Run forward and backward on each rank, and note when each bucket is launched.
    clocks, launched, fills = [], [], list(accumulate(buckets))
    for rank, batch in enumerate(batches):
        work = step.forward(shape, batch, sequence, itemsize)
        work += step.averaged_backward(shape, batch, sequence, itemsize)
        clock, ready = 0.0, []
        for op in work:
            start, clock = clock, clock + speeds.compute(op.flop, op.bytes)
            rows.append(Row(rank, "compute", op.name, start, clock, bytes=op.bytes))
            ready += [(clock, numels[name] * itemsize) for name in op.ready]
        clocks.append(clock)
        launched.append([ready[last - 1][0] if overlap else clock for last in fills])
    sizes = [sum(nbytes for _, nbytes in ready[last - n : last]) for n, last in zip(buckets, fills)]

    # 2. Move one bucket after the other in one lane; ranks that have ended backward wait.
    free, everyone = 0.0, tuple(range(len(batches)))
    for number, nbytes in enumerate(sizes):
        what = {"group": "world", "members": everyone, "number": number, "bytes": nbytes}
        arrived = max(times[number] for times in launched)
        free = max(free, arrived) + speeds.moving("all_reduce", len(batches), nbytes)
        for rank in everyone:
            start = launched[rank][number]
            rows.append(Row(rank, "comm", "all_reduce", start, free, arrived=arrived, **what))
            if free > clocks[rank]:
                rows.append(Row(rank, "wait", "all_reduce", clocks[rank], free, **what))
                clocks[rank] = free

    # 3. Update the weights.
    for rank in everyone:
        for op in step.update(shape, itemsize):
            start, clocks[rank] = clocks[rank], clocks[rank] + speeds.compute(op.flop, op.bytes)
            rows.append(Row(rank, "compute", op.name, start, clocks[rank], bytes=op.bytes))
    return Ledger(rows, source="predicted", meta=of_prediction(speeds))


def parts_of_step(
    shape: ModelShape, batch: int, ranks: int, speeds, itemsize: int = 4
) -> tuple[float, float, float]:
    """Return the seconds of compute, of latency and of bytes in a step that hides nothing.

    The ranks share `batch`, and one all-reduce averages all gradients: the three add up to the
    makespan of `data_parallel_step` with one bucket. Raises ValueError for a batch that they cannot
    share equally.
    """
    share = equal_share(batch, ranks, "The batch has {} samples")
    work = step.forward(shape, share, itemsize=itemsize) + step.update(shape, itemsize)
    work += step.averaged_backward(shape, share, itemsize=itemsize)
    latency = speeds.moving("all_reduce", ranks, 0)
    moving = speeds.moving("all_reduce", ranks, shape.nbytes(itemsize))
    return step.seconds(work, speeds), latency, moving - latency
