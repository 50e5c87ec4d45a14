"""A part of compress.py: one bucket on its way through PowerSGD."""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.predict.exchange import low_rank


class Factoring:
    """One bucket on its way through PowerSGD; launched in the same order on every rank."""

    def __init__(self, owner, bucket, group):
        self.owner, self.group = owner, group
        pairs = list(zip(bucket.params, bucket.views))
        cuts = [(p, view) for p, view in pairs if low_rank(view.shape, owner.rank)]
        self.whole = [view for _, view in pairs if not low_rank(view.shape, owner.rank)]
        if cuts:
            owner.add_left(*zip(*cuts))
        self.matrices = []
        for p, view in cuts:
            _, columns, rank = low_rank(view.shape, owner.rank)
            q = owner.start(p, columns, rank, view)
            self.matrices.append((p, view, view.flatten(1), q))
        pieces = [(matrix @ q).flatten() for _, _, matrix, q in self.matrices]
        self.flat = torch.cat(pieces + [view.flatten() for view in self.whole])
        self.sizes = [piece.numel() for piece in pieces] + [v.numel() for v in self.whole]
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        """Finish: the second sum of all buckets that are under way, then this one's result."""
        begun, self.owner.open = self.owner.open, []
        for other in begun:  # their sums overlap; every rank has launched the same ones
            other.second()
        ranks = dist.get_world_size(self.group)
        if self.matrices:
            self.work.wait()
            self.flat.div_(ranks)
            parts = self.flat.split([q.numel() for *_, q in self.matrices])
            for (p, view, matrix, q), p_hat, part in zip(self.matrices, self.p_hats, parts):
                self.owner.factors[p] = q = part.view_as(q)
                torch.matmul(p_hat, q.T, out=matrix)
                if matrix.data_ptr() != view.data_ptr():  # channels last: flattening copied it
                    view.copy_(matrix.view_as(view))
        for view, total in zip(self.whole, self.totals):
            view.copy_(total.view_as(view)).div_(ranks)

    def second(self) -> None:
        """Take the sum of the P, make them orthogonal, launch the sum of the Q."""
        self.work.wait()
        parts = self.flat.split(self.sizes)
        self.totals = parts[len(self.matrices) :]
        self.p_hats, factors = [], []
        for (p, _, matrix, _), part in zip(self.matrices, parts):
            p_hat = _orthogonal(part.view(len(matrix), -1))
            mine = matrix.T @ p_hat
            if self.owner.feedback:
                self.owner.left[p].view_as(matrix).copy_(matrix).addmm_(p_hat, mine.T, alpha=-1)
            self.p_hats.append(p_hat)
            factors.append(mine.flatten())
        if factors:
            self.flat = torch.cat(factors)
            self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)


def _orthogonal(p: Tensor) -> Tensor:
    """Give orthonormal columns that span those of p; Householder's way, so that zeros do no harm.

    With Gram-Schmidt a gradient of zeros makes Q zero, and from there it never finds back.
    """
    exact = p if p.element_size() >= 4 else p.float()
    return torch.linalg.qr(exact).Q.to(p.dtype)
