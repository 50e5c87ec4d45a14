"""The roofline of a device and the cost of its link: seconds of an operation and of an exchange.

Every prediction and slow motion take their times from here, so one operation has one time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lib.predict.arguments import whole
from lib.predict.collectives.formulas import time_of


class Roofline:
    """Gives times from four figures, which a subclass holds.

    `peak` is in FLOP/s and `memory_bandwidth` in bytes/s; `alpha` (s for each round) and
    `bandwidth` (bytes/s, one way) describe the link. `measured` holds a calibration of this machine
    that stands for the device, and one that stands for the link; each may be None.
    """

    dtype = "bf16"
    measured: tuple = (None, None)
    nodes = None  # a Between, where the ranks are on several nodes

    def compute(self, flop: float, nbytes: float) -> float:
        """Return the seconds of one operation: those of its arithmetic or of its memory traffic.

        A device does both at once, so the longer of the two counts.
        """
        if self.measured[0] is not None:
            return self.measured[0].compute(flop, nbytes, self.dtype)
        return max(flop / self.peak, nbytes / self.memory_bandwidth)

    def moving(self, op: str, ranks: int, nbytes: float, members: Sequence[int] = ()) -> float:
        """Return the seconds of one collective, whose buffer has `nbytes`, or of one message.

        `members` are the ranks of the world that take part, by which `nodes` knows those on
        different nodes; without them all are on one.
        """
        if self.nodes is not None and self.nodes.apart(members):
            return self._between(op, members, nbytes)
        if self.measured[1] is not None:
            return self.measured[1].moving(op, ranks, nbytes)
        return time_of(op, ranks, nbytes, alpha=self.alpha, beta=1 / self.bandwidth)

    def _between(self, op: str, members: Sequence[int], nbytes: float) -> float:
        """Return the seconds of an exchange between nodes.

        A ring is as slow as its slowest link. An all_to_all has a message for every pair, and each
        rank sends those to its own node and those to others at once, each kind one after the other.
        """
        link, ranks = self.nodes, len(members)
        if op != "all_to_all":
            return time_of(op, ranks, nbytes, alpha=link.alpha, beta=1 / link.bandwidth)
        near = Counter(rank // link.ranks for rank in members)
        piece = nbytes / ranks  # on average, where the pieces are uneven
        fewest, most = min(near.values()), max(near.values())
        inside = (most - 1) * (self.alpha + piece / self.bandwidth)
        return max(inside, (ranks - fewest) * (link.alpha + piece / link.bandwidth))


class Between(NamedTuple):
    """Describes the link between nodes of `ranks` ranks: latency in s, bytes/s one way, its name.

    Every rank has a link of its own out of its node.
    """

    ranks: int
    alpha: float
    bandwidth: float
    link: str

    def apart(self, members: Sequence[int]) -> bool:
        """Return whether these ranks of the world are on more than one node."""
        return len({rank // self.ranks for rank in members}) > 1


@dataclass(frozen=True)
class Speeds(Roofline):
    """Holds the four figures of a device and its link, and their names for captions."""

    peak: float
    memory_bandwidth: float
    alpha: float
    bandwidth: float
    dtype: str = "bf16"
    measured: tuple = (None, None)
    gpu: str = ""
    link: str = ""
    nodes: Between | None = None


def speeds(
    gpu: str = "H100", link: str | None = None, dtype: str = "bf16", *,
    node: int | None = None, between: str | None = None,
) -> Speeds:  # fmt: skip
    """Look up a device and a link (by default the device's own) by name.

    With `node`, the ranks of one node, `between` names the link from node to node. `peak` is the
    device's dense peak in `dtype`. "this machine" is what `calibrate` has measured. Raises
    ValueError for a name that is not known.
    """
    from lib.predict import hardware  # here, because a rank needs no table

    device = hardware.gpu(gpu)
    network = hardware.link(link or device.link)
    figures = device.peak[dtype], device.memory_bandwidth, network.alpha, network.bandwidth
    measured = hardware.calibrated(device.name), hardware.calibrated(network.name)
    nodes = between_nodes(node, between)
    return Speeds(*map(float, figures), dtype, measured, gpu, network.name, nodes)


def between_nodes(node: int | None, between: str | None) -> Between | None:
    """Look up the link between nodes of `node` ranks by name; None where there is one node.

    Raises ValueError where only one of both is given, and for a name that is not known.
    """
    from lib.predict import hardware

    if node is None and between is None:
        return None
    if node is None or between is None:
        raise ValueError(
            f"node={node!r} and between={between!r}: several nodes need both, the ranks of a node "
            "and the name of the link between nodes."
        )
    link = hardware.link(between)
    ranks = whole(node, "The ranks of a node")
    return Between(ranks, float(link.alpha), float(link.bandwidth), link.name)
