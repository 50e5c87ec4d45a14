"""ZeRO-2: every rank has all weights, and a share of the gradients and of the optimizer's state.

    x [B/dp, ...] -> loss +dp      gradient [L] +dp -> reduce_scatter (mean) over dp -> [L/dp]

for each bucket, L elements long. Source: Rajbhandari et al. 2019, "ZeRO" (arXiv 1910.02054),
section 5.2. A bucket's gradients are whole only from the first that arrives until they are sent.
"""

import contextlib
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from lib.parallel.sharded.clip import clip_grad_norm_
from lib.parallel.sharded.replicated import ReplicatedFlat
from lib.predict.data.buckets import assign, limits_of
from lib.ranks.agreement import from_first, same_everywhere


class ShardedDataParallel(nn.Module):
    """A model whose gradients are reduced to shards while backward runs, in buckets.

    Its optimizer is `ZeroRedundancyOptimizer(model, torch.optim.AdamW, lr=...)`, made from this
    model and not from its parameters, whose `.grad` stays None. All ranks begin with the weights
    and buffers of the group's first rank. `bucket_bytes` limits a bucket, as in
    DistributedDataParallel. A parameter without a gradient counts as zeros. Raises ValueError where
    the models of the ranks differ, or no parameter is trained.
    """

    def __init__(self, module: nn.Module, group=None, *, bucket_bytes: int | None = None):
        super().__init__()
        self.module, self.group = module, group
        same_everywhere(module, group)
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError(
                "No parameter of this model is trained, so there are no gradients to share. Run "
                "the model without ShardedDataParallel."
            )
        for tensor in (*module.parameters(), *module.buffers()):
            from_first(tensor, group)
        trained.reverse()  # backward begins with the last
        kinds = [(parameter.dtype, parameter.device) for parameter in trained]
        filled = assign([p.nbytes for p in trained], limits_of(bucket_bytes), kinds)
        self.flats = [_Bucket([trained[n] for n in positions], group) for positions in filled]
        self._sync, self._queued, self._next, self._sending = True, False, 0, None
        for bucket in self.flats:
            for n, parameter in enumerate(bucket.parameters):
                hook = functools.partial(self._arrive, bucket, n)
                parameter.register_post_accumulate_grad_hook(hook)

    def forward(self, *args, **kwargs):
        if self._queued:  # the last backward failed
            self._queued, self._next, self._sending = False, 0, None
            for bucket in self.flats:
                bucket.forget()
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """Add up whole gradients on this rank only; it counts where backward runs."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients so that the norm of the whole model's is at most `max_norm`."""
        gradients = [g for bucket in self.flats for g in bucket.gradients if g is not None]
        return clip_grad_norm_(gradients, self.group, self.flats[0].flat, max_norm, norm_type)

    def kept_tensors(self) -> dict[str, list[torch.Tensor]]:
        """Return by kind what no `.grad` shows: the shards of the gradients."""
        shards = [gradient for bucket in self.flats for gradient in bucket.gradients]
        return {"gradients": [shard for shard in shards if shard is not None]}

    def state_dict(self, *args, **kwargs):
        """Return the plain model's state dict, whose names do not begin with "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state dict of the plain model."""
        return self.module.load_state_dict(*args, **kwargs)

    # Backward.

    def _arrive(self, bucket, n: int, parameter) -> None:
        """Take a gradient that is complete, and launch all buckets whose turn it is."""
        if not self._sync:
            return  # it stays in .grad, and the next backward adds to it
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._finish)
        bucket.take(n)
        while self._next < len(self.flats) and self.flats[self._next].complete:
            self._launch()

    def _launch(self) -> None:
        """Launch the next bucket, when the one before it has been reduced."""
        self._settle()
        bucket = self.flats[self._next]
        self._next += 1
        self._sending = bucket, bucket.reduce()

    def _settle(self) -> None:
        if self._sending is not None:
            bucket, work = self._sending
            self._sending = None
            work.wait()
            bucket.keep()

    def _finish(self) -> None:
        """Launch the buckets that are left, and wait; autograd calls this."""
        if torch._C._current_autograd_node() is not None:
            self._queued = False
            return  # the end of a checkpoint's segment: backward around it goes on
        while self._next < len(self.flats):
            self._launch()
        self._settle()
        self._queued, self._next = False, 0


class _Bucket(ReplicatedFlat):
    """A flat buffer of weights whose gradients are reduced together; each rank keeps a shard."""

    shared = True

    def __init__(self, parameters: list, group):
        super().__init__(parameters, group)
        self.gradients: list = [None] * len(self.parameters)
        self.forget()

    def forget(self) -> None:
        """Begin a backward, in which no gradient has arrived."""
        self.whole = self.sent = self.reduced = None
        self.came = bytearray(len(self.parameters))

    @property
    def complete(self) -> bool:
        return all(self.came)

    def take(self, n: int) -> None:
        """Move a gradient into the flat one."""
        grad, self.parameters[n].grad = self.parameters[n].grad, None
        if grad is None:
            return
        if self.whole is None:
            self.whole = torch.empty_like(self.flat)
        start, size = self.layout.starts[n], self.layout.sizes[n]
        view = self.whole[start : start + size].view(grad.shape)
        if self.came[n]:
            view.add_(grad)
        else:
            view.copy_(grad)
        self.came[n] = 1

    def reduce(self) -> dist.Work:
        """Launch the reduce_scatter; what has not arrived counts as an earlier sum, or zeros."""
        for n, came in enumerate(self.came):
            if not came and self.parameters[n].grad is not None:
                self.take(n)
        self.sent, self.whole = self.whole, None
        if self.sent is None:
            self.sent = torch.zeros_like(self.flat)
        else:
            for view, came in zip(self.layout.views(self.sent), self.came):
                if not came:
                    view.zero_()
            self.sent[self.layout.numel :].zero_()
        self.reduced = self.sent.new_empty(self.layout.share)
        return dist.reduce_scatter_single(self.reduced, self.sent, group=self.group, async_op=True)

    def keep(self) -> None:
        """Add the mean to this rank's gradients, and drop the whole ones."""
        pieces = self.layout.pieces(self.reduced.div_(self.layout.ranks), self.rank)
        for n, piece in enumerate(pieces):
            if self.gradients[n] is not None:
                self.gradients[n].add_(piece)
            elif piece.numel() and (self.came[n] or piece.any()):  # another rank may have used it
                self.gradients[n] = piece
        self.forget()

    def offer(self) -> None:
        """Give each piece its gradient."""
        for piece, gradient in zip(self.pieces, self.gradients):
            piece.grad = gradient

    def clear(self) -> None:
        """Forget the gradients of this rank's share."""
        self.gradients = [None] * len(self.parameters)
