"""A step of FSDP, predicted: the rows that its ranks would record, from shapes alone.

Each rank runs its own batch forward and backward (lib/predict/step.py). Units are gathered and
freed in the order of `actions` (lib/predict/sharded/units.py). After its backward the gradients of
a unit are copied into one buffer, and its reduce_scatter starts. When that is over, the mean is
kept in the shard. At the end each rank takes a step of plain SGD on its shards.

    x [B/dp, I] · all_gather(W [L/dp]) -> [B/dp, O]      dW [L] +dp -> reduce_scatter -> [L/dp]

On a mesh, `ranks` share the units, and the replicas sum the gradients of equal shards: these sums
are launched while backward goes on, and waited for at its end.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict import step
from lib.predict.arguments import equal_share, whole
from lib.predict.memory import STATES
from lib.predict.operations import Operation
from lib.predict.shape import ModelShape
from lib.predict.sharded.lockstep import Lockstep
from lib.predict.sharded.units import Unit, alive, units_of


def fsdp_step(
    shape: ModelShape, batches: Sequence[int], speeds, *, blocks: Sequence[int] | None = None,
    ends: bool = True, prefetch: int = 1, resharded: bool = True, ranks: int | None = None,
    itemsize: int = 4, param_bytes: int | None = None, reduce_bytes: int | None = None,
    sequence: int | None = None, optimizer: str = "sgd",
) -> Ledger:  # fmt: skip
    """Predict one step with one of `batches` for each rank.

    Shards have `itemsize` bytes a number. Whole weights and what is computed with them have
    `param_bytes`, and gradients are reduced in `reduce_bytes`: by default the same, and what
    `param_dtype` is.

    `blocks` and `ends` choose the units (see `units_of`), `resharded` is `reshard_after_forward`,
    and `ranks` (by default all) share the units, next to each other; they must divide the number
    of batches. Memory rows tell the bytes of parameters (shards and whole units), of gradients and
    of the `optimizer`'s states; the time of the update is that of plain SGD.
    """
    if not len(batches):
        raise ValueError("A step needs at least one rank. Give the batch of each rank.")
    ranks = len(batches) if ranks is None else whole(ranks, "The number of ranks")
    equal_share(len(batches), ranks, "There are {} ranks", "Groups of {}")
    param_bytes = param_bytes or itemsize
    sizes = Sizes(itemsize, param_bytes, reduce_bytes or param_bytes)
    play = Step(shape, batches, speeds, units_of(shape, blocks, ends=ends), ranks, sizes, sequence)
    keys = {"prefetch": prefetch, "resharded": resharded}
    both = {"param_bytes": sizes.param, "reduce_bytes": sizes.reduce}
    kept = itemsize * sum(unit.share(ranks) for unit in play.units)
    play.time.holds("optimizer", STATES[optimizer] * kept)
    for held in alive(play.units, ranks, **keys, **both):
        if held.action.kind in ("gather", "backward", "copy"):
            play.holds(kept + held.whole, play.reduced * itemsize + held.gradients)
        getattr(play, held.action.kind)(held.action.unit)
        play.holds(kept + held.whole, play.reduced * itemsize + held.gradients)
    play.average()
    play.update()
    return play.time.ledger()


def hidden(ledger: Ledger, speeds, op: str = "all_gather") -> float:
    """Return the share of a collective's moving time that lies under computation, over all ranks.

    What a rank waits for it counts as exposed, at most for as long as it moves alone by
    `speeds.moving(op, ranks, bytes)`: waiting longer, it waits for what is before it in the lane.
    """
    key = lambda row: (row.rank, row.group, row.members, row.number)
    rows = {key(row): row for row in ledger.where(lane="comm", op=op)}
    moving = {at: speeds.moving(op, len(row.members), row.bytes) for at, row in rows.items()}
    waits = dict.fromkeys(rows, 0.0)
    for row in ledger.where(lane="wait", op=op):
        waits[key(row)] += row.seconds
    exposed = sum(min(waits[at], moving[at]) for at in rows)
    return 1 - exposed / (sum(moving.values()) or 1.0)


class Sizes(NamedTuple):
    """Holds the bytes of a number in shards, in whole weights, and in a reduction."""

    shard: int
    param: int
    reduce: int


class Step:
    """Carries out the actions of a step on the clocks of all ranks."""

    def __init__(self, shape, batches, speeds, units: list[Unit], ranks, sizes: Sizes, sequence):
        self.units, self.ranks, self.sizes = units, ranks, sizes
        self.time = Lockstep(len(batches), speeds)
        self.passes = [step.passes(shape, batch, sequence, sizes.param) for batch in batches]
        self.gathers, self.reduces, self.averages, self.settled = {}, {}, {}, set()
        self.shown: dict[str, int] = {}
        self.turns = 0  # of the root: forward, forward, backward, backward

    @property
    def reduced(self) -> int:
        """Return the elements of gradients that are kept in shards."""
        return sum(self.units[unit].share(self.ranks) for unit in self.settled)

    @property
    def shard_groups(self) -> list[tuple[int, ...]]:
        """Return the ranks that share units, group by group."""
        first = range(0, len(self.passes), self.ranks)
        return [tuple(range(rank, rank + self.ranks)) for rank in first]

    @property
    def replica_groups(self) -> list[tuple[int, ...]]:
        """Return the ranks that hold equal shards."""
        return list(zip(*self.shard_groups))

    def holds(self, parameters: int, gradients: int) -> None:
        """Note what is held, where it has changed."""
        for kind, nbytes in (("parameters", parameters), ("gradients", gradients)):
            if self.shown.get(kind) != nbytes:
                self.time.holds(kind, nbytes)
                self.shown[kind] = nbytes

    def turn(self, unit: int) -> tuple[int, ...]:
        """Return the blocks whose turn it is: a unit's, or one of the root's two ends."""
        if unit:
            return self.units[unit].blocks
        self.turns += 1
        ends = self.units[0].blocks  # the first block and the last one
        return ends[:1] if self.turns in (1, 4) else ends[1:]

    def run(self, operations: Sequence[Sequence[Operation]]) -> None:
        """Run one list of operations on each rank."""
        for same in zip(*operations):
            self.time.compute(same)

    def everywhere(self, name: str, nbytes: int) -> None:
        """Run an operation on each rank that moves so many bytes and computes little."""
        self.time.compute([Operation(name, 0, nbytes)] * len(self.passes))

    def cast(self, numbers: int, before: int, after: int) -> None:
        """Copy numbers of `before` bytes to numbers of `after` bytes, where these differ."""
        if numbers and before != after:
            self.everywhere("_to_copy", numbers * (before + after))

    def keep(self, unit: int) -> None:
        """Divide a reduced shard by the number of ranks, and cast it to what the shards have."""
        share = self.units[unit].share(self.ranks)
        self.everywhere("div", 2 * share * self.sizes.reduce)
        self.cast(share, self.sizes.reduce, self.sizes.shard)

    # The actions.

    def gather(self, unit: int) -> None:
        """Launch the all_gather of a unit."""
        self.cast(self.units[unit].share(self.ranks), self.sizes.shard, self.sizes.param)
        self.gathers[unit] = self.launch("all_gather", unit, self.sizes.param)

    def launch(self, op: str, unit: int, size: int) -> dict:
        """Launch a collective of the whole unit; nothing for a unit without parameters."""
        nbytes = self.units[unit].length(self.ranks) * size
        mesh = len(self.shard_groups) > 1
        name = "shard" if mesh else "world"
        return self.time.launch(op, nbytes, self.shard_groups, name) if nbytes else {}

    def wait(self, unit: int) -> None:
        """Wait until a unit is whole."""
        self.time.wait(self.gathers[unit])

    def forward(self, unit: int) -> None:
        """Compute the blocks of a unit; of the root first the block before the units."""
        for block in self.turn(unit):
            self.run([passes[block].forward for passes in self.passes])

    def free(self, unit: int) -> None:
        """Free a unit, which takes no time."""

    def backward(self, unit: int) -> None:
        """Compute the gradients of a unit's blocks, from the last block to the first."""
        for block in reversed(self.turn(unit)):
            self.run([passes[block].backward for passes in self.passes])

    def copy(self, unit: int) -> None:
        """Copy the gradients of a unit into one buffer."""
        if self.units[unit].numel:
            self.everywhere("cat", self.units[unit].numel * (self.sizes.param + self.sizes.reduce))

    def reduce(self, unit: int) -> None:
        """Launch the reduce_scatter of a unit."""
        self.reduces[unit] = self.launch("reduce_scatter", unit, self.sizes.reduce)

    def settle(self, unit: int) -> None:
        """Wait until a unit is reduced; keep the mean, or launch the sum of the replicas."""
        share = self.units[unit].share(self.ranks)
        if not share:
            return
        self.settled.add(unit)
        self.time.wait(self.reduces[unit])
        if len(self.shard_groups) > 1:
            sums = "all_reduce", share * self.sizes.reduce, self.replica_groups, "replicate"
            self.averages[unit] = self.time.launch(*sums)
        else:
            self.keep(unit)

    def average(self) -> None:
        """Wait for the sums of the replicas, one after the other, and keep their means."""
        for unit, sums in self.averages.items():
            self.time.wait(sums)
            self.keep(unit)

    def update(self) -> None:
        """Take a step of plain SGD, which reads weight and gradient and writes the weight."""
        for unit in self.units:
            if unit.numel:
                self.everywhere("add", 3 * unit.share(self.ranks) * self.sizes.shard)
