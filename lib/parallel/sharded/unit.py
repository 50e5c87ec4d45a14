"""A part of fsdp.py: one unit, whose weights are gathered, used and freed together."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from lib.parallel.sharded.flat_parameters import FlatParameters
from lib.predict.arguments import equal_share
from lib.ranks.mesh import Mesh


@dataclass(frozen=True)
class Groups:
    """The process groups of a sharded model.

    `shard` are the ranks that hold different shards, `replicas` those that hold the same one (None
    without a mesh), `all` are both together, and `small` the ranks among which a unit is sharded
    between forward and backward.
    """

    shard: ProcessGroup | None
    replicas: ProcessGroup | None
    all: ProcessGroup | None
    small: ProcessGroup | None
    device: torch.device

    @property
    def size(self) -> int:
        """The number of ranks over which gradients are averaged."""
        return dist.get_world_size(self.all)


def groups_of(group_or_mesh, after_forward, device: torch.device) -> Groups:
    """Return the groups for a group or a mesh. Raises ValueError for a mesh of three axes."""
    shard = everyone = group_or_mesh
    replicas = small = None
    if isinstance(group_or_mesh, Mesh):
        axes = list(group_or_mesh.axes)
        if len(axes) > 2:
            raise ValueError(
                f"A mesh of {group_or_mesh!r} has {len(axes)} axes. FSDP shards along the last of "
                "two axes and replicates along the first, or shards along one axis."
            )
        shard = everyone = group_or_mesh[axes[-1]].group
        if len(axes) == 2:
            replicas, everyone = group_or_mesh[axes[0]].group, group_or_mesh[tuple(axes)].group
    if not isinstance(after_forward, bool):
        ranks = dist.get_process_group_ranks(shard or dist.group.WORLD)
        equal_share(len(ranks), after_forward, "A group of {} ranks", "reshard_after_forward={}")
        first = dist.get_rank(shard) // after_forward * after_forward
        members, name = ranks[first : first + after_forward], f"reshard of {after_forward}"
        small = dist.new_group(members, use_local_synchronization=True, group_desc=name)
    return Groups(shard, replicas, everyone, small, device)


class Unit:
    """A module whose weights are gathered and freed together, in a flat buffer for each kind.

    Weights of one kind have one dtype, and all of them are trained or none is. `after_forward` says
    what becomes of them between forward and backward: True, False or a number of ranks.
    """

    def __init__(self, name: str, module, weights, groups, after_forward, dtypes, arrived, host):
        self.name, self.module, self.after_forward = name, module, after_forward
        self.active = 0  # the runs of this unit that are in backward
        self.passing = 0  # the runs at whose end backward calls `leave_backward`
        kinds: dict = {}
        for weight in weights:
            parameter = weight.parameter
            kinds.setdefault((parameter.dtype, parameter.requires_grad), []).append(weight)

        def hook(flat, n, _):
            arrived(self, flat, n)

        self.flats = [FlatParameters(w, groups, *dtypes, hook, host) for w in kinds.values()]
        self.trained = [flat for flat in self.flats if flat.trained]

    def fetch(self) -> None:
        """Start to copy shards that lie in the host's memory to the device."""
        for flat in self.flats:
            flat.fetch()

    def gather(self) -> None:
        """Launch the gathers of all weights that are not whole."""
        for flat in self.flats:
            flat.gather()

    def wait(self) -> None:
        """Wait until all weights are whole."""
        for flat in self.flats:
            flat.wait()

    def free(self, small: bool = False) -> None:
        """Give the memory of the whole weights back."""
        for flat in self.flats:
            flat.free(small)

    @property
    def complete(self) -> bool:
        """True when every trained weight has got its gradient in this backward."""
        return all(all(flat.came) for flat in self.trained)
