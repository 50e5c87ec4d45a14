"""Measure tensor parallelism against PyTorch's DTensor, in turns in the same processes.

    python tests/bench_tensor.py [--repeats 20] [--launches 3] [--only steps,memory,loss,clock]
    python tests/bench_tensor.py --only summa,grids

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import functools
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib import World
from lib.parallel.grid import grid_cross_entropy, grid_parallel
from lib.parallel.tensor import (
    VocabParallelLinear,
    gather_from_group,
    tensor_parallel,
    vocab_parallel_cross_entropy,
)
from lib.predict.shape import GPTShape
from lib.predict.tensor import grid_memory
from lib.predict.tensor import memory as predicted
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.step import tensor_parallel_step
from lib.ranks.calibrate import calibrate
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, next_token_loss
from tests.bench_data import Figure, compared, measure_all, step
from tests.parallel.tensor.test_oracle import dtensor
from tests.slow_steps import least_late

SHAPE = GPTShape(width=256, heads=4, sequence=128)
GRID_SAMPLES = 8
LOSS = GPTShape(vocabulary=32_768, sequence=64, width=64, heads=4, layers=1)


def gpt(kind):
    """Make the GPT of 4 layers, ours or theirs: model, optimizer, batch, loss."""
    torch.manual_seed(1)
    model, tokens = GPT(SHAPE), torch.randint(256, (2, SHAPE.sequence + 1))
    if kind == "ours":
        model, loss = tensor_parallel(model), vocab_parallel_cross_entropy
    else:
        model, loss = dtensor(model, mesh(tp=dist.get_world_size()).torch()), their_loss
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, (tokens[:, :-1], tokens[:, 1:]), loss


class their_loss:
    """Cross-entropy on logits that are split, with a backward inside loss_parallel."""

    def __init__(self, logits, targets):
        self.logits, self.targets = logits, targets

    def backward(self):
        """Compute the loss and go backward, where PyTorch splits both."""
        with loss_parallel():
            next_token_loss(self.logits, self.targets).backward()


def steps(options):
    """Our steps against DTensor's, on 2 and 4 ranks: by the clock, and in CPU time."""
    for ranks, limit in ((2, 0.80), (4, 0.75)):
        rivals = "tensor parallel, ours / DTensor"
        yield from compared("GPT of 4 layers", gpt, ranks, options, rivals, limit)


def peak(kind):
    """Peak bytes of a rank in a whole step, after two others."""
    rival = gpt(kind)
    for _ in range(2):
        step(*rival)
    with Memory(*rival[:2]) as counted:
        step(*rival)
    return counted.peak


def memory(options):
    """Peak bytes of a step against DTensor's; the largest of all ranks."""
    for ranks in (2, 4):
        with World(ranks, device="cpu") as world:
            ours, theirs = (max(world.run(peak, kind)) for kind in ("ours", "theirs"))
        title = f"peak of a step of a GPT of 4 layers, {ranks} ranks, ours / DTensor"
        yield Figure(
            title, ours / 1e6, theirs / 1e6, ours / theirs, "at most 1", ours <= theirs, "MB"
        )


def lossy(kind):
    """Make a head of a large vocabulary, with its loss on split logits or on gathered ones."""
    torch.manual_seed(1)
    full = torch.nn.Linear(LOSS.width, LOSS.vocabulary, bias=False)
    x = torch.randn(2, LOSS.sequence, LOSS.width)
    targets = torch.randint(LOSS.vocabulary, (2, LOSS.sequence))
    split = VocabParallelLinear(full)
    loss = vocab_parallel_cross_entropy if kind == "ours" else gathered
    return split, torch.optim.SGD(split.parameters(), 0.0), (x, targets), loss


def gathered(logits, targets):
    """Gather all logits on every rank, and take PyTorch's loss of them."""
    return cross_entropy(gather_from_group(logits).flatten(0, 1), targets.flatten())


def loss_peak(kind):
    """Peak bytes of the loss, forward and backward, without the head's weights."""
    model, optimizer, batch, function = lossy(kind)
    step(model, optimizer, batch, function)
    with Memory(model, optimizer) as counted:
        step(model, optimizer, batch, function)
    return counted.peak


def loss(options):
    """The loss on split logits against that on gathered ones: time, peak, bytes as predicted."""
    yield from compared("head and loss of 32,768 tokens", lossy, 2, options, "split / gathered", 1)
    with World(2, device="cpu") as world:
        ours, theirs = (max(world.run(loss_peak, kind)) for kind in ("ours", "theirs"))
        kept = max(world.run(kept_by_the_loss))
    title = "peak of the same, 2 ranks, split / gathered"
    yield Figure(title, ours / 1e6, theirs / 1e6, ours / theirs, "below 1", ours < theirs, "MB")
    formula = predicted.loss(LOSS, 2, 2)
    title = "bytes that the split loss keeps, counted / predicted"
    yield Figure(
        title, kept / 1e6, formula / 1e6, kept / formula, "the formula", kept == formula, "MB"
    )


