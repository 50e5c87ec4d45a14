"""Measure data parallelism against PyTorch's, in turns in the same processes.

    python tests/bench_data.py [--repeats 40] [--launches 3] [--only steps,memory]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import argparse
import ctypes
import functools
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Theirs

from lib import World
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, mean_squares, next_token_loss

BUCKET = 2**20
VIEWS = {"gradient_as_bucket_view": True}  # of theirs
MODELS = {
    "GPT of 4 layers": GPTShape(width=256, heads=4, sequence=128),
    "wide MLP": MLPShape((1024, 2048, 2048, 1024)),
}


@dataclass
class Figure:
    """One line of the table: ours against theirs in `unit`, and what the ratio must reach."""

    name: str
    ours: float
    theirs: float
    ratio: float
    must: str
    reached: bool
    unit: str = "ms"


def build(name, theirs=None):
    """Make one model, its optimizer, its batch, its loss; ours, or theirs with these options."""
    shape = MODELS[name]
    torch.manual_seed(1 + dist.get_rank())
    if isinstance(shape, GPTShape):
        model, loss = GPT(shape), next_token_loss
        tokens = torch.randint(256, (2, shape.sequence + 1))
        batch = tokens[:, :-1], tokens[:, 1:]
    else:
        model, loss = MLP(shape), mean_squares
        batch = torch.randn(64, shape.widths[0]), torch.randn(64, shape.widths[-1])
    if theirs is None:
        wrapped = DistributedDataParallel(model, bucket_bytes=BUCKET)
    else:
        wrapped = Theirs(model, bucket_cap_mb=BUCKET / 2**20, **theirs)
    return wrapped, torch.optim.AdamW(model.parameters(), 1e-4), batch, loss


def step(wrapped, optimizer, batch, loss):
    """One training step."""
    optimizer.zero_grad()
    loss(wrapped(batch[0]), batch[1]).backward()
    optimizer.step()


def rival(name, kind):
    """Make "ours" or "theirs", which keeps gradients as views of its buckets, as ours does."""
    return build(name, None if kind == "ours" else VIEWS)


def in_turns(make, repeats):
    """Time steps of ours and of theirs in turns on this rank: medians of (clock, CPU) seconds.

    `make("ours")` and `make("theirs")` give the arguments of `step`. CPU time is that of all
    threads of the rank; it tells how much work a step is where the machine is shared. Each is there
    twice, as where its memory happens to lie makes up to 3 % of a step.
    """
    keep_what_is_freed()
    rivals = [make(kind) for kind in ("ours", "theirs", "theirs", "ours")]
    taken = {"ours": [], "theirs": []}
    for turn in range(repeats + 3):
        for place in range(4):
            which = (turn + place) % 4  # nobody is always first
            dist.barrier()
            began, worked = time.perf_counter(), time.process_time()
            step(*rivals[which])
            dist.barrier()  # a step is over when the last rank's is
            if turn >= 3:
                both = time.perf_counter() - began, time.process_time() - worked
                taken["ours" if which in (0, 3) else "theirs"].append(both)
    return [[statistics.median(times) for times in zip(*each)] for each in taken.values()]


def keep_what_is_freed():
    """Let glibc give no memory back: page faults would fall on one of the two by chance."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            libc.mallopt(option, 2**31 - 1)


def steps(options):
    """Our step against PyTorch's, on 2 and 4 ranks: by the clock, and in CPU time."""
    for ranks in (2, 4):
        for name in MODELS:
            make = functools.partial(rival, name)
            yield from compared(name, make, ranks, options, "ours / PyTorch's DDP", 1.02)


def compared(name, make, ranks, options, rivals, limit):
    """Time rivals in new worlds: two figures, each the median of `options.launches` ratios."""
    found = []
    for _ in range(options.launches):
        with World(ranks, device="cpu") as world:
            ours, theirs = world.run(in_turns, make, options.repeats)[0]
        found.append([(a / b, 1e3 * a, 1e3 * b) for a, b in zip(ours, theirs)])
    for what, launches in zip(("step", "CPU time of a step"), zip(*found)):
        ratio, ours, theirs = statistics.median_low(launches)
        title = f"{what} of a {name}, {ranks} ranks, {rivals}"
        yield Figure(title, ours, theirs, ratio, f"at most {limit} times", ratio <= limit)


def bytes_held(name, theirs):
    """Bytes of gradients and what lies beside them on this rank after backward, and the peak."""
    wrapped, optimizer, batch, loss = build(name, theirs)
    for _ in range(3):
        step(wrapped, optimizer, batch, loss)
    optimizer.zero_grad()
    with Memory(wrapped, optimizer) as memory:
        loss(wrapped(batch[0]), batch[1]).backward()
    held = memory.now
    return held["gradients"] + held["other"], memory.peak


