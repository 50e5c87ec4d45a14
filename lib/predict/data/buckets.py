"""Buckets: which gradients are sent together, as PyTorch's DDP assigns them.

A bucket is full once it holds its limit of bytes or more; the next parameter opens another one. A
bucket holds numbers of one dtype. Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704),
section 3.2.3, and torch 2.13, `compute_bucket_assignment_by_size`.
"""

from collections.abc import Sequence

from lib.predict.shape import ModelShape

FIRST, CAP = 2**20, 25 * 2**20  # bytes; the first bucket is small, so that sending begins early


def limits_of(bucket_bytes: int | None) -> tuple[int, ...]:
    """Return the limit of each bucket in turn; the last limit holds for all buckets that follow.

    None stands for 1 MiB, then 25 MiB. Raises ValueError for a size below 1 byte.
    """
    if bucket_bytes is not None and bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}.")
    return (FIRST, CAP) if bucket_bytes is None else (bucket_bytes,)


def assign(
    nbytes: Sequence[int], limits: Sequence[float], kinds: Sequence | None = None
) -> list[list[int]]:
    """Put tensors of `nbytes`, in this order, into buckets, each a list of positions.

    Tensors share a bucket only if their `kinds` (for example dtype and device) are equal; by
    default all may. Buckets are returned in the order in which they become full.
    """
    full: list[list[int]] = []
    open_: dict = {}  # kind -> positions, bytes, and the number of full buckets of this kind
    for position, size in enumerate(nbytes):
        bucket = open_.setdefault(kinds[position] if kinds else None, [[], 0, 0])
        bucket[0].append(position)
        bucket[1] += size
        if bucket[1] >= limits[min(bucket[2], len(limits) - 1)]:
            full.append(bucket[0])
            bucket[:] = [], 0, bucket[2] + 1
    left = [positions for positions, _, _ in open_.values() if positions]
    return sorted(full + left, key=lambda positions: positions[-1])


def construction(shape: ModelShape, ranks: int, itemsize: int = 4) -> list[tuple[str, int]]:
    """Return the exchanges, (operation, bytes), that give every rank the first rank's model.

    Two integers of 8 bytes show whether the models have the same shapes; the parameters follow.
    """
    return [("all_gather", 16 * ranks), ("broadcast", shape.nbytes(itemsize))]


def exchanges(
    shape: ModelShape, step: int, bucket_bytes: int | None = None, itemsize: int = 4
) -> list[tuple[str, int]]:
    """Return the exchanges, (operation, bytes), of a step in the order in which they are launched.

    Step 0 has one bucket. Step 1 begins with the order of the parameters, 8 bytes each. Backward
    computes the gradients from the last parameter to the first; that of a tied head is complete
    with its embedding's.
    """
    if step == 0:
        return [("all_reduce", shape.nbytes(itemsize))]
    sizes = [parameter.numel * itemsize for parameter in reversed(shape.parameters)]
    buckets = assign(sizes, limits_of(bucket_bytes))
    order = [("broadcast", 8 * len(sizes))] if step == 1 else []
    return order + [("all_reduce", sum(sizes[n] for n in bucket)) for bucket in buckets]
