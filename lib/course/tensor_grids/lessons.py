"""What the cells of chapter 5 call: a GPT on one device and on a grid, and tables."""

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.distributed as dist

from lib.course import plain_gpt
from lib.course.data_parallel.lessons import on_one_axis
from lib.ledger import Ledger
from lib.parallel.grid import full_gradients, grid_cross_entropy, grid_parallel
from lib.predict import roofline
from lib.predict.collectives.exchange import sent_bytes
from lib.predict.collectives.formulas import mean_sent
from lib.predict.shape import GPTShape
from lib.predict.tensor import memory as one_dimension
from lib.predict.tensor.grid_costs import GridCosts, published, published_1d
from lib.predict.tensor.grid_memory import activations, weights
from lib.predict.tensor.grid_traffic import GridMove, gpt_moves, linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.shapes import parameters_of_a_rank
from lib.predict.tensor.summa_step import summa_step
from lib.predict.tensor.traffic import of_step
from lib.predict.tensor.where_each_wins import Winner, layer_seconds, where_each_wins
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT

SHAPE = GPTShape(vocabulary=64, sequence=8, width=32, heads=4, layers=2, hidden=64)
SAMPLES = 8
LARGE_WIDTHS, MANY_RANKS = (4096, 8192, 16384, 32768), (4, 8, 16, 64, 512)


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

    The first line is 1D on four ranks, predicted.
    """
    loss, gradients = plain_gpt.on_one_device(SHAPE, SAMPLES)
    lines = ["            equal weights     kept     sent match"]
    own = sum(p.numel for p in parameters_of_a_rank(SHAPE, 4))
    kept = one_dimension.activations(SHAPE, 4, SAMPLES, itemsize=8)
    sent = sent_bytes(of_step(SHAPE, 4, SAMPLES, itemsize=8))
    lines.append(f"{'1D, 4 ranks':<18}{own:>7,}{kept:>9,}{sent:>9,.0f}")
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
    lines = ["64 ranks     weights   kept   sent rounds   ours"]
    rows: list[tuple[str, GridCosts, float]] = [
        ("1D", published_1d(64), mean_sent("all_reduce", 64, 1))
    ]
    rows += [(str(grid), published(grid), counted(grid)) for grid in grids]
    for name, row, ours in rows:
        lines.append(
            f"{name:<12}{row.parameters:>8.3f}{row.activations:>7.3f}{row.bandwidth:>7.2f}"
            f"{row.latency:>7}{ours:>7.2f}"
        )
    return "\n".join(lines)


def with_and_without_overlap(rows: int, inputs: int, outputs: int, speeds) -> list[Ledger]:
    """Return rank 0's predicted step of a layer on 2×2 ranks, without and then with overlap.

    Numbers have 2 bytes, and both pictures have one scale. Every product is called mm.
    """
    steps = []
    for overlap in (False, True):
        step = summa_step(rows, inputs, outputs, 2, speeds, overlap=overlap, itemsize=2)
        own = step.where(rank=0)
        named = [replace(row, op="mm") if row.op == "addmm_" else row for row in own]
        steps.append(Ledger(named, source=own.source, results=own.results, meta=own.meta))
    return on_one_axis(*steps)


def winners(speeds, *, own_links: bool = False) -> str:
    """Write which split of a layer is predicted to be the fastest, by ranks and width.

    Beside a grid stands by how many percent its time differs from that of 1D, or a dash where 1D is
    not possible. With `own_links` each axis of a grid has a link to itself.
    """
    best = where_each_wins(list(MANY_RANKS), list(LARGE_WIDTHS), speeds, own_links=own_links)
    lines = ["width" + "".join(f"{_short(width):>5}".ljust(10) for width in LARGE_WIDTHS)]
    for ranks in MANY_RANKS:
        lines.append(f"{ranks:<5}" + "".join(_beside_1d(best[ranks, w]) for w in LARGE_WIDTHS))
    return "\n".join(line.rstrip() for line in lines)


def _beside_1d(best: Winner) -> str:
    """Write the kind of a winner and its time against that of 1D, in ten characters."""
    kind = best.name.split(",")[0]
    if kind == "1D":
        return f"{kind:>5}".ljust(10)
    if "1D" not in best.seconds_of:
        return f"{kind:>5}    -"
    return f"{kind:>5}{best.seconds / best.seconds_of['1D'] - 1:>5.0%}"


def _short(width: int) -> str:
    return f"{width // 1024}k"


def hosts_beside_grids() -> dict[str, dict[int, float]]:
    """Return the seconds of a layer on 64 H100s for each width: 1D inside hosts of 8, and grids.

    The first line is 1D over NVLink 4 in each of 8 hosts, with an eighth of the 64 samples, and
    then an all_reduce of the gradients over InfiniBand NDR; the second is this all_reduce alone.
    The others are the fastest grid of 64 ranks, all joined by links of one kind.
    """
    inside, between = (roofline.speeds("H100", link) for link in ("NVLink4", "InfiniBand NDR"))
    lines = {
        name: {} for name in ("1D × data", "  all_reduce", "grid, InfiniBand", "grid, NVLink 4")
    }
    for width in LARGE_WIDTHS:
        weights_of_a_rank = 12 * width**2 // 8  # 3 + 1 + 4 + 4 matrices of [width, width]
        sums = between.moving("all_reduce", 8, 2 * weights_of_a_rank)
        times = [layer_seconds(8, width, inside, batch=8)["1D"] + sums, sums]
        for link in (between, inside):
            found = layer_seconds(64, width, link)
            times.append(min(time for name, time in found.items() if name != "1D"))
        for line, seconds in zip(lines.values(), times):
            line[width] = seconds
    return lines


def real_hosts() -> str:
    """Write the milliseconds of `hosts_beside_grids`."""
    lines = [f"{'64 GPUs, ms':<17}" + "".join(f"{_short(width):>7}" for width in LARGE_WIDTHS)]
    for name, seconds in hosts_beside_grids().items():
        lines.append(f"{name:<17}" + "".join(f"{1e3 * t:>7.1f}" for t in seconds.values()))
    return "\n".join(lines)


def gains_of_a_cube(speeds, tokens: Iterable[int] = (32_768, 131_072)) -> dict[tuple, tuple]:
    """Return how many times as long 1D and 2D take as 3D, on 64 ranks, for (width, tokens).

    Samples have 512 tokens, and heads have 64 numbers, so that 64 ranks divide them all.
    """
    gains = {}
    for width in LARGE_WIDTHS[:3]:
        for count in tokens:
            seconds = layer_seconds(64, width, speeds, count // 512, 512, head_size=64)
            cube = seconds["3D, 4×4×4"]
            gains[width, count] = seconds["1D"] / cube, seconds["2D, 8×8"] / cube
    return gains


def beside_published(speeds) -> str:
    """Write the published gains of 3D tensor parallelism on 64 GPUs, and ours for some sizes."""
    lines = [f"{'64 GPUs':<24}{'1D ÷ 3D':>9}{'2D ÷ 3D':>9}", f"{'published':<24}{2.32:>9}{1.57:>9}"]
    for (width, count), gains in gains_of_a_cube(speeds).items():
        size = f"D {width:,}, M {count:,}"
        lines.append(f"{size:<24}" + "".join(f"{gain:>9.2f}" for gain in gains))
    return "\n".join(lines)


def products_of_dtensor(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Multiply two DTensors in tiles on a square, on every rank; return whether x·w is right."""
    from torch.distributed.tensor import Shard, distribute_tensor

    square = mesh(row=2, column=2).torch()
    a, b = (distribute_tensor(full, square, [Shard(0), Shard(1)]) for full in (x, w))
    dist.barrier()
    y = a @ b
    dist.barrier()
    return torch.allclose(y.full_tensor(), x @ w)


def between_barriers(ledger: Ledger) -> str:
    """List rank 0's collectives between its last two barriers: axis, name, count, bytes sent."""
    found: dict[tuple[str, str], list[GridMove]] = {}
    for move in collectives_of_rank_0(ledger):
        found.setdefault((move.axis, move.op), []).append(move)
    lines = [f"{'axis':<9}{'collective':<12}{'count':>5}{'sent':>8}"]
    for (axis, op), moves in found.items():
        lines.append(f"{axis:<9}{op:<12}{len(moves):>5}{sent_by_a_rank(moves):>8,.0f}")
    return "\n".join(lines)
