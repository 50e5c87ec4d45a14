"""A mesh arranges ranks along named axes, with a process group for each line of an axis.

[Note: order of axes]
The first axis varies slowest: on `mesh(dp=2, tp=4)`, ranks 0, 1, 2 and 3 are one tp group, and
ranks 0 and 4 are one dp group. Neighbouring ranks are usually on the same machine, so the axis that
communicates most comes last.
"""

import math
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist


class Layout:
    """Says which rank sits where; `Layout(dp=2, tp=4)` needs no ranks and prints as a table."""

    def __init__(self, **axes: int):
        if not axes:
            raise ValueError("A mesh needs an axis: mesh(dp=4), or mesh(dp=2, tp=2).")
        for name, size in axes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"Axis {name} has size {size!r}: it must be 1 or more.")
        self.axes = axes
        self.size = math.prod(axes.values())

    def place(self, rank: int) -> dict[str, int]:
        """Give where `rank` sits: its coordinate on each axis."""
        if not 0 <= rank < self.size:
            last = self.size - 1
            raise ValueError(f"There is no rank {rank}: a mesh of {self!r} has ranks 0 to {last}.")
        places, left = {}, rank
        for name, size in reversed(self.axes.items()):
            left, places[name] = divmod(left, size)
        return {name: places[name] for name in self.axes}

    def rank_at(self, **coordinates: int) -> int:
        """Give the rank that sits at these coordinates, one for each axis."""
        if coordinates.keys() != self.axes.keys():
            raise ValueError(f"Give a coordinate for each axis: {', '.join(self.axes)}.")
        number = 0
        for name, size in self.axes.items():
            if not 0 <= coordinates[name] < size:
                raise ValueError(
                    f"Axis {name} ends at {size - 1}, and {name}={coordinates[name]} was asked for."
                )
            number = number * size + coordinates[name]
        return number

    def line(self, names, rank: int) -> tuple[int, ...]:
        """Give the ranks that differ from `rank` along the axes `names` alone, in order."""
        here, names = self.place(rank), self.ordered(names)
        moves = [range(size) if n in names else [here[n]] for n, size in self.axes.items()]
        return tuple(self.rank_at(**dict(zip(self.axes, place))) for place in product(*moves))

    def ordered(self, names) -> tuple[str, ...]:
        """Give some axes in the mesh's own order; raise KeyError for one that it lacks."""
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in self.axes:
                raise KeyError(f"This mesh has no axis {name!r}: it has {', '.join(self.axes)}.")
        return tuple(name for name in self.axes if name in names)

    def __repr__(self) -> str:
        return " × ".join(f"{name}={size}" for name, size in self.axes.items())

    def __str__(self) -> str:
        """Write a row for each line along the last axis."""
        *outer, last = self.axes
        rows = [[*outer, *(f"{last}={i}" for i in range(self.axes[last]))]]
        for place in product(*(range(self.axes[name]) for name in outer)):
            start = self.rank_at(**dict(zip(outer, place)), **{last: 0})
            rows.append([*place, *range(start, start + self.axes[last])])
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(f"{c:>{w}}" for c, w in zip(row, widths)) for row in rows)


@dataclass(frozen=True)
class Axis:
    """One rank's line along one axis (or several together): the group that it talks to there."""

    name: str
    ranks: tuple[int, ...]  # of the whole world, in the order of the group
    rank: int  # this rank's place among them
    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        """Number of ranks on the line."""
        return len(self.ranks)


class Mesh(Layout):
    """A layout seen from one of its ranks: `m["tp"]` is its Axis, `m.coordinates` its place.

    `m["dp", "tp"]` is one group over both axes. The first use of such a pair makes the group, so
    all ranks of that group have to come, as to any collective.
    """

    def __init__(self, **axes: int):
        super().__init__(**axes)
        self.rank = dist.get_rank()
        for name in axes:
            self[name]

    @property
    def coordinates(self) -> dict[str, int]:
        """This rank's coordinate on each axis."""
        return self.place(self.rank)

    def __getitem__(self, names) -> Axis:
        name = ",".join(self.ordered(names))
        ranks = self.line(name.split(","), self.rank)
        return Axis(name, ranks, ranks.index(self.rank), _group(name, ranks))

    def torch(self):
        """Give PyTorch's DeviceMesh of the same axes, on the same groups."""
        from torch.distributed.device_mesh import DeviceMesh

        groups = [self[name].group for name in self.axes]
        ranks = torch.arange(self.size, device="cpu").view(*self.axes.values())
        device, names = torch.get_default_device().type, tuple(self.axes)
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], device, mesh_dim_names=names)
        return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=names)


def mesh(**axes: int) -> Mesh:
    """Arrange the world's ranks along named axes, the first varying slowest: `mesh(dp=2, tp=4)`.

    Every rank has to call it. Groups are made once, and again after a failure has closed them.
    Raises ValueError if the product of the sizes is not the number of ranks.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            f"mesh({Layout(**axes)!r}) is for a rank: call it inside a function that you give to "
            "world.run. Without ranks, Layout says which rank would sit where."
        )
    paper, ranks = Layout(**axes), dist.get_world_size()
    if paper.size != ranks:
        raise ValueError(
            f"A mesh of {paper!r} has {paper.size} ranks, and the world has {ranks}: "
            f"choose sizes that multiply to {ranks}."
        )
    return Mesh(**axes)


_groups: dict[tuple, dist.ProcessGroup] = {}


def _group(name: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """Give the group of that name over these ranks; its name is what the ledger calls it."""
    group = _groups.get((name, ranks))
    if group is None or getattr(group, "closed", ""):  # a failure closes every group
        # Only the members come: on a mesh every rank makes the groups of its own lines.
        group = dist.new_group(list(ranks), use_local_synchronization=True, group_desc=name)
        _groups[name, ranks] = group
    return group
