"""Functions that chapter 3 calls: what ranks keep, what they launch, and recorded steps.

The text of each is short enough to read: `source(lessons.kept)` shows it in a cell.
"""

from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as PyTorchsZero

from lib.course.data_parallel.lessons import after_barrier, folded
from lib.ledger import Ledger, Row
from lib.ledger.lives import lives
from lib.parallel.data import DistributedDataParallel
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.predict import step as pieces
from lib.predict.allocator.replay import Replay, replay
from lib.predict.collectives.formulas import collective
from lib.predict.memory import Held
from lib.predict.roofline import speeds as rates
from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.predict.sharded.offload import host_speeds
from lib.predict.sharded.offload_step import offloaded_step
from lib.predict.sharded.units import units_of
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, next_token_loss, share

__all__ = ["after_barrier", "folded"]  # besides what is below

# The chain of slow motion: eight layers without biases. What runs is small and stands for large.
SMALL, LARGE = (MLPShape((width,) * 9, bias=False) for width in (64, 4096))
FEW, ROWS = 32, 4096  # rows of each rank's batch in what runs, and in what it stands for


# --- read from a ledger or a prediction


def in_phases(step: Ledger, shape: ModelShape, speeds) -> Ledger:
    """Return a predicted step of FSDP with its operations joined to forward and backward.

    What a rank computes without a wait in between is one row. A collective begins when it moves,
    not when it is launched. The update of the weights is left out.
    """
    rows, first = [], len(pieces.forward(shape, 1))
    updates = sum(unit.numel > 0 for unit in units_of(shape))
    rows += while_moving(step.where(lane="comm"), speeds)
    for rank in step.ranks:
        computed = list(step.where(rank=rank, lane="compute"))[:-updates]
        for op, part in (("forward", computed[:first]), ("backward", computed[first:])):
            start = part[0].start
            for row, after in zip(part, [*part[1:], None]):
                if after is None or after.start > row.end:
                    rows.append(Row(rank, "compute", op, start, row.end))
                    start = after.start if after else 0.0
    return Ledger(rows, source=step.source, meta=step.meta)


def times_of_units(step: Ledger, shape: MLPShape) -> tuple[list[float], list[float]]:
    """Return the seconds of forward and of backward of each layer of a predicted step of FSDP.

    They are all that rank 0 computes but the update: products, ReLUs, and what it does with
    gradients. Backward of a layer ends when its gradient is copied for the reduce_scatter.
    """
    layers, first = len(shape.widths) - 1, len(pieces.forward(shape, 1))
    own = list(step.where(rank=0, lane="compute"))[:-layers]
    forward, backward = [0.0] * layers, [0.0] * layers
    layer = -1
    for row in own[:first]:
        layer += row.op == "mm"
        forward[layer] += row.seconds
    for row in own[first:]:
        backward[max(layer, 0)] += row.seconds
        layer -= row.op == "cat"
    return forward, backward


def until_update(step: Ledger) -> float:
    """Return the seconds of a predicted step of FSDP until the weights are updated.

    The update follows the last reduce_scatter, whose mean is still the step's.
    """
    last = step.where(lane="comm").column("end").max()
    updates = step.where(lane="compute", op="add")
    return min(row.start for row in updates if row.start >= last)


def while_moving(ledger: Ledger, speeds) -> Ledger:
    """Return the rows with each collective from when its bytes begin to move, not from its launch.

    A collective waits after its launch until those before it in the lane are over.
    """
    rows = []
    for row in ledger:
        if row.lane == "comm" and row.bytes:
            start = row.end - speeds.moving(row.op, len(row.members), row.bytes)
            row = replace(row, start=start, arrived=start)
        rows.append(row)
    return Ledger(rows, source=ledger.source, results=ledger.results, meta=ledger.meta)


def calls_of_rank_0(ledger: Ledger) -> Ledger:
    """Return rank 0's collectives after its last barrier."""
    own = ledger.where(rank=0, lane="comm")
    begin = own.where(op="barrier").column("end").max()
    return own[own.column("start") >= begin]


