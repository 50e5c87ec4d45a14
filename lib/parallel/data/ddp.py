"""Data parallelism: every rank has the whole model and a share of the batch, averaging gradients.

    x [B/dp, ...] -> loss +dp        gradient +dp, one all_reduce (mean) over dp for each bucket

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.

[Note: a step]
1. Forward decides whether this step's gradients are averaged (not under `no_sync`).
2. Backward computes the gradients of the last layers first. When a parameter's gradient is ready,
   its hook moves it into its view of a bucket and divides it by the number of ranks in the same
   pass over memory. From then on `parameter.grad` is that view, so there is no second copy.
3. The hook that fills a bucket launches its all_reduce, and backward continues. Buckets are
   launched in the same order on every rank: a bucket that is full early waits for those before it.
4. At the end of backward, the rank waits for all buckets.
The first step has one bucket for all gradients, because their order is not known yet. From the
second step on, buckets follow the order that rank 0 saw in the first step, and have their limits.

[Note: mean, not sum]
A rank's loss is the mean over its B/dp samples, so the mean of all ranks' gradients is the gradient
of the whole batch's mean loss. The sum of the gradients would be dp times as large, which with SGD
is the same as a learning rate dp times too high.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import broadcast, buckets, refusals, sparse
from lib.parallel.data.reducer import Reducer
from lib.ranks.agreement import same_everywhere


def all_reduce_mean(bucket, group):
    """Launch the all_reduce that averages a bucket, as a hook; return the work to wait for."""
    bucket.flat.div_(dist.get_world_size(group))
    return dist.all_reduce(bucket.flat, group=group, async_op=True)


class DistributedDataParallel(nn.Module):
    """A model whose gradients are averaged over a group, in buckets, while backward runs.

    `bucket_bytes` limits a bucket; by default 1 MiB for the first and 25 MiB for the others.
    `find_unused` looks in each step for parameters that the loss does not use. `static` promises
    that every step does what the first one did: parameters that no rank used in it leave the
    buckets, and each gradient arrives in as many parts (a layer that several segments of a
    checkpoint use has several). With `broadcast_buffers`, the first rank's buffers are broadcast
    before each forward that follows one whose gradients were averaged; without, each rank keeps its
    own buffers from the start. The reader's own hooks on a parameter, if registered before forward,
    change its gradient before it is sent. Sparse gradients (of nn.Embedding(sparse=True)) stay
    sparse, in a bucket each, and travel as indices and values. `hook(bucket, group)` replaces the
    all_reduce: it gets the undivided gradients in `bucket.flat` and returns an object with
    `wait()`, after which `bucket.flat` holds the mean over all ranks. Raises ValueError where the
    models of the ranks differ, no parameter is trained, or a tensor cannot be broadcast.
    """

    def __init__(
        self, module: nn.Module, group=None, *, bucket_bytes: int | None = None, hook=None,
        find_unused: bool = False, static: bool = False, broadcast_buffers: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.module, self.group = module, group
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        if not named:
            raise ValueError(
                "No parameter of this model is trained, so there are no gradients to average. Run "
                "the model without DistributedDataParallel."
            )
        broadcast.check(module)
        same_everywhere(module, group)
        buffers = list(module.buffers()) if broadcast_buffers else []
        broadcast.broadcast([*module.parameters(), *buffers], group)
        self._broadcast_buffers = bool(buffers)  # as in PyTorch, decided once, here
        self._synced = self._sync = True  # of the last forward; of the next
        tables = sparse.sparse_in(module)
        self._reducer = Reducer(named, group, bucket_bytes, hook, find_unused, static, tables)

    @property
    def buckets(self) -> list:
        """Return the buckets in the order of launching, which may change after the first step."""
        return self._reducer.buckets

    def forward(self, *args, **kwargs):
        reducer, training = self._reducer, torch.is_grad_enabled()
        sync = self._sync and training
        if training:
            for name in (name for name, p in self._frozen.items() if p.requires_grad):
                raise RuntimeError(refusals.frozen_then(name))
            reducer.rebuild()
        if self._synced and self._broadcast_buffers:  # forward may have replaced buffers
            broadcast.broadcast(list(self.module.buffers()), self.group)
        self._synced = sync
        if training:
            reducer.armed = sync
            reducer.begin()
        outputs = self.module(*args, **kwargs)
        if sync:
            reducer.watch(outputs)
            if reducer.find_unused:
                reducer.unused = buckets.unused_by(outputs, reducer.params)
        return outputs

    @contextlib.contextmanager
    def no_sync(self):
        """Add up gradients on this rank only; run both forward *and* backward inside.

        As in PyTorch, it counts where forward ran. The next step outside sends the whole sum.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def state_dict(self, *args, **kwargs):
        """Return the plain model's state dict, whose names do not begin with "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state dict of the plain model."""
        return self.module.load_state_dict(*args, **kwargs)
