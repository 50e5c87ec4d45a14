"""The tables of chapter 5 that say which split is predicted to be the fastest, and by how much."""

from collections.abc import Iterable

from lib.predict import roofline
from lib.predict.tensor.where_each_wins import (
    Winner,
    layer_seconds,
    replicated_seconds,
    square_over_hosts,
    where_each_wins,
)

LARGE_WIDTHS, MANY_RANKS = (4096, 8192, 16384, 32768), (4, 8, 16, 64, 512)


def of_all_ranks(speeds, *, own_links: bool = False) -> str:
    """Write which split of a layer is the fastest if all ranks share it, by ranks and width.

    Beside a grid stands by how many percent its time differs from that of 1D, or a dash where 1D is
    not possible. With `own_links` each axis of a grid has a link to itself.
    """
    best = where_each_wins(list(MANY_RANKS), list(LARGE_WIDTHS), speeds, own_links=own_links)
    cell = lambda ranks, width: _beside_1d(best[ranks, width])
    return _by_ranks_and_width(cell, "{:<11}")


def a_grid_wins_from(*links) -> int:
    """Return from how many ranks on a grid is the fastest at every width, on all of these links.

    `links` are the speeds of a device with each link.
    """
    best = [where_each_wins(list(MANY_RANKS), list(LARGE_WIDTHS), link) for link in links]
    still_1d = [n for wins in best for (n, _), winner in wins.items() if winner.name == "1D"]
    return min(ranks for ranks in MANY_RANKS if ranks > max(still_1d, default=0))


def fastest_replicas(ranks: int, width: int, speeds) -> tuple[tuple[int, int], float]:
    """Return the fastest pair (ranks of a 1D group, groups), and its seconds.

    The all_reduce of the gradients is counted as a whole: none of it is hidden.
    """
    found = replicated_seconds(ranks, width, speeds)
    best = min(found, key=lambda pair: found[pair].exposed)
    return best, found[best].exposed


def of_replicas(speeds) -> str:
    """Write the fastest 1D × data by ranks and width, beside the fastest grid of all ranks.

    2×8 are eight groups of two ranks. Beside it stands by how many percent its time differs from
    that of the fastest grid in which all ranks share every product.
    """
    best = where_each_wins(list(MANY_RANKS), list(LARGE_WIDTHS), speeds)

    def beside(ranks: int, width: int) -> str:
        (group, groups), seconds = fastest_replicas(ranks, width, speeds)
        of_grids = [t for name, t in best[ranks, width].seconds_of.items() if name != "1D"]
        gain = seconds / min(of_grids) - 1
        return f"{f'{group}×{groups}':>6}{round(100 * gain):>4}"

    return _by_ranks_and_width(beside)


def _by_ranks_and_width(cell, header="{:>5}     ") -> str:
    """Write a table of `cell(ranks, width)`; the format of its header says how wide a cell is."""
    lines = ["D    " + "".join(header.format(_short(width)) for width in LARGE_WIDTHS)]
    for ranks in MANY_RANKS:
        lines.append(f"{ranks:<5}" + "".join(cell(ranks, width) for width in LARGE_WIDTHS))
    return "\n".join(line.rstrip() for line in lines)


def _beside_1d(best: Winner) -> str:
    """Write the kind of a winner and its time against that of 1D, with two spaces behind them."""
    kind = best.name.split(",")[0]
    if kind == "1D":
        return f"{kind:<11}"
    if "1D" not in best.seconds_of:
        return f"{kind} -".ljust(11)
    return f"{kind} {best.seconds / best.seconds_of['1D'] - 1:.0%}".ljust(11)


def _short(width: int) -> str:
    return f"{width // 1024}k"


def hosts_beside_grids() -> dict[str, dict[int, float]]:
    """Return the seconds of a layer on 64 H100s for each width: 1D inside hosts of 8, and grids.

    The first line is 1D over NVLink 4 in each of 8 hosts, with an eighth of the 64 samples, and
    then an all_reduce of the gradients over InfiniBand NDR. The next two are its backward pass and
    this all_reduce alone, and the fourth hides as much of one under the other as is possible at
    best. The fifth is a square whose rows are the hosts. The next two are the fastest grid of 64
    ranks, all joined by links of one kind. The last one is the fastest 1D × data, overlapped, if
    NVLink 4 joins all ranks.
    """
    inside, between = (roofline.speeds("H100", link) for link in ("NVLink4", "InfiniBand NDR"))
    names = ("1D × data", "  backward", "  all_reduce", "  overlapped")
    others = ("8×8 over hosts", "grid, InfiniBand", "grid, NVLink 4", "1D×data, NVLink 4")
    lines = {name: {} for name in (*names, *others)}
    for width in LARGE_WIDTHS:
        host = replicated_seconds(64, width, inside, between)[8, 8]
        times = [host.exposed, host.backward, host.sums, host.overlapped]
        times.append(square_over_hosts(8, width, inside, between))
        for link in (between, inside):
            found = layer_seconds(64, width, link)
            times.append(min(time for name, time in found.items() if name != "1D"))
        times.append(min(t.overlapped for t in replicated_seconds(64, width, inside).values()))
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