def sent(ledger: Ledger) -> float:
    """Return the bytes that rank 0 sent in all collectives of four ranks, if they are rings."""
    rows = ledger.where(rank=0, lane="comm")
    return sum(collective(row.op, len(row.members), row.bytes).bytes for row in rows)


def collectives(ledger: Ledger) -> str:
    """List rank 0's collectives by name: how many, and the bytes of their buffers together."""
    rows = ledger.where(rank=0, lane="comm")
    lines = [f"{'':<16}{'count':>5}{'buffer bytes':>14}"]
    for total in rows.totals(("op",)):
        if total.bytes:
            lines.append(f"{total['op']:<16}{total.count:>5}{total.bytes:>14,}")
    return "\n".join(lines)


def calls(ledger: Ledger) -> list[str]:
    """List rank 0's collectives after the last barrier, in order, equal neighbours together."""
    rows = sorted(calls_of_rank_0(ledger), key=lambda row: row.number)
    calls_in_words = [f"{row.op} {row.bytes:,}" for row in rows]
    runs = [(line, len(list(same))) for line, same in groupby(calls_in_words)]
    return [line + f" × {count}" * (count > 1) for line, count in runs]


def gathers_of(ledger: Ledger, nbytes: int) -> int:
    """Count rank 0's all_gathers of `nbytes` after the last barrier."""
    return sum(row.bytes == nbytes for row in calls_of_rank_0(ledger).where(op="all_gather"))


def shares(world, shape: GPTShape, batch) -> str:
    """Write what ZeRO-1 keeps and launches, ours and PyTorch's, and whether weights are equal.

    For each of them: the bytes of Adam's states on each rank after a step, and rank 0's collectives
    in this step of the optimizer, after the gradients are averaged.
    """
    lines, weights = [], []
    for whose in ("ours", "PyTorch's"):
        ledger = world.record(zero_1_step, whose, shape, batch)
        lines.append(f"Adam's bytes by rank, ZeRO-1, {whose}:")
        lines.append("".join(f"{nbytes:>10,}" for nbytes, _ in ledger.results))
        lines.append(collectives(calls_of_rank_0(ledger)))
        weights.append(ledger.results[0][1])
    return "\n".join([*lines, f"same weights: {all(map(torch.equal, *weights))}"])


def late_optimizers(world, theirs, shape: GPTShape, batch) -> str:
    """Write for `theirs(model)` and FSDP whether a step changes weights, and in which order."""
    lines = []
    for name, wrap in (("fully_shard", theirs), ("ours", FSDP)):
        for before in (True, False):
            changed = world.run(late_optimizer, wrap, shape, batch, before)[0]
            when = "before" if before else "after "
            lines.append(f"{name:<12}optimizer made {when}: {changed}")
    return "\n".join(lines)


HOST_ROWS = ("device", "link, down", "host", "link, up")  # the rows of `offloaded`, in order


def offloaded(speeds, shape: MLPShape = LARGE, rows: int = ROWS) -> Ledger:
    """Predict a step on an H100 whose plain SGD is its host's; print computation and step.

    Its ranks are `HOST_ROWS`: what works, and not who. A row begins when its bytes begin to move.
    """
    host = host_speeds("H100")
    step = offloaded_step(shape, rows, speeds, host)
    computing = sum(row.seconds for row in step.where(lane="compute"))
    print(f"1. Offload\ncomputation {1e3 * computing:.1f} ms, step {1e3 * step.makespan:.1f} ms")
    who, kept = {"to_host": 1, "step": 2, "to_device": 3}, []
    computed = list(step.where(lane="compute"))
    first = len(pieces.forward(shape, 1))
    for op, part in (("forward", computed[:first]), ("backward", computed[first:])):
        kept.append(Row(0, "compute", op, part[0].start, part[-1].end))
    for row in step:
        if row.lane == "compute":
            continue
        if row.lane == "comm":
            needs = (host.working if row.op == "step" else host.moving)(row.bytes)
            row = replace(row, rank=who[row.op], start=row.end - needs, arrived=row.end - needs)
        kept.append(replace(row, lane="compute") if row.op == "step" else row)
    return Ledger(kept, source=step.source, meta=step.meta)


