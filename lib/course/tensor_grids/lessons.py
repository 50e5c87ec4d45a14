"""What the cells of chapter 5 call: a GPT on one device and on a grid, and tables."""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.distributed as dist

from lib.course import plain_gpt
from lib.course.data_parallel.lessons import on_one_axis
from lib.ledger import Ledger
from lib.parallel.grid import full_gradients, grid_cross_entropy, grid_parallel
from lib.predict.collectives.exchange import sent_bytes
from lib.predict.collectives.formulas import mean_sent
from lib.predict.shape import GPTShape
from lib.predict.tensor import memory as one_dimension
from lib.predict.tensor import sequence, traffic
from lib.predict.tensor.grid_costs import GridCosts, published, published_1d
from lib.predict.tensor.grid_memory import activations, weights
from lib.predict.tensor.grid_traffic import GridMove, gpt_moves, linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.shapes import parameters_of_a_rank
from lib.predict.tensor.summa_step import summa_step
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT

SHAPE = GPTShape(vocabulary=64, sequence=8, width=32, heads=4, layers=2, hidden=64)
SAMPLES = 8


def on_grid(grid: RankGrid) -> tuple[float, dict, int, int]:
    """Run the same GPT on a grid, on every rank.

    Returns the loss, the whole gradients, the weights that this rank has, and the bytes that
    autograd keeps here after forward, without the loss.
    """
    torch.manual_seed(0)
    here, model = mesh(**grid.axes), GPT(SHAPE).double()
    grid_parallel(model, here, grid.kind)
    tokens, targets = plain_gpt.batch(SHAPE, SAMPLES)
    dist.barrier()
    with Memory(model) as memory:
        logits = model(tokens)
        kept = memory.now["activations"]
        loss = grid_cross_entropy(logits, targets, here, grid.kind)
        loss.backward()
    dist.barrier()
    own = sum(p.numel() for p in model.parameters())
    return loss.item(), full_gradients(model), own, kept


def collectives_of_rank_0(ledger: Ledger) -> list[GridMove]:
    """Return what rank 0 launched between its last two barriers."""
    rows = ledger.where(rank=0, lane="comm")
    begin, end = sorted(rows.where(op="barrier").column("end"))[-2:]
    inside = [row for row in rows if begin <= row.start and row.end <= end and row.bytes]
    return [GridMove(row.group, row.op, len(row.members), row.bytes) for row in inside]


def sent_by_a_rank(moves: Iterable[GridMove]) -> float:
    """Return the bytes that a rank sends on average in these collectives, if all are rings."""
    return sum(move.mean_sent for move in moves)


def compared(runs: dict[RankGrid, Ledger]) -> str:
    """Write for each grid what a rank has and sends, recorded, and whether that was predicted.

    The first two lines are 1D on four ranks, predicted, without and with sequence parallelism.
    """
    loss, gradients = plain_gpt.on_one_device(SHAPE, SAMPLES)
    lines = ["            equal weights     kept     sent match"]
    own = sum(p.numel for p in parameters_of_a_rank(SHAPE, 4))
    for name, keeps, sends in (
        ("1D, 4 ranks", one_dimension, traffic),
        ("1D, with SP", sequence, sequence),
    ):
        kept = keeps.activations(SHAPE, 4, SAMPLES, itemsize=8)
        sent = sent_bytes(sends.of_step(SHAPE, 4, SAMPLES, itemsize=8))
        lines.append(f"{name:<12}{'-':<6}{own:>7,}{kept:>9,}{sent:>9,.0f}{'-':>6}")
    for grid, run in runs.items():
        found, whole, own, kept = run.results[0]
        close = lambda name: torch.allclose(whole[name].cpu(), gradients[name])  # noqa: B023
        equal = abs(found - loss) < 1e-12 and all(map(close, gradients))
        moves = collectives_of_rank_0(run)
        predicted = own == weights(SHAPE, grid)
        predicted &= kept == activations(SHAPE, grid, SAMPLES, itemsize=8)
        predicted &= sorted(moves) == sorted(gpt_moves(SHAPE, grid, SAMPLES, itemsize=8).all)
        sent = sent_by_a_rank(moves)
        match = f"{own:>7,}{kept:>9,}{sent:>9,.0f}{predicted!s:>6}"
        lines.append(f"{grid!s:<12}{equal!s:<6}{match}")
    return "\n".join(lines)


