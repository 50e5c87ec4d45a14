"""A step of FSDP whose shards are the host's, predicted: its rows, and bytes in two memories.

    host [L/n] -> copy -> device [L/n] -> all_gather -> [L]      [L] -> reduce_scatter -> [L/n] ->
    copy -> host [L/n] -> step

Beside the rows of `fsdp_step`, each rank has a link to its host with two directions, and its part
of the host's memory. A unit's shard is copied before its gather, and while a unit computes that of
the unit behind those that are gathered ahead. The step waits for all gradients of the shards.
"""

from collections.abc import Sequence

from lib.ledger import Ledger, Row
from lib.predict.shape import ModelShape
from lib.predict.sharded.fsdp_step import Step
from lib.predict.sharded.held_bytes import Sizes
from lib.predict.sharded.offload import STEP_BYTES, HostSpeeds
from lib.predict.sharded.units import Unit, alive, optimizer_states, units_of


def offloaded_fsdp_step(
    shape: ModelShape, batches: Sequence[int], speeds, host: HostSpeeds, *,
    blocks: Sequence[int] | None = None, ends: bool = True, prefetch: int = 1,
    itemsize: int = 4, sequence: int | None = None, optimizer: str = "sgd",
) -> Ledger:  # fmt: skip
    """Predict one step with one of `batches` for each rank; the step of `optimizer` is the host's.

    Memory rows tell the bytes on the device: whole units with the shards that were copied for
    them, and gradients. What the host keeps is in `host_bytes`.
    """
    units = units_of(shape, blocks, ends=ends)
    play = _Offloaded(shape, batches, speeds, units, itemsize, sequence, host, prefetch)
    sizes = {"param_bytes": itemsize, "reduce_bytes": itemsize}
    for held in alive(units, len(batches), prefetch=prefetch, **sizes):
        if held.action.kind in ("gather", "backward", "copy"):
            play.holds(held.whole + play.copied, held.gradients)
        getattr(play, held.action.kind)(held.action.unit)
        play.holds(held.whole + play.copied, held.gradients)
    play.step(optimizer)
    return play.time.ledger()


def host_bytes(
    units: Sequence[Unit], ranks: int, rank: int, optimizer: str = "adamw", itemsize: int = 4
) -> int:
    """Return the bytes that a rank keeps in the host's memory: shards, their gradients, states."""
    shards = itemsize * sum(unit.share(ranks) for unit in units)
    return 2 * shards + optimizer_states(units, ranks, rank, optimizer, itemsize)


class _Offloaded(Step):
    """Carries out a step's actions, and what they send over the links to the hosts."""

    def __init__(self, shape, batches, speeds, units, itemsize, sequence, host, prefetch):
        sizes = Sizes(itemsize, itemsize, itemsize)
        super().__init__(shape, batches, speeds, units, len(batches), sizes, sequence)
        self.held.told = False  # the shards are elsewhere
        self.shown: dict[str, int] = {}
        self.host, self.prefetch = host, prefetch
        self.lanes: dict[tuple[str, int], float] = {}  # when each is free
        self.fetched: dict[int, list[float]] = {}  # units -> when their shards have arrived
        self.joining: set[int] = set()  # units whose gather still reads its shard
        self.sent: list[list[float]] = []  # when gradients have arrived at the hosts

    @property
    def copied(self) -> int:
        """Return the bytes of shards on each device."""
        on_device = {*self.fetched, *self.joining}
        return self.sizes.shard * sum(self.units[unit].share(self.ranks) for unit in on_device)

    def holds(self, parameters: int, gradients: int) -> None:
        """Note what is held, where it has changed."""
        for kind, nbytes in (("parameters", parameters), ("gradients", gradients)):
            if self.shown.get(kind) != nbytes:
                self.time.holds(kind, nbytes)
                self.shown[kind] = nbytes

    def launch_on_host(self, op: str, nbytes: int, after: Sequence[float]) -> list[float]:
        """Put a copy or a step into the lane of each rank; return when it ends."""
        needs = self.host.working(nbytes) if op == "step" else self.host.moving(nbytes)
        ends = []
        for rank, launched in enumerate(self.time.clock):
            start = max(launched, self.lanes.get((op, rank), 0.0), after[rank] if after else 0.0)
            self.lanes[op, rank] = end = start + needs
            numbered = {"group": "host", "members": (rank,), "number": len(self.time.rows)}
            row = Row(rank, "comm", op, launched, end, arrived=launched, bytes=nbytes, **numbered)
            self.time.rows.append(row)
            ends.append(end)
        return ends

    def wait_for_host(self, op: str, ends: Sequence[float]) -> None:
        """Let each device wait until what its host or its link does has ended."""
        for rank, end in enumerate(ends):
            start = self.time.clock[rank]
            if end > start:
                row = Row(rank, "wait", op, start, end, group="host", members=(rank,))
                self.time.rows.append(row)
                self.time.clock[rank] = end

    def fetch(self, unit: int) -> None:
        """Start to copy the shard of a unit to the device, unless it is there."""
        nbytes = self.units[unit].share(self.ranks) * self.sizes.shard
        if nbytes and unit not in self.fetched:
            self.fetched[unit] = self.launch_on_host("to_device", nbytes, ())

    def gather(self, unit: int) -> None:
        """Wait for a unit's shard, gather the unit, and start to fetch the one after it."""
        self.fetch(unit)
        arrived = self.fetched.pop(unit, [])
        self.wait_for_host("to_device", arrived)
        if arrived:
            self.joining.add(unit)
        super().gather(unit)
        following = unit + (1 if self.turns < 2 else -1)
        if unit and self.prefetch and 0 < following < len(self.units):
            self.fetch(following)

    def wait(self, unit: int) -> None:
        """Wait until a unit is whole; its shard is dropped then."""
        super().wait(unit)
        self.joining.discard(unit)

    def settle(self, unit: int) -> None:
        """Keep the mean of a unit's gradients, and send it to the host."""
        super().settle(unit)
        if nbytes := self.units[unit].share(self.ranks) * self.sizes.shard:
            self.sent.append(self.launch_on_host("to_host", nbytes, ()))

    def step(self, optimizer: str) -> None:
        """Let each host step its shards when all gradients have arrived."""
        numbers = sum(unit.share(self.ranks) for unit in self.units)
        ready = [max(ends) for ends in zip(*self.sent)]
        nbytes = numbers * STEP_BYTES[optimizer] * self.sizes.shard // 4
        self.wait_for_host("step", self.launch_on_host("step", nbytes, ready))
