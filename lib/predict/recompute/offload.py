"""Activations in the host's memory, predicted: bytes in both memories, and the rows of a step.

    forward    0 │ 1 │ 2 │ 3            backward   3 │ 2 │ 1 │ 0
    to host        0 │ 1 │ 2            to device  2 │ 1 │ 0            ahead = 1, block 3 is kept

The copy of a block is launched when its forward ends, and takes α + bytes/bandwidth in its
direction of the link. The device waits for it at the end of the block `ahead` places later, and
frees the bytes then. Backward of a block launches the copies of its own bytes, if they are not
there, and of those of the `ahead` blocks before it; then it waits for its own. Waits are what is
exposed. (lib/single/recompute/offload.py does it.)

Source: Rhu et al. 2016, "vDNN" (arXiv 1602.08124), section III.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lib.ledger import Ledger, Row
from lib.predict.arguments import whole
from lib.predict.provenance import link_of
from lib.predict.recompute.plan import BlockCost, Plan, checked, leaves, none, use_of
from lib.predict.sharded.offload import HostSpeeds
from lib.predict.sharded.offload_step import Lanes


class OffloadUse(NamedTuple):
    """Holds what a step with offload takes: seconds, and bytes of activations in two memories.

    `to_host` and `to_device` are the seconds of all copies in a direction, and `exposed` those in
    which the device waits for one; `seconds` are `computing` and `exposed`.
    """

    seconds: float
    computing: float
    to_host: float
    to_device: float
    exposed: float
    after_forward: int
    peak: int
    host: int


class Item(NamedTuple):
    """Holds what an item of a plan takes: bytes, bytes in its own backward besides, seconds."""

    kept: int
    besides: int
    forward: float
    backward: float


def kept_blocks(blocks: int, keep: int | Collection[int] = 1, ahead: int = 1) -> set[int]:
    """Return the numbers of the blocks whose activations stay on the device.

    `keep` is the number of last blocks, or a collection of numbers. The last `ahead` blocks always
    stay. Raises ValueError for blocks that there are not.
    """
    last = set(range(blocks - min(whole(ahead, "ahead", 0), blocks), blocks))
    if isinstance(keep, Collection) and not isinstance(keep, str):
        strange = [n for n in keep if n not in range(blocks)]
        if strange:
            raise ValueError(
                f"keep names block {strange[0]!r}, and the blocks here are 0 to {blocks - 1}."
            )
        return {*keep} | last
    if whole(keep, "keep", 0) > blocks:
        raise ValueError(
            f"keep={keep} last blocks shall stay on the device, and there are {blocks}. Give at "
            f"most {blocks}, or a collection of the numbers of blocks."
        )
    return set(range(blocks - keep, blocks)) | last


def items_of(
    costs: Sequence[BlockCost], backward: Sequence[float], plan: Plan | None = None
) -> list[Item]:
    """Return what each item of a plan takes; without a plan the items are the blocks.

    A checkpoint keeps its input, and its backward runs its blocks again before.
    """
    items = []
    for item in none(len(costs)) if plan is None else checked(plan, len(costs)):
        inside = list(leaves((item,)))
        part = costs[inside[0] : inside[-1] + 1]
        forward, back = sum(cost.forward for cost in part), sum(backward[n] for n in inside)
        if isinstance(item, tuple):
            use, kept = use_of(_from_zero(item, inside[0]), part), part[0].input
            items.append(Item(kept, use.peak - kept, forward, back + forward + use.again))
        else:
            items.append(Item(part[0].kept, 0, forward, back))
    return items


def _from_zero(plan: Plan, first: int) -> Plan:
    return tuple(_from_zero(i, first) if isinstance(i, tuple) else i - first for i in plan)


def step_with_offload(
    costs: Sequence[BlockCost], backward: Sequence[float], host: HostSpeeds,
    keep: int | Collection[int] = 1, ahead: int = 1, plan: Plan | None = None,
) -> Ledger:  # fmt: skip
    """Predict the rows of a forward and a backward of one device whose activations are the host's.

    `backward` are the seconds of each block's backward, without what a checkpoint computes again.
    Memory rows tell the bytes of activations on the device. `keep`, `ahead` and `plan` are those of
    `offload_activations`.
    """
    meta = {"speeds": link_of(host.link, host.alpha, host.bandwidth)} if host.link else {}
    return Ledger(_played(items_of(costs, backward, plan), host, keep, ahead).rows,
                  source="predicted", meta=meta)  # fmt: skip


def offload_use(
    costs: Sequence[BlockCost], backward: Sequence[float], host: HostSpeeds,
    keep: int | Collection[int] = 1, ahead: int = 1, plan: Plan | None = None,
) -> OffloadUse:  # fmt: skip
    """Return the seconds and bytes of the step that `step_with_offload` predicts.

    Bytes are counted as in `use_of`: what blocks hold, without parameters and the chain's output.
    """
    items = items_of(costs, backward, plan)
    play = _played(items, host, keep, ahead)
    computing = sum(item.forward + item.backward for item in items)
    taken = {
        op: sum(host.moving(items[n].kept) for n in blocks) for op, blocks in play.sent.items()
    }
    return OffloadUse(
        play.clock, computing, taken["to_host"], taken["to_device"], play.exposed,
        play.after_forward, play.peak, sum(items[n].kept for n in play.sent["to_host"]),
    )  # fmt: skip


def _played(items: list[Item], host: HostSpeeds, keep, ahead: int) -> "_Play":
    stay = kept_blocks(len(items), keep, ahead)
    play = _Play(host, items, set(range(len(items))) - stay, ahead)
    for n in range(len(items)):
        play.forward(n)
    play.after_forward = play.held
    for n in reversed(range(len(items))):
        play.backward(n)
    return play


class _Play(Lanes):
    """Carries out the passes of blocks, and the copies that they launch and wait for."""

    def __init__(self, host: HostSpeeds, items: list[Item], swapped: set[int], ahead: int):
        super().__init__(host)
        self.items, self.swapped, self.ahead = items, swapped, ahead
        self.held = self.peak = self.after_forward = 0
        self.exposed = 0.0
        self.ends: dict[tuple[str, int], float] = {}  # of the copies
        self.sent: dict[str, list[int]] = {"to_host": [], "to_device": []}

    def forward(self, n: int) -> None:
        """Run a block, send what it keeps, and free what has been sent `ahead` blocks before."""
        self.compute("forward", self.items[n].forward)
        self.holds(self.items[n].kept)
        if n in self.swapped:
            self.copy("to_host", n)
        if n - self.ahead in self.swapped:
            self.wait_for("to_host", n - self.ahead)
            self.holds(-self.items[n - self.ahead].kept)

    def backward(self, n: int) -> None:
        """Have a block's bytes here and the next ones on the way, and run its backward."""
        for m in range(n, max(n - self.ahead, 0) - 1, -1):
            if m in self.swapped and ("to_device", m) not in self.ends:
                self.copy("to_device", m)
                self.holds(self.items[m].kept)
        if n in self.swapped:
            self.wait_for("to_device", n)
        item = self.items[n]
        self.peak = max(self.peak, self.held + item.besides)
        self.compute("backward", item.backward)
        self.holds(-item.kept)

    def copy(self, op: str, n: int) -> None:
        self.ends[op, n] = self.launch(op, self.items[n].kept)
        self.sent[op].append(n)

    def wait_for(self, op: str, n: int) -> None:
        self.exposed += max(0.0, self.ends[op, n] - self.clock)
        self.wait(op, self.ends[op, n])

    def holds(self, more: int) -> None:
        self.held += more
        self.peak = max(self.peak, self.held)
        now = self.clock
        self.rows.append(Row(0, "memory", "activations", now, now, bytes=self.held))
