"""Functions and models that chapter 1 calls: predicted steps, and small experiments on ranks.

The text of each is short enough to read: `source(lessons.Branches)` shows it in a cell.
"""

import textwrap
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from lib.ledger import Ledger, Row
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict import step as pieces
from lib.predict.data.ddp_step import (
    data_parallel_step,
    exposed,
    gradients_per_bucket,
    parts_of_step,
)
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, ModelShape
from lib.ranks.memory import Memory

GPT2 = GPTShape(50257, sequence=1024, width=768, heads=12, layers=12, tied=True)
_HARD = "\N{NO-BREAK SPACE}"  # where `folded` breaks no line
# What `curve` says of efficiencies against the number of GPUs.
SCALING = {
    "x": ("GPUs", ""),
    "y": ("efficiency", ""),
    "caption": "Predicted for GPT-2 on nodes of 8 H100s with NVLink 4, joined by InfiniBand NDR "
    "(50 GB/s per GPU) or Ethernet 100 (12.5 GB/s per node). Strong: 512 sequences in all; weak: 8 "
    "on each GPU. Nothing was run. Published, for weak scaling of another model: 39 % on 256 GPUs, "
    "relative to 8.",
}


# --- predicted


def step_seconds(shape: ModelShape, link_name: str, batch: int, ranks: int) -> tuple:
    """Return the seconds of compute, of latency and of bytes in one step on H100s, without overlap.

    The step is that of `data_parallel_step`, without the loss: float32 weights, matrix products at
    the peak of bf16, and one all-reduce by ring over the link called `link_name`.
    """
    return parts_of_step(shape, batch, ranks, speeds("H100", link_name))


def in_ms(name: str, seconds: tuple) -> str:
    """Write a name and times as a row of a table, in milliseconds."""
    return f"{name:<13}" + "".join(f"{1e3 * part:8.2f}" for part in seconds)


def gpt2_exposed(batch: int = 8, ranks: int = 4) -> str:
    """Predict GPT-2's exposed communication for three bucket sizes on H100s with NVLink 4."""
    lines, hardware = ["exposed ms, of a step's ms"], speeds("H100", "NVLink4")
    for name, limit in (("each parameter", 1), ("default", None), ("one bucket", 10**9)):
        buckets = gradients_per_bucket(GPT2, limit)
        step = data_parallel_step(GPT2, [batch] * ranks, hardware, buckets=buckets)
        wait = f"{1e3 * exposed(step):.2f} of {1e3 * step.makespan:.1f}"
        lines.append(f"{name:<14}{len(buckets):>4} buckets: {wait}")
    return "\n".join(lines)


def exposed_and_hidden(step: Ledger, speeds) -> tuple[float, float]:
    """Return the microseconds of a predicted step's all-reduces after backward, and under it."""
    rows, ranks = step.where(rank=0, lane="comm"), len(step.ranks)
    moving = sum(speeds.moving("all_reduce", ranks, row.bytes) for row in rows)
    late = exposed(step)
    return 1e6 * late, 1e6 * max(moving - late, 0.0)  # rounding may leave less than 0


def in_phases(step: Ledger, shape: ModelShape, *, update: bool = True) -> Ledger:
    """Return a predicted step of DDP with each rank's operations joined to forward and backward.

    The update of the weights becomes a third phase, "step"; without `update` it is left out.
    """
    rows = list(step.where(lane=["comm", "wait"]))
    counts = len(pieces.forward(shape, 1)), len(pieces.update(shape))
    phases = ("forward", "backward", "step") if update else ("forward", "backward")
    for rank in step.ranks:
        computed = list(step.where(rank=rank, lane="compute"))
        cuts = [0, counts[0], len(computed) - counts[1], len(computed)]
        for op, begin, end in zip(phases, cuts, cuts[1:]):
            start, stop = computed[begin].start, computed[end - 1].end
            rows.append(Row(rank, "compute", op, start, stop))
    return Ledger(rows, source=step.source, meta=step.meta)


# --- read from a ledger


def on_one_axis(*ledgers: Ledger) -> list[Ledger]:
    """Return the ledgers as long as the longest of them, so that their pictures have one scale.

    A wait of no length marks the new end of a shorter one.
    """
    longest, padded = max(ledger.makespan for ledger in ledgers), []
    for ledger in ledgers:
        rows, end = list(ledger), float(ledger.column("start").min()) + longest
        if ledger.makespan < longest:
            rows.append(Row(ledger.ranks[0], "wait", "all_reduce", end, end))
        padded.append(Ledger(rows, source=ledger.source, results=ledger.results, meta=ledger.meta))
    return padded


def after_barrier(ledger: Ledger) -> Ledger:
    """Return the rows of a recording that begin after its last barrier, at which all was built."""
    begin = ledger.where(op="barrier").column("end").max()
    return ledger[ledger.column("start") >= begin]


def all_reduced(ledger: Ledger) -> int:
    """Return the buffer bytes of all all-reduces that rank 0 launched."""
    return sum(row.bytes for row in ledger.where(rank=0, op="all_reduce", lane="comm"))