def memory(options):
    """Gradients and buckets after backward against PyTorch's with gradient_as_bucket_view."""
    with World(2, device="cpu") as world:
        for name in MODELS:
            (ours, peak), (theirs, their_peak) = (
                world.run(bytes_held, name, kind)[0] for kind in (None, VIEWS)
            )
            for what, a, b in (("gradients", ours, theirs), ("at the peak", peak, their_peak)):
                title = f"{what} of a {name}, ours / PyTorch's with views"
                yield Figure(title, a / 1e6, b / 1e6, a / b, "at most 1", a <= b, "MB")


def overlap(options):
    """Slow motion on eight ranks: the makespan as predicted, and the share of waiting hidden."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.parallel.data import test_ddp_overlap as slow

    exposed, found = {}, {}
    with World(8, device="cpu") as world:
        for bucket_bytes in (1, 10**9):
            runs = [slow.recorded(world, bucket_bytes) for _ in range(options.launches)]
            found[bucket_bytes] = statistics.median(run.makespan for run in runs)
            exposed[bucket_bytes] = statistics.median(slow.exposed(run) for run in runs)
    ranks = [slow.BATCH] * 8
    predicted = {
        size: slow.data_parallel_step(
            slow.WIDTHS, ranks, slow.SPEEDS, buckets=slow.layers_per_bucket(slow.WIDTHS, size)
        )
        for size in found
    }
    for size, what in ((1, "a bucket for each layer"), (10**9, "one bucket")):
        a, b = found[size], predicted[size].makespan
        title = f"slow motion, 8 ranks, {what}: step, recorded / predicted"
        yield Figure(title, 1e3 * a, 1e3 * b, a / b, "within 5 %", abs(a / b - 1) <= 0.05)
    hidden = 1 - exposed[1] / exposed[10**9]
    wanted = 1 - slow.exposed(predicted[1]) / slow.exposed(predicted[10**9])
    title = "share of communication hidden behind backward, recorded / predicted"
    good = abs(hidden / wanted - 1) <= 0.05 and hidden >= 0.8
    must = "within 5 %, at least 80 % hidden"
    yield Figure(title, 100 * hidden, 100 * wanted, hidden / wanted, must, good, "% ")


def compression(options):
    """What one step sends, plain and compressed, against the formula; in bytes as recorded."""
    from lib.parallel.data.compressors import PowerSGD, TopK
    from lib.predict.data import compression

    shape = MODELS["GPT of 4 layers"]
    shapes = [parameter.shape for parameter in shape.parameters]

    def one(hook):
        gradients = [torch.ones(size) for size in shapes]
        hook.average(gradients)

    with World(2, device="cpu") as world:
        for name, hook, calls in (
            ("PowerSGD of rank 4", PowerSGD(4), compression.power_sgd(shapes, 2, 4)),
            ("top-k of 1 %", TopK(0.01), compression.top_k(shapes, 2, 0.01)),
        ):
            rows = world.record(one, hook).where(lane="comm", rank=0)
            found, predicted = int(rows.column("bytes").sum()), sum(call.bytes for call in calls)
            plain = sum(call.bytes for call in compression.plain(shapes))
            title = f"bytes of a step, {name} ({plain / found:.0f} times fewer than plain)"
            yield Figure(title, found / 1e6, predicted / 1e6, found / predicted, "the formula",
                         found == predicted, "MB")  # fmt: skip


def measure_all(measures, title: str, repeats: int):
    """Measure, print a line for each figure, and fail if one does not reach what it must."""
    names = ",".join(measure.__name__ for measure in measures)
    parser = argparse.ArgumentParser(description=title.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--only", default=names)
    options, missed = parser.parse_args(), 0
    for measure in measures:
        for figure in measure(options) if measure.__name__ in options.only.split(",") else ():
            mark = "reached" if figure.reached else "NOT REACHED"
            print(f"{figure.name:<88} {figure.ours:>9.3f} {figure.theirs:>9.3f} {figure.unit}"
                  f"  ratio {figure.ratio:>6.3f}  {figure.must}: {mark}", flush=True)  # fmt: skip
            missed += not figure.reached
    sys.exit(missed > 0)


def main():
    """Measure what the options ask for."""
    measure_all((steps, memory, overlap, compression), __doc__, repeats=40)


if __name__ == "__main__":
    main()
