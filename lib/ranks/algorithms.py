"""Six all-reduces from send and receive: the same sum, different rounds and bytes.

Each follows its plan (lib/predict/rounds.py) round by round; what it moves equals
`lib.predict.traffic.all_reduce` exactly. All of them add in place and give the tensor back:

    x [N] +g -> x [N]        S: bytes of x, n: ranks of the group, rounds and busiest rank below
"""

from itertools import accumulate

import torch
import torch.distributed as dist

from lib.predict import rounds
from lib.predict.rounds import Plan
from lib.ranks.desk import desk


def exchange(sends: dict, receives: dict, group=None, note: str = "") -> None:
    """Do one round: send {rank: tensor}, receive into {rank: tensor}, all at once; wait for all.

    Ranks count within `group`. A tensor with no element is not sent. Recorded rows carry `note`.
    """
    # All at once: a send that waits for its receiver before it receives goes round for ever.
    messages = [(dist.isend, peer, tensor) for peer, tensor in sends.items()]
    messages += [(dist.irecv, peer, tensor) for peer, tensor in receives.items()]
    batch = [
        dist.P2POp(launch, tensor, group=group, group_peer=peer)
        for launch, peer, tensor in messages
        if tensor.numel()
    ]
    if not batch:
        return
    before = len(desk.events or ())
    launched = dist.batch_isend_irecv(batch)
    for event in (desk.events or ())[before:]:
        if event["lane"] == "comm":
            event["note"] = note
    for message in launched:
        message.wait()


def follow(plan: Plan, x: torch.Tensor, group=None) -> torch.Tensor:
    """Do this rank's part of `plan` on the pieces of `x`, in place; note `ring round 0` and so on.

    `x` is cut into `plan.pieces` pieces. Raises ValueError where the plan is for another number
    of ranks than `group` has.
    """
    if plan.ranks != dist.get_world_size(group):
        size = dist.get_world_size(group)
        raise ValueError(f"a plan for {plan.ranks} ranks cannot be followed by {size}")
    rank = dist.get_rank(group)
    flat = x.detach().contiguous().view(-1)  # x itself where it is contiguous
    ends = [0, *accumulate(rounds.pieces(flat.numel(), plan.pieces))]
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
    """Give `x` the entries of `flat`, where they are not the same memory already."""
    with torch.no_grad():
        return x if x.data_ptr() == flat.data_ptr() else x.copy_(flat.view(x.shape))


def central(x: torch.Tensor, group=None) -> torch.Tensor:
    """Sum through rank 0, one message at a time: 2(n-1) rounds, 2(n-1) S through rank 0."""
    return follow(rounds.central(dist.get_world_size(group)), x, group)


def everyone(x: torch.Tensor, group=None) -> torch.Tensor:
    """Send all to all, and each adds up: n-1 rounds, (n-1) S from each rank, memory for n S.

    Everybody adds in the order of ranks: in the order of arrival the sums would differ in their
    last bits, and so would the ranks' models.
    """
    plan = rounds.everyone(dist.get_world_size(group))
    buffers = x.new_zeros(plan.ranks, *x.shape)
    buffers[dist.get_rank(group)] = x.detach()
    total, *others = follow(plan, buffers, group)
    for other in others:
        total.add_(other)
    return _into(x, total)


def ring(x: torch.Tensor, group=None) -> torch.Tensor:
    """Pass pieces round a ring, adding, then passing on: 2(n-1) rounds, 2(n-1)/n S from each rank.

    Source: Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2).
    """
    return follow(rounds.ring(dist.get_world_size(group)), x, group)


def tree(x: torch.Tensor, group=None) -> torch.Tensor:
    """Sum up a binomial tree, and tell it down: 2 ceil(log2 n) rounds, each of S."""
    return follow(rounds.tree(dist.get_world_size(group)), x, group)


def halving_doubling(x: torch.Tensor, group=None) -> torch.Tensor:
    """Halve and sum, then double: 2 log2 n rounds, 2(n-1)/n S from each rank.

    Two rounds and 2 S more for some where n is no power of two.
    Source: Rabenseifner 2004, ICCS, LNCS 3036.
    """
    return follow(rounds.halving_doubling(dist.get_world_size(group)), x, group)


def two_level(x: torch.Tensor, group=None, node: int | None = None) -> torch.Tensor:
    """Sum inside nodes of `node` ranks, ring over their first ranks, tell it inside the nodes.

    2(node-1) + 2(n/node-1) rounds; between nodes only 2(n/node-1) messages of S/(n/node) each.
    """
    return follow(rounds.two_level(dist.get_world_size(group), node), x, group)


ALGORITHMS = {f.__name__: f for f in (central, everyone, ring, tree, halving_doubling, two_level)}


def all_reduce(x: torch.Tensor, algorithm: str = "ring", group=None, **options) -> torch.Tensor:
    """Sum `x` over the group in place, under the algorithm of that name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"No all-reduce is called {algorithm!r}: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[algorithm](x, group, **options)
