"""Base classes of the compressors: of all, and of those whose messages go to all ranks."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor


class Compressor:
    """A hook for the buckets of a DistributedDataParallel, and for plain lists of gradients.

    `hook(bucket, group)` launches the exchange of a bucket, which has .flat [N] and .views, the
    gradients of .params. It returns an object with `wait()`, after which `bucket.flat` holds the
    average of what the ranks sent. The residual of error feedback is kept by parameter, because the
    assignment to buckets may change. Each model needs a hook of its own.
    """

    def __init__(self, feedback: bool):
        self.feedback = feedback
        self.residual: dict = {}  # by parameter: the part of its gradients that was not sent yet

    def average(self, gradients: list[Tensor], group=None) -> None:
        """Average the gradients over ranks, in place; their order must be the same in every step.

        Raises ValueError where the gradients have several dtypes or are sparse.
        """
        if any(g.is_sparse for g in gradients):
            raise ValueError("Sparse gradients cannot be compressed. Make them dense first.")
        if not gradients:
            return
        if len({g.dtype for g in gradients}) > 1:
            raise ValueError(
                "Gradients of several dtypes cannot share a message. Average each dtype by itself."
            )
        flat = torch.cat([g.reshape(-1) for g in gradients])
        parts = flat.split([g.numel() for g in gradients])
        views = [part.view(g.shape) for part, g in zip(parts, gradients)]
        numbers = range(len(views))
        self(SimpleNamespace(index=0, flat=flat, params=numbers, views=views), group).wait()
        for g, view in zip(gradients, views):
            g.copy_(view)

    @property
    def state_bytes(self) -> int:
        """Return the bytes that are kept from step to step."""
        return sum(t.numel() * t.element_size() for t in self.residual.values())

    def add_residual(self, params, views: list[Tensor]) -> list[Tensor]:
        """Add the residuals to these gradients; return the tensors for the new residuals."""
        if not self.feedback:
            return []
        for p, view in zip(params, views):
            if p not in self.residual or self.residual[p].shape != view.shape:
                self.residual[p] = torch.zeros_like(view, memory_format=torch.contiguous_format)
        residuals = [self.residual[p] for p in params]
        if residuals:
            torch._foreach_add_(views, residuals)
        return residuals


def as_real(bucket):
    """View a bucket of complex gradients as pairs of real numbers; return other buckets as is."""
    if not bucket.flat.is_complex():
        return bucket
    views = [torch.view_as_real(view) for view in bucket.views]
    flat = torch.view_as_real(bucket.flat).view(-1)
    return SimpleNamespace(index=bucket.index, flat=flat, params=bucket.params, views=views)


class Gathered(Compressor):
    """Base of compressors whose messages cannot be summed: one all_gather sends all to every rank.

    `encode(bucket, group)` returns the parts of a rank's message; `decode(parts, sign, bucket)`
    adds sign × the gradients that they encode to `bucket.flat`.
    """

    def __call__(self, bucket, group=None):
        """Launch the exchange of one bucket."""
        bucket = as_real(bucket)
        residuals = self.add_residual(bucket.params, bucket.views)
        parts = self.encode(bucket, group)
        if self.feedback:
            self.decode(parts, -1.0, bucket)  # bucket.flat now holds the new residual
            torch._foreach_copy_(residuals, bucket.views)
        message = torch.cat([part.contiguous().view(torch.uint8) for part in parts])
        ranks = dist.get_world_size(group)
        all_messages = message.new_empty(ranks * message.numel())
        work = dist.all_gather_single(all_messages, message, group=group, async_op=True)
        layout = [(part.dtype, part.numel()) for part in parts]

        def wait():
            work.wait()
            bucket.flat.zero_()
            for one in all_messages.view(ranks, -1):  # in rank order, for equal bits on all ranks
                self.decode(_cut(one, layout), 1.0, bucket)
            bucket.flat.div_(ranks)

        return SimpleNamespace(wait=wait)


def _cut(message: Tensor, layout: list) -> list[Tensor]:
    """Cut the bytes of a message into its parts, one tensor for each (dtype, numel)."""
    parts = message.split([numel * dtype.itemsize for dtype, numel in layout])
    # Each part is copied, because the parts before it may leave it without its dtype's alignment.
    return [part.clone().view(dtype) for part, (dtype, _) in zip(parts, layout)]
