"""Time of an all-reduce over several nodes, with fast links inside each and slower ones between.

[Note: three ways over several nodes]
There are N nodes of k ranks each, n = Nk, and r links, the rails, lead out of each node. One ring
over n ranks has 2(n-1) rounds, in each of which the busiest link moves its bytes. No barrier stands
between them: a piece pays the latency of the links that it meets, and c of these are the network's,
2N where k > 2 (2N - 1 and 2N - 2 where k is 2 and 1).

    flat_ring        one ring through all ranks, which leaves each node by one rail:
                     (2(n-1) - c) α_in + c α_out + 2(n-1) · S/n · max(β_in, β_out)
    multi_rail_ring  r rings at once, each with S/r and a rail of its own: as above, S/(nr) outside,
                     and inside S/n · (k-1)/k where every rank has its own rail
    hierarchical     reduce-scatter inside, all-reduce outside, all-gather inside:
                     2(k-1)(α_in + β_in · S/k) + 2(N-1)(α_out + β_out · S/(Nr))

NCCL estimates a ring's latency in the same way, with c = 2N in version 2.20 and 2(N-1) in 2.28
(source: NVIDIA/nccl@b647562 and v2.28.3, src/graph/tuning.cc, nInterSteps).

A ring sends nearly every byte over the slow links; the hierarchical algorithm sends only a k-th of
S out of each rank. NCCL cuts S into chunks, so that both levels work at the same time, each on
another chunk (`overlap`). Then only the bytes of the slower level count, and the latencies of both.
"""

from collections import Counter
from itertools import accumulate
from typing import NamedTuple

from lib.predict import hardware
from lib.predict.arguments import equal_share, real, whole
from lib.predict.collectives.plans import Plan

ALGORITHMS = ("flat_ring", "multi_rail_ring", "hierarchical")


class Nodes(NamedTuple):
    """Describes `count` nodes of `ranks` ranks; `rails` links like `outside` lead out of each."""

    count: int
    ranks: int
    inside: hardware.Link
    outside: hardware.Link
    rails: int

    def links(self, source: int, destination: int) -> list[tuple]:
        """Return the two links that a message occupies: out of its source, into its destination."""
        ends = [divmod(rank, self.ranks) for rank in (source, destination)]
        if ends[0][0] == ends[1][0]:
            return [("inside", "out", source), ("inside", "in", destination)]
        return [
            ("outside", direction, node, local * self.rails // self.ranks)
            for direction, (node, local) in zip(("out", "in"), ends)
        ]


def nodes_of(sweep: hardware.Sweep) -> Nodes:
    """Return the nodes that a published sweep was measured on; raise ValueError for one node."""
    if sweep.nodes < 2:
        raise ValueError(f"{sweep.name} was measured on one node. Use formulas.time_of for it.")
    links = hardware.link(sweep.inside), hardware.link(sweep.outside)
    return Nodes(sweep.nodes, sweep.ranks // sweep.nodes, *links, sweep.rails)


def all_reduce(algorithm: str, nodes: Nodes, nbytes: float, *, overlap: bool = False) -> float:
    """Return the seconds of an all-reduce of `nbytes` on every rank under one of `ALGORITHMS`.

    With one node, all three are the ring of `formulas.time_of`. `overlap` lets the two levels of
    the hierarchical algorithm work at the same time. Raises ValueError for nodes that cannot be.
    """
    _check(algorithm, nodes, nbytes, overlap)
    n, k = nodes.count * nodes.ranks, nodes.ranks
    inside, outside = nodes.inside, nodes.outside
    if algorithm == "hierarchical":
        latency = 2 * (k - 1) * inside.alpha + 2 * (nodes.count - 1) * outside.alpha
        levels = (
            2 * (k - 1) / k * nbytes * inside.beta,
            2 * (nodes.count - 1) / nodes.count * nbytes / nodes.rails * outside.beta,
        )
        return latency + (max(levels) if overlap else sum(levels))
    rails = nodes.rails if algorithm == "multi_rail_ring" else 1
    leaves = rails == k and nodes.count > 1  # every rank sends the pieces of one ring out
    rounds = [inside.beta * nbytes / n * (1 - leaves / k)] * (k > leaves)
    rounds += [outside.beta * nbytes / (n * rails)] * (nodes.count > 1)
    crossings = (2 * nodes.count - max(0, 3 - k)) * (nodes.count > 1)
    latency = (2 * (n - 1) - crossings) * inside.alpha + crossings * outside.alpha
    return latency + 2 * (n - 1) * max(rounds, default=0.0)


def seconds(plan: Plan, nodes: Nodes, numel: int, itemsize: int = 4) -> float:
    """Return the seconds of any plan on these nodes: each round lasts as long as its busiest link.

    Messages of one round that share a link pay its latency once. A rank sends to its own node over
    one link, and to other nodes over its rail.
    """
    if plan.ranks != nodes.count * nodes.ranks:
        ranks = nodes.count * nodes.ranks
        raise ValueError(f"This plan needs {plan.ranks} ranks, but the nodes have {ranks}.")
    ends, itemsize = [0, *accumulate(plan.sizes(numel))], whole(itemsize, "itemsize")
    total = 0.0
    for moves in plan.rounds:
        loads = Counter()
        for move in moves:
            nbytes = itemsize * (ends[move.piece + move.count] - ends[move.piece])
            for link in nodes.links(move.source, move.destination) if nbytes else ():
                loads[link] += nbytes
        kinds = {kind: getattr(nodes, kind) for kind in ("inside", "outside")}
        times = (kinds[link[0]].alpha + kinds[link[0]].beta * b for link, b in loads.items())
        total += max(times, default=0.0)
    return total


def errors(sweep: hardware.Sweep, nbytes: int) -> dict[str, float]:
    """Return predicted ÷ measured time - 1 of each algorithm for one size of a published sweep.

    "at once" is the hierarchical algorithm with both levels at the same time.
    """
    if nbytes not in sweep.nbytes:
        raise ValueError(
            f"{sweep.name} has no time for {nbytes} bytes. Its attribute nbytes lists the sizes."
        )
    nodes, measured = nodes_of(sweep), sweep.seconds[sweep.nbytes.index(nbytes)]
    times = {algorithm: all_reduce(algorithm, nodes, nbytes) for algorithm in ALGORITHMS}
    times["at once"] = all_reduce("hierarchical", nodes, nbytes, overlap=True)
    return {algorithm: time / measured - 1 for algorithm, time in times.items()}


def _check(algorithm: str, nodes: Nodes, nbytes: float, overlap: bool) -> None:
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"No all-reduce here is called {algorithm!r}. Choose one of {', '.join(ALGORITHMS)}."
        )
    if overlap and algorithm != "hierarchical":
        raise ValueError(
            f"{algorithm} has one level. Only hierarchical can overlap its two levels."
        )
    for name in ("count", "ranks", "rails"):
        whole(getattr(nodes, name), f"The {name} of the nodes")
    equal_share(
        nodes.ranks, nodes.rails, "A node has {} ranks", "{} rails",
        advice="Choose a number of rails that divides the ranks of a node.",
    )  # fmt: skip
    for link in (nodes.inside, nodes.outside):
        real(link.alpha, "A link's latency")
        real(link.beta, "A link's time for each byte")
    real(nbytes, "nbytes")