def in_bytes(sent: dict) -> str:
    """Write what both classes send: {(forward inside, backward inside): (our bytes, theirs)}."""
    lines = ["inside no_sync        bytes: ours  PyTorch"]
    for inside, (ours, theirs) in sent.items():
        names = " and ".join(name for name, is_in in zip(("forward", "backward"), inside) if is_in)
        lines.append(f"{names or 'nothing':<22}{ours:>11,}{theirs:>9,}")
    return "\n".join(lines)


def in_models(held: list, nbytes: int) -> str:
    """Write what each device holds by kind, in multiples of a model of `nbytes`, a line each."""
    lines = [f"{'':<8}{'parameters':>12}{'gradients':>12}{'optimizer':>12}"]
    for number, sizes in enumerate(held):
        lines.append(f"device {number}" + "".join(f"{round(size / nbytes):>12}" for size in sizes))
    return "\n".join(lines)


def calls(runs: dict[str, Ledger], nbytes: int) -> str:
    """List rank 0's exchanges in each run of two steps, whose results are gradients and bytes held.

    The first step has one all-reduce, because one bucket holds all gradients. The gradients of all
    ranks are compared with the first run's bit for bit, and bytes held are given as multiples of
    the model's `nbytes`. Exchanges that are those of the run before are not listed again.
    """
    lines, (first, *_), before = [], runs.values(), (None, None)
    for name, run in runs.items():
        held = run.results[0][1]
        pairs = [(one, other) for mine, own in zip(run.results, first.results, strict=True)
                 for one, other in zip(mine[0], own[0], strict=True)]  # fmt: skip
        equal = all(torch.equal(one, other) for one, other in pairs)
        rows = list(run.where(rank=0, lane="comm"))
        first_sum = [row.op for row in rows].index("all_reduce")
        parts = {
            "at construction": rows[:first_sum],
            "in step 1": rows[first_sum : first_sum + 1],
            "in step 2": rows[first_sum + 1 :],
        }
        told = "" if run is first else f"equal gradients {equal}, "
        lines.append(f"{name}: {told}held {held / nbytes:.1f} G")
        listed = [folded(f"  {part}: {_listed(of)}", "    ") for part, of in parts.items()]
        lines += [f"  the same exchanges as {before[0]}"] if listed == before[1] else listed
        before = name, listed
    return "\n".join(lines)


def folded(text: str, indent: str = "") -> str:
    """Return a text in lines of at most 48 characters; all but the first begin with `indent`."""
    return textwrap.fill(text, 48, subsequent_indent=indent).replace(_HARD, " ")


def who_failed(error: Exception) -> str:
    """Return a RankError's first line, folded, and which ranks were left waiting."""
    first, *others = str(error).splitlines()
    waiting = next(line for line in others if "left waiting" in line)
    return f"{folded(first)}\n{waiting.partition(' (')[0]}"


def _listed(rows: list[Row]) -> str:
    """Name each operation once, and behind it, on the same line, the bytes of its buffers."""
    operations = groupby(rows, key=lambda row: row.op)
    return ", ".join(
        f"{op}{_HARD}{' '.join(f'{row.bytes:,}' for row in of)}" for op, of in operations
    )


# --- run on every rank


def held_after(step, model: nn.Module) -> int:
    """Return the bytes of gradients and of what lies beside them, such as buckets, after `step()`.

    What the step itself keeps besides, its loss and its inputs, is not counted.
    """
    with Memory(model) as memory:
        step()
        held = memory.now
    return held["gradients"] + held["other"]


class Branches(nn.Module):
    """Computes 2·a(x) + 3·b(x) with two layers of one weight each; rank 2 runs b before a."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x):
        if dist.get_rank() == 2:
            b = self.b(x)
            return 2 * self.a(x) + 3 * b
        a = self.a(x)
        return 2 * a + 3 * self.b(x)


def gradients_of(make_model, prepare) -> list[float]:
    """Run one backward for x = 1 with hooks from `prepare`; return all gradients, rounded."""
    model = make_model()
    finish = prepare(model)
    model(torch.ones(1, 1)).sum().backward()
    finish(model)
    return [round(p.grad.item(), 4) for p in model.parameters()]


def drawn_samples(samples: int, epochs: int, sets_epoch: bool) -> list[list[int]]:
    """Return the numbers of the samples that this rank draws in each epoch."""
    sampler = DistributedSampler(range(samples), seed=0)
    drawn = []
    for epoch in range(epochs):
        if sets_epoch:
            sampler.set_epoch(epoch)
        drawn.append(list(sampler))
    return drawn


class ShortCut(nn.Sequential):
    """Two linear layers with one weight; rank 2 leaves out the second, whose bias is unused there.

    The bias of the first layer is frozen.
    """

    def __init__(self):
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 2))
        self[1].weight = self[0].weight
        self[0].bias.requires_grad = False

    def forward(self, x):
        return self[0](x) if dist.get_rank() == 2 else super().forward(x)


def short_cut(**options) -> list[str]:
    """Run one backward of `ShortCut` in DDP; return the names of parameters with a gradient."""
    model = ShortCut()
    ddp = DistributedDataParallel(model, **options)
    dist.barrier()  # all ranks have the model before one of them fails
    ddp(torch.ones(1, 2)).sum().backward()
    return [name for name, p in model.named_parameters() if p.grad is not None]
