"""What `calibrate` times on the ranks: matrix products, memory traffic, operations, collectives.

A rank reads its clock only when its device has finished, and all ranks begin together. Each time is
that of several calls, one right after the other, divided by their number, as in nccl-tests.
"""

import itertools
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from lib.ranks.slow.roofline import Tally
from lib.ranks.state.ambient import own_device
from lib.ranks.state.default_device import is_gpu
from lib.ranks.state.gpu_clock import finish_work

BATCH, LONG = 0.004, 0.08  # s: a batch of calls takes at least this; a call above LONG is the last
LEAST = 1e-9  # s: what is left of an operation that takes no longer than an empty one
SHORT = 0.02  # s: a collective is repeated for about as long, at least twice
POOL = 2**26  # bytes of the tensors that calls take in turn
LAYERS = 12  # of the model whose step gives the overhead
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send")


def compute(sizes, numels) -> dict:
    """Time what this rank computes while all others do the same; return plain numbers.

    Matrix products are n × n for each n of `sizes`; sums of two tensors have `numels` elements.
    """
    dist.barrier()
    nothing = torch.zeros(2, 2)
    call = _each(lambda: nothing @ nothing)
    if is_gpu(own_device()):
        call = 0.0  # a GPU computes while the next call is made
    products = {}
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        products[name] = _curve(sizes, call, lambda n, dtype=dtype: _product(n, dtype))
    traffic = _curve(numels, call, _sum)
    return {"products": products, "traffic": traffic, "overhead": _overhead()}


def _curve(sizes, call: float, operation) -> list[float]:
    """Return the seconds of an operation at each size, less the `call` that it is."""
    seconds = []
    for size in sizes:
        seconds.append(max(rounded(_each(operation(size)) - call), LEAST))
        if seconds[-1] > LONG:
            break
    return seconds


def _product(n: int, dtype: torch.dtype):
    return _in_turn(n * n, lambda: torch.ones(n, n, dtype=dtype), torch.matmul)


def _sum(numel: int):
    return _in_turn(numel, lambda: torch.ones(numel), torch.add)


def _in_turn(numel: int, operand, operation):
    """Return a call of an operation with two operands that takes other tensors each time.

    In a training step an operation seldom finds its operands in the cache, and its result is kept
    for backward. So the tensors of all calls are larger than most caches, and results are kept.
    """
    count = min(max(2, POOL // (12 * numel)), 2048)
    left, right, kept = ([operand() for _ in range(count)] for _ in range(3))
    turn = itertools.cycle(range(count))

    def call():
        place = next(turn)
        kept[place] = operation(left[place], right[place])

    return call


def _each(call, batches: int = 5) -> float:
    """Return the median seconds of a call over several batches of calls."""
    call()
    count = max(1, round(BATCH / max(_timed(call, 1), 1e-6)))
    return median(_timed(call, count) for _ in range(batches if count > 1 else 3))


def _timed(call, count: int) -> float:
    """Return the seconds of each of `count` calls in a row, until the device has done them."""
    finish_work()
    began = time.perf_counter()
    for _ in range(count):
        call()
    finish_work()
    return rounded((time.perf_counter() - began) / count)


def rounded(seconds: float) -> float:
    """Return four digits, which a reader of the file can read."""
    return float(f"{seconds:.4g}")


def _overhead() -> float:
    """Return the seconds that each operation of a training step on tiny tensors takes."""
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(4, 4, bias=False), nn.ReLU())]
    model, x = nn.Sequential(*layers), torch.ones(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, foreach=False)

    def step():
        optimizer.zero_grad()
        model(x).backward(x)
        optimizer.step()

    with torch.enable_grad():
        for _ in range(3):
            step()
        with Tally() as tally:
            step()
        return rounded(_each(step) / sum(map(any, tally.costs)))


def hidden(nbytes: int = 2**22, n: int = 512) -> float:
    """Return the share of an all_reduce that hides behind matrix products which last as long.

    It is 1 where both together take as long as the longer of the two, and 0 where they take as long
    as one after the other: where a rank has one core, the same core does both.
    """
    buffer, product = torch.zeros(nbytes // 4), _product(n, torch.float32)
    dist.all_reduce(buffer)
    answers = [_hidden_once(buffer, product) for _ in range(7)]
    return round(min(max(median(answers), 0.0), 1.0), 3)


def _hidden_once(buffer: torch.Tensor, product) -> float:
    dist.barrier()
    moving = _timed(lambda: dist.all_reduce(buffer), 1)
    count = torch.tensor(moving / max(_timed(product, 3), 1e-9))
    dist.broadcast(count, 0)  # every rank computes as much
    count = min(max(1, round(float(count))), 1000)
    dist.barrier()
    computing = count * _timed(product, count)
    dist.barrier()
    both = _timed(lambda: _at_once(buffer, product, count), 1)
    return (computing + moving - both) / min(computing, moving)


def _at_once(buffer: torch.Tensor, product, count: int) -> None:
    work = dist.all_reduce(buffer, async_op=True)
    for _ in range(count):
        product()
    work.wait()


def collectives(ranks: int, sizes) -> dict | None:
    """Time each collective at each of `sizes` (bytes) among the first ranks; None on the others.

    Returns {op: seconds by size}.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    group = None if ranks == size else dist.new_group(range(ranks))
    times = None
    if rank < ranks:
        times = {op: [_collective(op, ranks, n, group) for n in sizes] for op in OPS}
    dist.barrier()
    if group is not None and rank < ranks:
        dist.destroy_process_group(group)
    return times


def _collective(op: str, ranks: int, nbytes: int, group) -> float:
    numel = nbytes // 4
    full, shard = torch.zeros(numel), torch.zeros(numel // ranks)
    other = torch.zeros(numel) if op == "all_to_all" else None
    call = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: dist.all_gather_single(full, shard, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(shard, full, group=group),
        "broadcast": lambda: dist.broadcast(full, group_src=0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
        "send": lambda: _there_and_back(full, group),
    }[op]
    call()
    once = torch.tensor(_timed(call, 1))
    dist.all_reduce(once, dist.ReduceOp.MAX, group=group)  # every rank repeats as often
    repeats = min(max(round(SHORT / max(float(once), 1e-9)), 2), 20)
    dist.barrier(group)
    return _timed(call, repeats) / (2 if op == "send" else 1)


def _there_and_back(x: torch.Tensor, group) -> None:
    """Send x from the first rank to the second and back; the others do nothing."""
    rank = dist.get_rank(group)
    if rank == 0:
        dist.send(x, group_dst=1, group=group)
        dist.recv(x, group_src=1, group=group)
    elif rank == 1:
        dist.recv(x, group_src=0, group=group)
        dist.send(x, group_dst=0, group=group)
