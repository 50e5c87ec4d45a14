"""A part of compress.py: what all compressors share, and those whose messages go to all ranks."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor


class Compressor:
    """A hook for the buckets of a DistributedDataParallel, and for plain lists of gradients.

    `hook(bucket, group)` launches the exchange of a bucket: .flat [N], and .views, the gradients of
    .params; after `wait()` on what it gives back, `bucket.flat` holds the average of what the ranks
    sent. What is left over is kept by parameter, so that buckets may be cut anew. Each model needs
    a hook of its own.
    """

    def __init__(self, feedback: bool):
        self.feedback = feedback
        self.left: dict = {}  # by parameter: what has not been sent yet

    def average(self, gradients: list[Tensor], group=None) -> None:
        """Give every rank the average, in place; the list has the same order in every step.

        Raises ValueError where the gradients are of several dtypes.
        """
        if len({g.dtype for g in gradients}) > 1:
            raise ValueError("gradients of several dtypes share no message: average each dtype")
        flat = torch.cat([g.reshape(-1) for g in gradients])
        parts = flat.split([g.numel() for g in gradients])
        views = [part.view(g.shape) for part, g in zip(parts, gradients)]
        places = range(len(views))
        self(SimpleNamespace(index=0, flat=flat, params=places, views=views), group).wait()
        for g, view in zip(gradients, views):
            g.copy_(view)

    @property
    def state_bytes(self) -> int:
        """Memory that stays from step to step."""
        return sum(t.numel() * t.element_size() for t in self.left.values())

    def add_left(self, params, views: list[Tensor]) -> list[Tensor]:
        """Add to these gradients what was left over; give where the new rest of each goes."""
        if not self.feedback:
            return []
        for p, view in zip(params, views):
            if p not in self.left or self.left[p].shape != view.shape:
                self.left[p] = torch.zeros_like(view, memory_format=torch.contiguous_format)
        left = [self.left[p] for p in params]
        if left:
            torch._foreach_add_(views, left)
        return left


class Gathered(Compressor):
    """Compressors whose messages do not add up: every rank gets all of them, in one all_gather.

    `encode(bucket, group)` gives the parts of a rank's message, `decode(parts, sign, bucket)` adds
    sign × what they stand for to `bucket.flat`.
    """

    def __call__(self, bucket, group=None):
        """Launch the exchange of one bucket."""
        left = self.add_left(bucket.params, bucket.views)
        parts = self.encode(bucket, group)
        if self.feedback:
            self.decode(parts, -1.0, bucket)  # flat now holds what was not sent
            torch._foreach_copy_(left, bucket.views)
        message = torch.cat([part.contiguous().view(torch.uint8) for part in parts])
        ranks = dist.get_world_size(group)
        all_messages = message.new_empty(ranks * message.numel())
        work = dist.all_gather_single(all_messages, message, group=group, async_op=True)
        like = [(part.dtype, part.numel()) for part in parts]

        def wait():
            work.wait()
            bucket.flat.zero_()
            for one in all_messages.view(ranks, -1):  # in rank order: the same bits on every rank
                self.decode(_cut(one, like), 1.0, bucket)
            bucket.flat.div_(ranks)

        return SimpleNamespace(wait=wait)


def _cut(message: Tensor, like: list) -> list[Tensor]:
    """Undo the joining of a message's parts: bytes -> one tensor for each (dtype, numel)."""
    parts = message.split([numel * dtype.itemsize for dtype, numel in like])
    # A copy: parts of other sizes before it may leave it at an odd place in memory.
    return [part.clone().view(dtype) for part, (dtype, _) in zip(parts, like)]
