"""Six all-reduces made of sends and receives: the same sum with different rounds and bytes.

Each follows its plan (lib/predict/collectives/plans.py) round by round, and sends exactly what
`lib.predict.collectives.formulas.all_reduce` counts. All add in place and return the tensor:

    x [N] +g -> x [N]        where S is the bytes of x, and n the number of ranks in the group
"""

from itertools import accumulate

import torch
import torch.distributed as dist

from lib.predict.collectives import plans
from lib.predict.collectives.plans import Plan
from lib.ranks.state.this_rank import this_rank


def exchange(sends: dict, receives: dict, group=None, note: str = "") -> None:
    """Do one round: start all sends and receives at the same time, and wait for all of them.

    The arguments are those of `start_exchange`.
    """
    for message in start_exchange(sends, receives, group, note):
        message.wait()


def start_exchange(sends: dict, receives: dict, group=None, note: str = "") -> list:
    """Start all sends and receives of a round at the same time, and return what to wait for.

    `sends` maps a rank of `group` to the tensor that it gets, and `receives` maps a rank to the
    tensor that is overwritten with what it sends. A tensor without elements is not sent. Recorded
    rows carry `note`.
    """
    # If every rank first sent and then received, each send would wait for its receiver for ever.
    messages = [(dist.isend, peer, tensor) for peer, tensor in sends.items()]
    messages += [(dist.irecv, peer, tensor) for peer, tensor in receives.items()]
    batch = [
        dist.P2POp(launch, tensor, group=group, group_peer=peer)
        for launch, peer, tensor in messages
        if tensor.numel()
    ]
    if not batch:
        return []
    recorded = this_rank.recording.events if this_rank.recording else []
    before = len(recorded)
    launched = dist.batch_isend_irecv(batch)
    for event in recorded[before:]:
        if event.lane == "comm":
            event.note = note
    return launched


def follow(plan: Plan, x: torch.Tensor, group=None) -> torch.Tensor:
    """Carry out this rank's part of `plan` on `x`, in place, and return `x`.

    `x` is cut into `plan.pieces` pieces. Recorded rows carry the note "ring round 0" and so on.
    Raises ValueError if the plan is for another number of ranks than `group` has.
    """
    if plan.ranks != dist.get_world_size(group):
        size = dist.get_world_size(group)
        raise ValueError(f"This plan needs {plan.ranks} ranks, but the group has {size}.")
    rank = dist.get_rank(group)
    flat = x.detach().contiguous().view(-1)  # the memory of x itself if x is contiguous
    ends = [0, *accumulate(plans.pieces(flat.numel(), plan.pieces))]
    for number, moves in enumerate(plan.rounds):
        mine = [m for m in moves if rank in (m.source, m.destination)]
        part = {m: flat[ends[m.piece] : ends[m.piece + m.count]] for m in mine}
        sends = {m.destination: part[m] for m in mine if m.source == rank}
        takes = [m for m in mine if m.destination == rank]
        arrived = {m.source: torch.empty_like(part[m]) if m.add else part[m] for m in takes}
        exchange(sends, arrived, group, f"{plan.name} round {number}")
        for move in takes:
            if move.add:
                part[move].add_(arrived[move.source])
    return _into(x, flat)


def _into(x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Copy `flat` into `x`, unless both are the same memory already, and return `x`."""
    with torch.no_grad():
        return x if x.data_ptr() == flat.data_ptr() else x.copy_(flat.view(x.shape))


def central(x: torch.Tensor, group=None) -> torch.Tensor:
    """Sum through rank 0, one message at a time, in 2(n-1) rounds; rank 0 sends (n-1) S."""
    return follow(plans.central(dist.get_world_size(group)), x, group)


def everyone(x: torch.Tensor, group=None) -> torch.Tensor:
    """Send every tensor to every rank in n-1 rounds; each rank sends (n-1) S and keeps n S.

    Every rank adds in the order of ranks. If it added in the order of arrival, the sums of two
    ranks could differ in their last bits, and so would their models.
    """
    plan = plans.everyone(dist.get_world_size(group))
    buffers = x.new_zeros(plan.ranks, *x.shape)
    buffers[dist.get_rank(group)] = x.detach()
    total, *others = follow(plan, buffers, group)
    for other in others:
        total.add_(other)
    return _into(x, total)


def ring(x: torch.Tensor, group=None) -> torch.Tensor:
    """Sum pieces round a ring and pass the sums on: 2(n-1) rounds, 2(n-1)/n S from each rank.

    Source: Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2).
    """
    return follow(plans.ring(dist.get_world_size(group)), x, group)


def tree(x: torch.Tensor, group=None) -> torch.Tensor:
    """Sum up a binomial tree and return the sum: 2 ceil(log2 n) rounds with messages of S."""
    return follow(plans.tree(dist.get_world_size(group)), x, group)


def halving_doubling(x: torch.Tensor, group=None) -> torch.Tensor:
    """Exchange and sum halves, then double them: 2 log2 n rounds, 2(n-1)/n S from each rank.

    If n is not a power of two, there are two more rounds, in which some ranks send S.
    Source: Rabenseifner 2004, ICCS, LNCS 3036.
    """
    return follow(plans.halving_doubling(dist.get_world_size(group)), x, group)


def two_level(x: torch.Tensor, group=None, node: int | None = None) -> torch.Tensor:
    """Sum inside nodes of `node` ranks, then by a ring over their first ranks, and return the sum.

    There are 2(node-1) + 2(n/node-1) rounds. Between nodes, the first rank of each sends
    2(n/node-1) messages of S/(n/node) bytes.
    """
    return follow(plans.two_level(dist.get_world_size(group), node), x, group)


ALGORITHMS = {f.__name__: f for f in (central, everyone, ring, tree, halving_doubling, two_level)}


def all_reduce(x: torch.Tensor, algorithm: str = "ring", group=None, **options) -> torch.Tensor:
    """Sum `x` over the group in place with the algorithm of that name, and return it."""
    if algorithm not in ALGORITHMS:
        names = ", ".join(ALGORITHMS)
        raise ValueError(f"No all-reduce is called {algorithm!r}. Choose one of {names}.")
    return ALGORITHMS[algorithm](x, group, **options)
