"""A part of fsdp_step.py: the bytes of each kind that the ranks hold, as memory rows over time.

    parameters    shards, and each unit from the launch of its gather until it is freed
    gradients     whole ones from when autograd has them until they are copied into their buffer,
                  the buffer until its reduce_scatter is over, and shards from the end of backward
    optimizer     its states
    activations   what autograd keeps for backward
    other         results of a moment, gradients of activations, samples and targets, the loss,
                  shards that are cast for a gather or reduced, and what Adam's step computes

These are the kinds of lib/ranks/memory.py. As there, a shard's mean counts as "other" until the
optimizer looks for it. The gradient that completes the first unit is copied before anything else
has seen it, and counts as "other" as well.

[Note: to the byte]
For a step `loss(model(x), y).backward(); optimizer.step()` after an earlier one, the bytes of each
kind at the peak, the most bytes of each kind and what is left at the end are those that are
recorded on the CPU (tests/parallel/sharded/test_fsdp_memory.py), with three exceptions:

* With dropout a block's activations come and go at once (lib/predict/lifetimes.py). The most of
  each kind is right, but the peak of all kinds together was 6 % too high in a small GPT.
* If the root has a tied matrix, the first unit has only learned positions. It sends them before its
  backward is over, and here afterwards. For a moment "other" was 6,336 bytes too low, where the
  gradients of the two embeddings have 4,800 and 768; the peak was right.
* Samples and targets count with their own bytes, also where they are views of something larger.

A GPU's attention keeps other tensors, and its allocator rounds up what is asked for.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lib.predict.lifetimes import Effect
from lib.predict.shape import ModelShape
from lib.predict.sharded.lockstep import Lockstep
from lib.predict.sharded.units import Unit, optimizer_states


class Sizes(NamedTuple):
    """Holds the bytes of a number in shards, in whole weights, and in a reduction."""

    shard: int
    param: int
    reduce: int


class HeldBytes:
    """Counts what comes and goes on every rank.

    With `told` False nothing becomes a row. With `buffered` the backend copies what it reduces.
    """

    def __init__(self, time: Lockstep, units: Sequence[Unit], ranks: int, sizes: Sizes):
        self.time, self.units, self.ranks, self.sizes = time, units, ranks, sizes
        self.told, self.buffered = True, False
        self.everyone = range(len(time.clock))
        self.unit_of = {p.name: n for n, unit in enumerate(units) for p in unit.parameters}
        self.numel = {p.name: p.numel for unit in units for p in unit.parameters}
        self.missing = [{p.name for p in unit.parameters} for unit in units]
        self.separate: list[Counter] = [Counter() for _ in units]  # gradients' bytes by kind

    def share(self, unit: int) -> int:
        """Return the elements of a unit's shard."""
        return self.units[unit].share(self.ranks)

    def change(self, kind: str, nbytes: int, note: str = "") -> None:
        """Add bytes of a kind on every rank, or take them away."""
        for rank in self.everyone if self.told else ():
            self.time.change(rank, kind, nbytes, note)

    def move(self, before: str, after: str, nbytes: int) -> None:
        """Make bytes those of another kind, on every rank."""
        for rank in self.everyone if self.told else ():
            self.time.move(rank, before, after, nbytes)

    # Operations.

    def begin(self, effects: Sequence[Effect], note: str) -> None:
        """Bring to life what an operation makes; there is an effect for each rank."""
        for rank, effect in enumerate(effects if self.told else ()):
            self.time.move(rank, "other", "activations", effect.saved)
            self.time.change(rank, "other", effect.born, note)
            self.time.move(rank, "other", "activations", effect.kept)

    def end(self, effects: Sequence[Effect], ready: Sequence[str] = ()) -> None:
        """Let go of what an operation has used up; gradients of the names in `ready` are there."""
        for rank, effect in enumerate(effects if self.told else ()):
            self.time.change(rank, "other", -effect.freed)
            self.time.change(rank, "activations", -effect.released)
        for name in ready:
            self._arrive(name, self.numel[name] * self.sizes.param)

    def _arrive(self, name: str, nbytes: int) -> None:
        unit = self.unit_of[name]
        self.missing[unit].discard(name)
        completes = unit == 1 and not self.units[0].blocks and not self.missing[unit]
        if not completes:
            self.move("other", "gradients", nbytes)
        self.separate[unit]["other" if completes else "gradients"] += nbytes

    # Units.

    def start(self, optimizer: str) -> None:
        """Hold shards and the optimizer's states, which differ by the padding."""
        for rank in self.everyone if self.told else ():
            states = optimizer_states(
                self.units, self.ranks, rank % self.ranks, optimizer, self.sizes.shard
            )
            self.time.change(rank, "optimizer", states)
        self.change("parameters", self.sizes.shard * sum(u.share(self.ranks) for u in self.units))

    def gather(self, unit: int) -> None:
        """Make room for a unit; its shard is cast where it has another number of bytes."""
        self.change("parameters", self.share(unit) * self.ranks * self.sizes.param, "all_gather")
        self.change("other", self._cast(unit), "_to_copy")

    def gathered(self, unit: int) -> None:
        """Let go of the shard that was cast."""
        self.change("other", -self._cast(unit))

    def free(self, unit: int) -> None:
        """Free a unit."""
        self.change("parameters", -self.share(unit) * self.ranks * self.sizes.param)

    def _cast(self, unit: int) -> int:
        return self.share(unit) * self.sizes.param * (self.sizes.param != self.sizes.shard)

    # Gradients.

    def copy(self, unit: int) -> None:
        """Make a unit's buffer; the gradients are there until they are copied, and the padding."""
        self.change("gradients", self._buffer(unit), "cat")
        self.change("other", self._padding(unit))

    def copied(self, unit: int) -> None:
        """Let go of what was copied into the buffer."""
        for kind, nbytes in self.separate[unit].items():
            self.change(kind, -nbytes)
        self.separate[unit].clear()
        self.change("other", -self._padding(unit))

    def reduce(self, unit: int) -> None:
        """Make room for a reduced shard."""
        self.change("other", self.share(unit) * self.sizes.reduce, "reduce_scatter")

    def reduced(self, unit: int) -> None:
        """Let go of a buffer, of which the backend may still have a copy."""
        self.change("other", self._buffer(unit) * self.buffered, "reduce_scatter")
        self.change("gradients", -self._buffer(unit))

    def settled(self, unit: int) -> None:
        """Let go of the backend's copy."""
        self.change("other", -self._buffer(unit) * self.buffered)

    def kept(self, unit: int) -> None:
        """Cast a reduced shard to what the shards have."""
        if self.sizes.reduce != self.sizes.shard:
            self.change("other", self.share(unit) * self.sizes.shard, "_to_copy")
            self.change("other", -self.share(unit) * self.sizes.reduce)

    def _buffer(self, unit: int) -> int:
        return self.share(unit) * self.ranks * self.sizes.reduce

    def _padding(self, unit: int) -> int:
        return self._buffer(unit) - self.units[unit].numel * self.sizes.reduce

    # The update.

    def update(self, shape: ModelShape, optimizer: str) -> None:
        """Call the kept means gradients, and hold what Adam computes for each piece in turn."""
        for unit in range(len(self.units)):
            self.move("other", "gradients", self.share(unit) * self.sizes.shard)
        if not optimizer.startswith("adam"):
            return
        for rank in self.everyone if self.told else ():
            self._adam(rank, [p.name for p in shape.parameters])

    def _adam(self, rank: int, names: Sequence[str]) -> None:
        """A root and a quotient for each piece; the quotient lives until there is the next one."""
        pieces, before = {}, 0
        for unit in self.units:
            sizes = unit.pieces(self.ranks, rank % self.ranks)
            pieces |= dict(zip([p.name for p in unit.parameters], sizes))
        for nbytes in (pieces[name] * self.sizes.shard for name in names if pieces[name]):
            self.time.change(rank, "other", nbytes, "sqrt in optimizer")
            self.time.change(rank, "other", nbytes, "div in optimizer")
            self.time.change(rank, "other", -nbytes)
            self.time.change(rank, "other", -before)
            before = nbytes
        self.time.change(rank, "other", -before)