def counted(grid: RankGrid) -> float:
    """Return the bytes that a rank sends on average in a layer, ÷ those of the whole x, W or y."""
    size = grid.ranks * grid.side  # so that every tile has whole numbers
    moves = linear_moves(grid, size, size, size, bias=False, itemsize=1)
    return sent_by_a_rank(moves.all) / size**2


def costs() -> str:
    """Write the published costs of a layer for four arrangements of 64 ranks, and our count."""
    grids = [RankGrid("2d", 8), RankGrid("2.5d", 4, 4), RankGrid("3d", 4)]
    lines = ["64 ranks     weights   kept published rounds   ours"]
    rows: list[tuple[str, GridCosts, float]] = [
        ("1D", published_1d(64), mean_sent("all_reduce", 64, 1))
    ]
    rows += [(str(grid), published(grid), counted(grid)) for grid in grids]
    for name, row, ours in rows:
        lines.append(
            f"{name:<12}{row.parameters:>8.3f}{row.activations:>7.3f}{row.bandwidth:>10.2f}"
            f"{row.latency:>7}{ours:>7.2f}"
        )
    return "\n".join(lines)


def with_and_without_overlap(rows: int, inputs: int, outputs: int, speeds) -> list[Ledger]:
    """Return rank 0's predicted step of a layer on 2×2 ranks, without and then with overlap.

    Numbers have 2 bytes, and both pictures have one scale. Each product is named after its result,
    y, dW or dx, to which it adds one of two terms.
    """
    steps = []
    for overlap in (False, True):
        step = summa_step(rows, inputs, outputs, 2, speeds, overlap=overlap, itemsize=2)
        own, results = step.where(rank=0), iter(("y", "y", "dW", "dW", "dx", "dx"))
        products = ("mm", "addmm_")
        named = [replace(row, op=next(results)) if row.op in products else row for row in own]
        steps.append(Ledger(named, source=own.source, results=own.results, meta=own.meta))
    return on_one_axis(*steps)


def exposed(rows: int, inputs: int, outputs: int, speeds) -> str:
    """Write the predicted ms of a layer's step on two squares, and those without a product.

    Numbers have 2 bytes.
    """
    lines = [f"{'ms':<16}{'step':>7}{'exposed':>9}"]
    for side in (2, 4):
        for overlap in (False, True):
            step = summa_step(rows, inputs, outputs, side, speeds, overlap=overlap, itemsize=2)
            busy = sum(row.seconds for row in step.where(rank=0, lane="compute"))
            name = f"{side}×{side}" + ", overlap" * overlap
            waited = step.makespan - busy
            lines.append(f"{name:<16}{1e3 * step.makespan:>7.2f}{1e3 * waited:>9.2f}")
    return "\n".join(lines)


def between_barriers(ledger: Ledger) -> str:
    """List rank 0's collectives between its last two barriers: axis, name, count, bytes sent."""
    found: dict[tuple[str, str], list[GridMove]] = {}
    for move in collectives_of_rank_0(ledger):
        found.setdefault((move.axis, move.op), []).append(move)
    lines = [f"{'axis':<9}{'collective':<12}{'count':>5}{'sent':>12}"]
    for (axis, op), moves in found.items():
        lines.append(f"{axis:<9}{op:<12}{len(moves):>5}{sent_by_a_rank(moves):>12,.0f}")
    return "\n".join(lines)
