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

from lib.ledger import Ledger
from lib.predict import lifetimes, step
from lib.predict.arguments import equal_share, whole
from lib.predict.operations import Operation
from lib.predict.shape import ModelShape
from lib.predict.sharded.held_bytes import HeldBytes, Sizes
from lib.predict.sharded.lockstep import Lockstep
from lib.predict.sharded.units import Unit, actions, units_of


def fsdp_step(
    shape: ModelShape, batches: Sequence[int], speeds, *, blocks: Sequence[int] | None = None,
    ends: bool = True, prefetch: int = 1, resharded: bool = True, ranks: int | None = None,
    itemsize: int = 4, param_bytes: int | None = None, reduce_bytes: int | None = None,
    sequence: int | None = None, optimizer: str = "sgd", backend: str = "nccl",
) -> Ledger:  # fmt: skip
    """Predict one step with one of `batches` for each rank.

    Shards have `itemsize` bytes a number. Whole weights and what is computed with them have
    `param_bytes`, and gradients are reduced in `reduce_bytes`: by default the same, and what
    `param_dtype` is.

    `blocks` and `ends` choose the units (see `units_of`), `resharded` is `reshard_after_forward`,
    and `ranks` (by default all) share the units, next to each other; they must divide the number
    of batches. The time of the update is that of plain SGD. Memory rows tell the bytes by kind
    (held_bytes.py) with the states of `optimizer`, as they are after a first step; on the `backend`
    "gloo", as ranks on the CPU have it, a reduce_scatter has a buffer of its own.
    """
    if not len(batches):
        raise ValueError("A step needs at least one rank. Give the batch of each rank.")
    ranks = len(batches) if ranks is None else whole(ranks, "The number of ranks")
    equal_share(len(batches), ranks, "There are {} ranks", "Groups of {}")
    param_bytes = param_bytes or itemsize
    sizes = Sizes(itemsize, param_bytes, reduce_bytes or param_bytes)
    play = Step(shape, batches, speeds, units_of(shape, blocks, ends=ends), ranks, sizes, sequence)
    play.held.buffered = backend == "gloo"
    play.held.start(optimizer)
    first = not play.units[0].blocks  # the first unit computes on the samples themselves
    for kind, unit in actions(len(play.units) - 1, prefetch, resharded=resharded, ends=first):
        getattr(play, kind)(unit)
    play.average()
    play.update(optimizer)
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