def kept_by_the_loss():
    """Bytes of what the loss saves for backward, but for single numbers."""
    logits = torch.zeros(2, LOSS.sequence, LOSS.vocabulary // 2, requires_grad=True)
    targets, sizes = torch.zeros(2, LOSS.sequence, dtype=torch.long), {}

    def noted(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes if tensor.dim() else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        vocab_parallel_cross_entropy(logits, targets)
    return sum(sizes.values())


def plain_sgd(repeats):
    """Median seconds of a step of plain SGD on this rank, from a barrier on."""
    from lib.course.stopwatch import seconds_of

    torch.manual_seed(1)
    model, tokens = tensor_parallel(GPT(SHAPE)), torch.randint(256, (2, SHAPE.sequence + 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = tokens[:, :-1], tokens[:, 1:]
    return seconds_of(lambda: step(model, optimizer, batch, vocab_parallel_cross_entropy), repeats)


def clock(options):
    """A step on two ranks, predicted from this machine's own calibration, against the clock."""
    with World(2, device="cpu") as world:
        machine = calibrate(world, again=True, quiet=True)
        by_rank = world.run(plain_sgd, options.repeats)
        speeds = SlowMotion(machine.name, dtype="fp32")
    measured = statistics.median(map(max, zip(*by_rank)))
    found = tensor_parallel_step(SHAPE, 2, 2, speeds).makespan
    title = "step of a GPT of 4 layers, 2 ranks: predicted from the calibration / measured"
    good = abs(found / measured - 1) <= 0.15
    yield Figure(title, 1e3 * found, 1e3 * measured, found / measured, "within 15 %", good)


def summa(options):
    """SUMMA in slow motion on four ranks, with overlap and without, against the prediction."""
    from tests.parallel.grid import test_summa_overlap as slow

    recorded, formulas = {}, {}
    with World(4, device="cpu") as world:
        for overlap in (False, True):
            world.run(slow.build, overlap)
            runs = [
                least_late(world, slow.SPEEDS, slow.step, warm=1) for _ in range(options.launches)
            ]
            recorded[overlap] = statistics.median(
                max(row.end for row in run.where(lane="comm")) for run in runs
            )
            formulas[overlap] = slow.predicted_step(overlap).makespan
    for overlap, words in ((False, "without overlap"), (True, "with overlap")):
        a, b = recorded[overlap], formulas[overlap]
        title = f"SUMMA in slow motion, 4 ranks, {words}: step, recorded / predicted"
        yield Figure(title, 1e6 * a, 1e6 * b, a / b, "within 5 %", abs(a / b - 1) <= 0.05, "µs")
    found, formula = (step[True] / step[False] for step in (recorded, formulas))
    title = "SUMMA in slow motion, 4 ranks: time with overlap ÷ without, recorded / predicted"
    good = abs(found / formula - 1) <= 0.05 and found < 1
    yield Figure(title, found, formula, found / formula, "within 5 %", good, "  ")


def grid_peak(grid):
    """Most bytes of a rank in two steps of a GPT on a grid; the first makes AdamW's states."""
    torch.manual_seed(1)
    here, model = mesh(**grid.axes), GPT(SHAPE)
    grid_parallel(model, here, grid.kind)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(SHAPE.vocabulary, (GRID_SAMPLES, SHAPE.sequence + 1))
    batch = tokens[:, :-1], tokens[:, 1:]
    loss = functools.partial(grid_cross_entropy, mesh=here, kind=grid.kind)
    with Memory(model, optimizer) as counted:
        for _ in range(2):
            step(model, optimizer, batch, loss)
    return counted.peak


def predicted_peak(grid):
    """What a rank keeps after forward, and the tiles of the largest layer, twice.

    In backward these are the tiles of its two factors, and as many of their gradients before the
    ranks have summed them. What a GELU or attention allocates for a moment is left out.
    """
    kept = grid_memory.held(SHAPE, grid, GRID_SAMPLES)
    sizes = GRID_SAMPLES * SHAPE.sequence, SHAPE.hidden, SHAPE.width
    return kept.total - kept.gradients + 2 * grid_memory.buffers(grid, *sizes)


def grids(options):
    """Peak bytes of a rank in a step of a GPT on each grid, against the prediction."""
    for grid in (RankGrid("2d", 2), RankGrid("2.5d", 2, 2), RankGrid("3d", 2)):
        with World(grid.ranks, device="cpu") as world:
            found = max(world.run(grid_peak, grid))
        formula = predicted_peak(grid)
        title = f"peak of a step of a GPT on a grid, {grid}, counted / predicted"
        good = abs(found / formula - 1) <= 0.15
        yield Figure(title, found / 1e6, formula / 1e6, found / formula, "within 15 %", good, "MB")


def main():
    """Measure what the options ask for."""
    measure_all((steps, memory, loss, clock, summa, grids), __doc__, repeats=20)


if __name__ == "__main__":
    main()
