"""Gossip: each rank trains alone, and after every step averages its weights with some neighbours.

    W_r [N] on rank r, different on every rank;  W_r = Σ_s M[r, s] · W_s, where s are r's neighbours

The rules in lib/predict/data/gossip.py decide who averages with whom; the same rules predict how
fast the ranks agree. Sources stand there.
"""

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import broadcast
from lib.parallel.data.local_sgd import replace_weights
from lib.predict.data import gossip
from lib.ranks.algorithms import exchange


class Gossip:
    """Steps `optimizer` on every rank, and after each step averages the weights with neighbours.

    `neighbours` is "ring", one rank on either side, or "pairs", one rank that is drawn anew in each
    round. All ranks must use the same `seed`, or they disagree on who meets whom. On two ranks it
    equals data parallelism with SGD. Optimizer states and buffers are not averaged. Parameters and
    buffers are broadcast once from the group's first rank, when this object is built. Raises
    ValueError for unknown neighbours, and where a tensor cannot be broadcast.
    """

    def __init__(
        self, model: nn.Module, optimizer, neighbours="ring", *, seed: int = 0, group=None
    ):
        gossip.neighbours(neighbours, 1)  # refuses unknown neighbours
        self.model, self.optimizer, self.group = model, optimizer, group
        self.neighbours, self.seed, self.rounds = neighbours, seed, 0
        broadcast.broadcast_model(model, group)

    def step(self) -> None:
        """Step with this rank's own gradients, then do one round; all ranks call this."""
        self.optimizer.step()
        self.mix()

    def mix(self) -> None:
        """Do one round: average the trainable weights with this round's neighbours."""
        replace_weights(self.model, self._mean)
        self.rounds += 1

    def _mean(self, flat: torch.Tensor) -> torch.Tensor:
        return mixed(flat, self.neighbours, self.rounds, seed=self.seed, group=self.group)


def mixed(x, neighbours: str = "ring", number: int = 0, *, seed: int = 0, group=None):
    """Return the mean of x [N] on this rank and on its neighbours of round `number`: [N].

    The neighbours exchange x at the same time. The sum is taken in the order of ranks, so that
    neighbours that average the same tensors get the same bits.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    others = gossip.neighbours(neighbours, ranks, number, seed)[rank]
    arrived = {other: torch.empty_like(x) for other in others}
    exchange(dict.fromkeys(others, x), arrived, group, f"gossip round {number}")
    arrived[rank] = x
    return sum(arrived[r] for r in sorted(arrived)) / len(arrived)