class Step:
    """Carries out the actions of a step on the clocks of all ranks."""

    def __init__(self, shape, batches, speeds, units: list[Unit], ranks, sizes: Sizes, sequence):
        self.shape, self.units, self.ranks, self.sizes = shape, units, ranks, sizes
        self.time = Lockstep(len(batches), speeds)
        self.held = HeldBytes(self.time, units, ranks, sizes)
        self.passes = [step.passes(shape, batch, sequence, sizes.param) for batch in batches]
        cast, given = sizes.param != sizes.shard, (sequence, sizes.param)
        self.effects = [lifetimes.effects(shape, n, *given, cast=cast) for n in batches]
        self.losses = [lifetimes.loss(shape, n, *given) for n in batches]
        self.inputs = [lifetimes.inputs(shape, n, sequence, *sizes[:2]) for n in batches]
        self.gathers, self.reduces, self.averages = {}, {}, {}
        self.turns = 0  # of the root: forward, forward, backward, backward

    @property
    def shard_groups(self) -> list[tuple[int, ...]]:
        """Return the ranks that share units, group by group."""
        first = range(0, len(self.passes), self.ranks)
        return [tuple(range(rank, rank + self.ranks)) for rank in first]

    @property
    def replica_groups(self) -> list[tuple[int, ...]]:
        """Return the ranks that hold equal shards."""
        return list(zip(*self.shard_groups))

    def turn(self, unit: int) -> tuple[int, ...]:
        """Return the blocks whose turn it is: a unit's, or one of the root's two ends."""
        if unit:
            return self.units[unit].blocks
        self.turns += 1
        ends = self.units[0].blocks  # the first block and the last one
        return ends[:1] if self.turns in (1, 4) else ends[1:]

    def run(self, block: int, way: str) -> None:
        """Run the operations of a block on each rank, "forward" or "backward"."""
        operations = zip(*(getattr(passes[block], way) for passes in self.passes))
        effects = zip(*(getattr(effects[block], way) for effects in self.effects))
        for same, happening in zip(operations, effects, strict=True):
            self.held.begin(happening, f"{same[0].name} in {way}")
            self.time.compute(same)
            self.held.end(happening, same[0].ready)

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
        self.held.kept(unit)

    # The actions.

    def gather(self, unit: int) -> None:
        """Launch the all_gather of a unit."""
        self.held.gather(unit)
        self.cast(self.units[unit].share(self.ranks), self.sizes.shard, self.sizes.param)
        self.gathers[unit] = self.launch("all_gather", unit, self.sizes.param)

    def launch(self, op: str, unit: int, size: int) -> dict:
        """Launch a collective of the whole unit; nothing for a unit without parameters."""
        nbytes = self.units[unit].length(self.ranks) * size
        mesh = len(self.shard_groups) > 1
        name = "shard" if mesh else "world"
        return self.time.launch(op, nbytes, self.shard_groups, name) if nbytes else {}

    def wait(self, unit: int) -> None:
        """Wait until a unit is whole, if it is still on its way."""
        self.time.wait(self.gathers[unit])
        self.held.gathered(unit)

    def forward(self, unit: int) -> None:
        """Compute the blocks of a unit; the root's first block comes before the units."""
        for block in self.turn(unit):
            if block == 0:
                self.held.begin(self.inputs, "the batch")
            self.run(block, "forward")
        if not unit and self.turns == 2:
            self.loss("forward")
            self.loss("backward")

    def loss(self, part: str) -> None:
        """Hold what a part of the loss makes, and let go of what it has used; it takes no time."""
        for happening in zip(*(getattr(loss, part) for loss in self.losses)):
            self.held.begin(happening, f"the loss in {part}")
            self.held.end(happening)

    def free(self, unit: int) -> None:
        """Free a unit, which takes no time."""
        self.held.free(unit)

    def backward(self, unit: int) -> None:
        """Compute the gradients of a unit's blocks, from the last block to the first."""
        for block in reversed(self.turn(unit)):
            self.run(block, "backward")

    def copy(self, unit: int) -> None:
        """Copy the gradients of a unit into one buffer."""
        self.held.copy(unit)
        if self.units[unit].numel:
            self.everywhere("cat", self.units[unit].numel * (self.sizes.param + self.sizes.reduce))
        self.held.copied(unit)

    def reduce(self, unit: int) -> None:
        """Launch the reduce_scatter of a unit."""
        self.held.reduce(unit)
        self.reduces[unit] = self.launch("reduce_scatter", unit, self.sizes.reduce)

    def settle(self, unit: int) -> None:
        """Wait until a unit is reduced; keep the mean, or launch the sum of the replicas."""
        share = self.units[unit].share(self.ranks)
        if not share:
            return
        self.time.wait(self.reduces[unit])
        self.held.reduced(unit)
        if len(self.shard_groups) > 1:
            sums = "all_reduce", share * self.sizes.reduce, self.replica_groups, "replicate"
            self.averages[unit] = self.time.launch(*sums)
        else:
            self.keep(unit)
        self.held.settled(unit)

    def average(self) -> None:
        """Wait for the sums of the replicas, one after the other, and keep their means.

        With this, backward is over.
        """
        for unit, sums in self.averages.items():
            self.time.wait(sums)
            self.keep(unit)
        self.loss("end")

    def update(self, optimizer: str) -> None:
        """Take a step of plain SGD, which reads weight and gradient and writes the weight."""
        self.held.update(self.shape, optimizer)
        for unit in self.units:
            if unit.numel:
                self.everywhere("add", 3 * unit.share(self.ranks) * self.sizes.shard)
