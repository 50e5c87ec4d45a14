"""Parameters that every rank has whole, in one flat buffer of which each rank updates a share."""

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.sharded.layout import Layout


class ReplicatedFlat:
    """Lays parameters into one flat buffer: whole [L] on each rank, updated [L/dp] by each rank.

    The parameters become views of the buffer. `pieces` are this rank's pieces of them, which its
    optimizer updates; `gather` then gives every rank all updates, in place.
    """

    shared = False  # True where each rank has only its share of the gradients, too

    def __init__(self, parameters: list, group):
        self.parameters, self.group = list(parameters), group
        self.rank = dist.get_rank(group)
        shapes = [parameter.shape for parameter in self.parameters]
        self.layout = Layout(shapes, dist.get_world_size(group))
        first = self.parameters[0]
        self.flat = torch.zeros(self.layout.length, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self.layout.views(self.flat)):
            view.copy_(parameter.detach())
            parameter.data = view
        self.share = self.flat.view(-1, self.layout.share)[self.rank]
        self.pieces = [nn.Parameter(p) for p in self.layout.pieces(self.share, self.rank)]

    def offer(self) -> None:
        """Give each piece its part of the whole gradient, as a view; none where there is none."""
        for n, (piece, parameter) in enumerate(zip(self.pieces, self.parameters)):
            first, last = self.layout.piece(n, self.rank)
            if last > first and parameter.grad is not None:
                piece.grad = parameter.grad.reshape(-1)[first:last]

    def withdraw(self) -> None:
        """Take the gradients from the pieces again."""
        for piece in self.pieces:
            piece.grad = None

    def clear(self) -> None:
        """Forget the gradients of this rank's share; whole ones belong to the parameters."""

    def gather(self):
        """Launch the gather of all shares; return the work to wait for."""
        return dist.all_gather_single(self.flat, self.share, group=self.group, async_op=True)