def memory_by_stage(runs: list[Ledger], shape: GPTShape) -> dict[str, Ledger]:
    """Return the memory of rank 0 in a recorded step of each stage, and the last one predicted."""
    steps = {f"stage {n}": memory_of_rank_0(run) for n, run in enumerate(runs)}
    name, recorded = list(steps.items())[-1]
    return steps | {f"{name} by fsdp_step": predicted_memory(shape, 2, recorded)}


def predicted_memory(shape: GPTShape, samples: int, recorded: Ledger) -> Ledger:
    """Predict what `recorded` has, rank 0's memory in a step of stage 3 on four ranks, from shapes.

    On CPUs each operation of a small model takes about as long as any other, so the changes of the
    prediction are drawn at equal distances, and all of it as long as the recording.
    """
    sizes = {"optimizer": "adamw", "backend": "gloo"}
    step = fsdp_step(shape, [samples] * 4, rates("H100"), **sizes)
    rows, end = step.where(rank=0, lane="memory"), recorded.makespan
    times = (n * end / (len(rows) - 1) for n in range(len(rows)))
    rows = [replace(row, start=at, end=at) for row, at in zip(rows, times)]
    formula = "from the model's shape alone; its changes are drawn at equal distances"
    return Ledger(rows, source="predicted", meta={"formula": formula})


def replayed(ledger: Ledger) -> Replay:
    """Replay the life of rank 0's recorded storages in the model of PyTorch's allocator."""
    return replay(lives(memory_of_rank_0(ledger)))


def by_group(ledger: Ledger) -> str:
    """List rank 0's collectives after the last barrier: group, name, count and buffer bytes."""
    rows = calls_of_rank_0(ledger)
    lines = [f"{'group':<11}{'collective':<16}{'count':>5}{'buffer bytes':>14}"]
    for total in rows.totals(("group", "op")):
        lines.append(f"{total['group']:<11}{total['op']:<16}{total.count:>5}{total.bytes:>14,}")
    return "\n".join(lines)


# --- run on every rank


def chain_step(prefetch: int, span) -> None:
    """Run forward and backward of the small chain in FSDP, a unit for each layer."""
    fsdp, x = FSDP(MLP(SMALL), prefetch=prefetch), torch.ones(FEW, SMALL.widths[0])
    dist.barrier()
    with span("forward"):
        y = fsdp(x)
    with span("backward"):
        y.backward(x)


def stage(number: int, model, lr: float = 1e-2):
    """Return a model and its AdamW as stage `number` of ZeRO has them; 0 is DDP."""
    adamw = torch.optim.AdamW
    if number == 3:
        fsdp = FSDP(model)
        return fsdp, adamw(fsdp.parameters(), lr)
    if number == 2:
        sharded = ShardedDataParallel(model, bucket_bytes=64_000)  # small, as the model is
        return sharded, ZeroRedundancyOptimizer(sharded, adamw, lr=lr)
    ddp = DistributedDataParallel(model)
    if number == 1:
        return ddp, ZeroRedundancyOptimizer(ddp.parameters(), adamw, lr=lr)
    return ddp, adamw(ddp.parameters(), lr)


def kept(number: int, shape: GPTShape, batch) -> Held:
    """Train two steps with stage `number` on this rank; return the bytes kept after them, by kind.

    A recording gets the memory of the second step. Adam's counters, a number for each parameter,
    are not counted.
    """
    model, optimizer = stage(number, GPT(shape))
    own = share(batch, dist.get_rank(), dist.get_world_size())
    x, y = (part.clone() for part in own)  # else the whole batch counts
    for counting in (nullcontext(), Memory(model, optimizer)):
        optimizer.zero_grad()
        dist.barrier()
        with counting:
            next_token_loss(model(x), y).backward()
            optimizer.step()
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    if number == 2:  # the owner keeps its share beside the model
        gradients = [g for flat in model.flats for g in flat.gradients if g is not None]
    states = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    parts = (sum(t.nbytes for t in tensors) for tensors in (parameters, gradients, states))
    return Held(*parts, 0)


