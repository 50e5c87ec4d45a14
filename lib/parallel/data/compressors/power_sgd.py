"""PowerSGD, and the exchange of one bucket by it."""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.data.compressors.base import Compressor, as_real
from lib.predict.data.compression import low_rank


class PowerSGD(Compressor):
    """Sends each matrix as two factors of `rank` columns, found by one step of power iteration.

    M [A, B] · Q [B, R] -> P [A, R] +g, all_reduce;  orthogonal P^ [A, R];
    M^T · P^ -> Q [B, R] +g, all_reduce;  M becomes P^ · Q^T. The next step starts from this Q.

    All dims of a gradient but the first count as columns. A gradient that is not a matrix, or would
    not become smaller, is summed whole, together with P. `warm=False` draws a new Q for each step
    from `seed`. A rank's residual is the difference to its own P^ · Q^T, before the sum over ranks.
    PyTorch's hook takes the difference to the sum: the mean over ranks, and so all that is sent, is
    the same, but there the differences between the ranks' gradients add up from step to step.
    """

    def __init__(self, rank: int, feedback: bool = True, warm: bool = True, seed: int = 0):
        super().__init__(feedback)
        if rank < 1:
            raise ValueError(
                f"rank, the number of columns of a factor, must be at least 1, not {rank}."
            )
        self.rank, self.warm = rank, warm
        self.factors: dict = {}  # by parameter: Q
        self.generator = torch.Generator("cpu").manual_seed(seed)  # the same on every rank
        self.open: list[Factoring] = []

    def __call__(self, bucket, group=None):
        """Launch the sum of the factors P and of the gradients that are sent whole."""
        factoring = Factoring(self, as_real(bucket), group)
        self.open.append(factoring)
        return factoring

    def start(self, p, columns: int, rank: int, like: Tensor) -> Tensor:
        """Return the Q to start from: the last one, or a random one that is equal on all ranks."""
        if p not in self.factors or not self.warm:
            shape, kind = (columns, rank), {"dtype": torch.float32, "device": "cpu"}
            drawn = torch.randn(shape, generator=self.generator, **kind)
            self.factors[p] = drawn.to(like)
        return self.factors[p]

    @property
    def state_bytes(self) -> int:
        """Return the bytes that are kept from step to step."""
        factors = self.factors.values() if self.warm else ()
        return super().state_bytes + sum(q.numel() * q.element_size() for q in factors)


class Factoring:
    """Exchanges one bucket by PowerSGD; all ranks must launch buckets in the same order."""

    def __init__(self, owner, bucket, group):
        self.owner, self.group = owner, group
        pairs = list(zip(bucket.params, bucket.views))
        factored = [(p, view) for p, view in pairs if low_rank(view.shape, owner.rank)]
        self.whole = [view for _, view in pairs if not low_rank(view.shape, owner.rank)]
        if factored:
            owner.add_residual(*zip(*factored))
        self.matrices = []
        for p, view in factored:
            _, columns, rank = low_rank(view.shape, owner.rank)
            q = owner.start(p, columns, rank, view)
            self.matrices.append((p, view, view.flatten(1), q))
        pieces = [(matrix @ q).flatten() for _, _, matrix, q in self.matrices]
        self.flat = torch.cat(pieces + [view.flatten() for view in self.whole])
        self.sizes = [piece.numel() for piece in pieces] + [v.numel() for v in self.whole]
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        """Launch the second sum of all launched buckets, then compute the result of this one."""
        launched, self.owner.open = self.owner.open, []
        for other in launched:  # their sums overlap; every rank has launched the same buckets
            other.second()
        ranks = dist.get_world_size(self.group)
        if self.matrices:
            self.work.wait()
            self.flat.div_(ranks)
            parts = self.flat.split([q.numel() for *_, q in self.matrices])
            for (p, view, matrix, q), p_hat, part in zip(self.matrices, self.p_hats, parts):
                self.owner.factors[p] = q = part.view_as(q)
                torch.matmul(p_hat, q.T, out=matrix)
                if matrix.data_ptr() != view.data_ptr():  # with channels last, flatten() copied it
                    view.copy_(matrix.view_as(view))
        for view, total in zip(self.whole, self.totals):
            view.copy_(total.view_as(view)).div_(ranks)

    def second(self) -> None:
        """Wait for the sum of the factors P, make them orthogonal, and launch the sum of the Q."""
        self.work.wait()
        parts = self.flat.split(self.sizes)
        self.totals = parts[len(self.matrices) :]
        self.p_hats, factors = [], []
        for (p, _, matrix, _), part in zip(self.matrices, parts):
            p_hat = _orthogonal(part.view(len(matrix), -1))
            own_q = matrix.T @ p_hat
            if self.owner.feedback:
                residual = self.owner.residual[p].view_as(matrix)
                residual.copy_(matrix).addmm_(p_hat, own_q.T, alpha=-1)
            self.p_hats.append(p_hat)
            factors.append(own_q.flatten())
        if factors:
            self.flat = torch.cat(factors)
            self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)


def _orthogonal(p: Tensor) -> Tensor:
    """Return orthonormal columns that span those of p, by Householder reflections.

    With Gram-Schmidt, a gradient of zeros would make Q zero in this and all later steps.
    """
    exact = p if p.element_size() >= 4 else p.float()
    return torch.linalg.qr(exact).Q.to(p.dtype)
