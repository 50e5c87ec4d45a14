"""Communication of a step under each stage of ZeRO: which collectives, with how many bytes.

For ψ parameters on n ranks, one rank sends in a step, in elements and times (n - 1)/n:

    stage 0  all_reduce of the gradients                              2ψ
    stage 1  reduce_scatter of the gradients, all_gather of weights   2ψ
             beside DDP, which all-reduces the gradients              3ψ
    stage 2  as stage 1, bucket by bucket while backward runs         2ψ
    stage 3  all_gather in forward and backward, reduce_scatter       3ψ

Hybrid sharding shards over the g ranks of a host and sums the shards' gradients over the n/g hosts
with an all_reduce: only 2ψ/g · (n/g - 1)/(n/g) leaves the host.

Source: Rajbhandari et al. 2019 (arXiv 1910.02054), section 7; Zhao et al. 2023 (arXiv 2304.11277).
"""

from collections.abc import Sequence

from lib.predict.arguments import equal_share, whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.sharded.states import share_of
from lib.predict.sharded.units import Unit, actions


def of_step(
    numel: int, ranks: int, stage: int, itemsize: int = 4, *, beside_ddp: bool = False
) -> list[Exchange]:
    """Return the collectives of a step as if the whole model were one buffer, padded to be shared.

    With `beside_ddp` stage 1 works next to DistributedDataParallel, whose all_reduce gives every
    rank all gradients, though it needs only its share.
    """
    whole_bytes = whole(itemsize, "itemsize") * ranks * share_of(numel, ranks)
    make = lambda op: Exchange(op, ranks, whole_bytes)
    gather, scatter = make("all_gather"), make("reduce_scatter")
    steps = {
        0: [Exchange("all_reduce", ranks, itemsize * numel)],
        1: [Exchange("all_reduce", ranks, itemsize * numel) if beside_ddp else scatter, gather],
        2: [scatter, gather],
        3: [gather, gather, scatter],
    }
    if stage not in steps:
        raise ValueError(f"ZeRO has stages 0, 1, 2 and 3, not {stage!r}.")
    return steps[stage]


def of_fsdp(
    units: Sequence[Unit], ranks: int, *, replicas: int = 1, prefetch: int = 1,
    resharded: bool | int = True, param_bytes: int = 4, reduce_bytes: int = 4,
) -> list[Exchange]:  # fmt: skip
    """Return the collectives of a step of FSDP, in the order in which they are launched.

    `ranks` share the units (see `units_of`), and `replicas` groups of so many ranks train together.
    `resharded` is `reshard_after_forward`: True, False, or a number of ranks that keep the unit
    among them, so that only they gather it again.
    """
    small = ranks if isinstance(resharded, bool) else whole(resharded, "reshard_after_forward")
    equal_share(ranks, small, "{} ranks keep a unit", "Groups of {}")
    found, gathered = [], set()
    for kind, number in actions(len(units) - 1, prefetch, resharded=bool(resharded)):
        length = units[number].length(ranks)
        if not length:
            continue
        if kind == "gather":
            group = small if number in gathered else ranks
            gathered.add(number)
            found.append(Exchange("all_gather", group, length * param_bytes))
        elif kind == "reduce":
            found.append(Exchange("reduce_scatter", ranks, length * reduce_bytes))
        elif kind == "settle" and replicas > 1:
            found.append(Exchange("all_reduce", replicas, length // ranks * reduce_bytes))
    return found


def across_hosts(
    sharding: str, numel: float, ranks: int, on_a_host: int, *, as_printed: bool = False
) -> float:
    """Return what a GPU sends over the network in a step, in elements, by FSDP's three formulas.

    For M parameters, W ranks and G on a host: "full" sharding 3M(W - 1)/W, "replicate" 2M(W - 1)/W,
    "hybrid" 2M(W/G - 1)/W, which is an all_reduce of shards of M/G among W/G hosts. The first two
    count a ring of all ranks as if each of its links left the host. `as_printed`, hybrid sharding
    has 2M(W - 1)/(GW), which is too much: twice as much on two hosts.
    Source: Zhao et al. 2023 (arXiv 2304.11277), section 3.2.2.
    """
    w = whole(ranks, "The number of ranks")
    hosts = equal_share(w, on_a_host, sharers="Hosts of {}")
    if sharding == "hybrid":
        return 2 * numel * (w - 1) / (on_a_host * w) if as_printed else 2 * numel * (hosts - 1) / w
    factors = {"full": 3, "replicate": 2}
    if sharding not in factors:
        raise ValueError(f"No sharding is called {sharding!r}. Choose full, replicate or hybrid.")
    return factors[sharding] * numel * (w - 1) / w
