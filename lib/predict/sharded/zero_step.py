"""A step of ZeRO-1 and ZeRO-2, predicted: the rows that its ranks would record, from shapes alone.

    stage 1  all_reduce of each bucket while backward runs, as DDP has it
    stage 2  reduce_scatter of each bucket while backward runs, one after the other
    both     step of this rank's share of a flat buffer, all_gather of its weights, and meanwhile
             the step of the next buffer's share

Stage 1 works beside DistributedDataParallel, so every rank receives all gradients and needs only
its share of them: 3ψ elements travel, where stage 2 has 2ψ.
"""

from collections.abc import Sequence
from itertools import accumulate

from lib.ledger import Ledger
from lib.predict import step
from lib.predict.collectives.exchange import Exchange
from lib.predict.data.buckets import CAP, assign, limits_of
from lib.predict.data.ddp_step import gradients_per_bucket
from lib.predict.operations import Operation
from lib.predict.shape import ModelShape
from lib.predict.sharded.lockstep import Lockstep
from lib.predict.sharded.states import share_of


def gradient_buckets(
    shape: ModelShape, stage: int, bucket_bytes: int | None = None, itemsize: int = 4
) -> list[list[str]]:
    """Return the names of the parameters in each bucket of gradients, in the order of sending.

    Stage 1 has DDP's buckets, in the order in which gradients arrive; stage 2 has those that the
    parameters fill from the last one to the first.
    """
    if stage not in (1, 2):
        raise ValueError(f"Stages 1 and 2 send gradients in buckets, not stage {stage!r}.")
    if stage == 1:
        order = step.arrivals(step.backward(shape, 1))
        ends = accumulate(gradients_per_bucket(shape, bucket_bytes, itemsize), initial=0)
        ends = list(ends)
        return [order[first:last] for first, last in zip(ends, ends[1:])]
    parameters = shape.parameters[::-1]
    filled = assign([p.numel * itemsize for p in parameters], limits_of(bucket_bytes))
    return [[parameters[n].name for n in bucket] for bucket in filled]


def weight_buffers(
    shape: ModelShape, stage: int, bucket_bytes: int | None = None, itemsize: int = 4
) -> list[int]:
    """Return the elements of the flat buffers of weights, in the order of their steps.

    Stage 1 lays the parameters into buffers of `bucket_bytes`, by default 25 MiB; those of stage 2
    are its buckets.
    """
    numels = {p.name: p.numel for p in shape.parameters}
    if stage == 2:
        buckets = gradient_buckets(shape, 2, bucket_bytes, itemsize)
        return [sum(numels[name] for name in bucket) for bucket in buckets]
    sizes = list(numels.values())
    filled = assign([size * itemsize for size in sizes], [bucket_bytes or CAP])
    return [sum(sizes[n] for n in buffer) for buffer in filled]


def fused_buffer_bytes(
    shape: ModelShape, ranks: int, bucket_bytes: int | None = None, itemsize: int = 4
) -> int:
    """Return the most bytes of whole gradients that a rank holds at once in a step of stage 2.

    These are ZeRO-R's fused buffers of constant size (Rajbhandari et al. 2019, section 6.2): one
    bucket fills while another is sent, so a deeper model needs no more. A bucket ends with the
    parameter that fills it, so it holds less than `bucket_bytes` plus the largest parameter.
    """
    numels, most, alive = {p.name: p.numel for p in shape.parameters}, 0, {}
    left = [set(bucket) for bucket in gradient_buckets(shape, 2, bucket_bytes, itemsize)]
    lengths = [share_of(sum(numels[n] for n in names), ranks) * ranks for names in left]
    sent = 0
    for name in step.arrivals(step.backward(shape, 1)):
        number = next(n for n, names in enumerate(left) if name in names)
        left[number].discard(name)
        alive[number] = lengths[number] * itemsize
        most = max(most, sum(alive.values()))
        while sent < len(left) and not left[sent]:  # the bucket before it is over now
            alive.pop(sent - 1, None)
            sent += 1
    return most


def exchanges(
    shape: ModelShape, ranks: int, stage: int, bucket_bytes: int | None = None, itemsize: int = 4
) -> list[Exchange]:
    """Return the collectives of a step in the order in which they are launched."""
    numels = {p.name: p.numel for p in shape.parameters}
    collectives, padded = [], lambda numel: share_of(numel, ranks) * ranks * itemsize
    for bucket in gradient_buckets(shape, stage, bucket_bytes, itemsize):
        numel = sum(numels[name] for name in bucket)
        if stage == 1:
            collectives.append(Exchange("all_reduce", ranks, numel * itemsize))
        else:
            collectives.append(Exchange("reduce_scatter", ranks, padded(numel)))
    buffers = weight_buffers(shape, stage, bucket_bytes if stage == 2 else None, itemsize)
    return collectives + [Exchange("all_gather", ranks, padded(numel)) for numel in buffers]


def zero_step(
    shape: ModelShape, batches: Sequence[int], speeds, *, stage: int = 1,
    bucket_bytes: int | None = None, itemsize: int = 4, sequence: int | None = None,
) -> Ledger:  # fmt: skip
    """Predict one step with one of `batches` for each rank, and plain SGD as the optimizer.

    `bucket_bytes` limits the buckets of gradients, by default as in DDP.
    """
    if not len(batches):
        raise ValueError("A step needs at least one rank. Give the batch of each rank.")
    ranks, everyone = len(batches), [tuple(range(len(batches)))]
    time, numels = Lockstep(ranks, speeds), {p.name: p.numel for p in shape.parameters}
    buckets = gradient_buckets(shape, stage, bucket_bytes, itemsize)
    planned = exchanges(shape, ranks, stage, bucket_bytes, itemsize)
    everywhere = lambda name, numbers: time.compute(
        [Operation(name, 0, numbers * itemsize)] * ranks
    )

    def settle(number: int) -> None:
        time.wait(flights[number])
        if stage == 2:  # the mean of this rank's share
            everywhere("div", 2 * planned[number].bytes // itemsize // ranks)

    # 1. Forward and backward; a bucket is launched when it and those before it are complete.
    for same in zip(*(step.forward(shape, batch, sequence, itemsize) for batch in batches)):
        time.compute(same)
    left, flights = [set(bucket) for bucket in buckets], []
    for same in zip(*(step.backward(shape, batch, sequence, itemsize) for batch in batches)):
        time.compute(same)
        for name in same[0].ready:
            everywhere("mul" if stage == 1 else "copy", 2 * numels[name])
            for names in left:
                names.discard(name)
            while len(flights) < len(left) and not left[len(flights)]:
                if stage == 2 and flights:
                    settle(len(flights) - 1)
                exchange = planned[len(flights)]
                flights.append(time.launch(exchange.op, exchange.bytes, everyone))

    # 2. Wait for what is under way, step share by share, and gather the weights.
    for number in range(len(buckets) - 1 if stage == 2 else 0, len(buckets)):
        settle(number)
    gathers = []
    for exchange in planned[len(buckets) :]:
        everywhere("add", 3 * exchange.bytes // itemsize // ranks)
        gathers.append(time.launch(exchange.op, exchange.bytes, everyone))
    for flight in gathers:
        time.wait(flight)
    return time.ledger()