def memory_of_rank_0(ledger: Ledger) -> Ledger:
    """Return the rows of memory of rank 0; they begin where counting began."""
    return ledger.where(rank=0, lane="memory")


def built_on_meta(shape: GPTShape, on_meta: bool) -> float:
    """Build a GPT on the meta device or on this rank's, then shard it; return its peak in models.

    The peak counts what lives from the first weight to the last shard.
    """
    with Memory(torch.nn.Module()) as counted:
        with torch.device("meta") if on_meta else nullcontext():
            model = GPT(shape)
        fsdp = FSDP(model)
    assert sum(p.numel() for p in fsdp.parameters()) <= -(-shape.numel // dist.get_world_size())
    return counted.peak / shape.nbytes()


def one_backward(shape: GPTShape, batch, wrap, gathers: bool = False):
    """Run forward and backward of this rank's share in `wrap(model)`; return whole gradients.

    Unless it `gathers`, nothing is returned, and what follows the barrier are the step's own calls.
    """
    model = wrap(GPT(shape).double())
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    dist.barrier()
    next_token_loss(model(x), y).backward()
    if not gathers:
        return None
    if isinstance(model, FSDP):
        return list(model.full_gradients().values())
    return [p.grad.full_tensor() for p in model.parameters()]


def late_optimizer(wrap, shape: GPTShape, batch, before: bool) -> bool:
    """Train one step with an optimizer made before or after `wrap`; say whether weights changed."""
    model = GPT(shape)
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if before else None
    model = wrap(model)
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = whole(model)
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    next_token_loss(model(x), y).backward()
    optimizer.step()
    return any(not torch.equal(a, b) for a, b in zip(start, whole(model)))


def whole(model) -> list[torch.Tensor]:
    """Gather the whole weights of our FSDP or of PyTorch's."""
    state = model.state_dict().values()
    return [t.full_tensor() if hasattr(t, "full_tensor") else t.clone() for t in state]


def trained_shards(shape: GPTShape, batch):
    """Train one step in FSDP on this rank; return its shards, and the whole weights."""
    fsdp, optimizer = stage(3, GPT(shape))
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    next_token_loss(fsdp(x), y).backward()
    optimizer.step()
    return fsdp.sharded_state_dict(), fsdp.full_state_dict()


def load_shards(shape: GPTShape, saved: list[dict], before: dict) -> bool:
    """Load the shards of any number of ranks into FSDP; say if whole weights are as `before`."""
    fsdp = FSDP(GPT(shape, seed=1))
    fsdp.load_sharded_state_dict(saved)
    after = fsdp.full_state_dict()
    return all(torch.equal(after[name], weight) for name, weight in before.items())


def zero_1_step(whose: str, shape: GPTShape, batch) -> tuple[int, list[torch.Tensor]]:
    """Train a step with ZeRO-1, "ours" or "PyTorch's"; return Adam's bytes here, and the weights.

    The optimizer's own collectives follow a barrier.
    """
    kind = {"ours": ZeroRedundancyOptimizer, "PyTorch's": PyTorchsZero}[whose]
    ddp = DistributedDataParallel(GPT(shape))
    optimizer = kind(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    next_token_loss(ddp(x), y).backward()
    dist.barrier()
    optimizer.step()
    kept = getattr(optimizer, "optim", optimizer).state  # theirs has its share in `optim`
    nbytes = sum(t.nbytes for state in kept.values() for t in state.values() if t.dim())
    return nbytes, [p.detach().clone() for p in ddp.parameters()]


def refusal_of(wrap, shape: GPTShape) -> str:
    """Wrap a GPT that also has a parameter without dims; return the message of the error, or ""."""
    model = GPT(shape)
    model.factor = torch.nn.Parameter(torch.tensor(1.0))
    try:
        wrap(model)
    except ValueError as error:
        return str(error)
    return ""
