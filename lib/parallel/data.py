"""Data parallel: every rank has the whole model and its share of the batch; gradients are averaged.

    x [B/dp, ...] -> loss +dp        gradient +dp, one all_reduce (mean) over dp for each bucket

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.

[Note: a step]
1. Forward says whether this step's gradients are averaged (not under `no_sync`).
2. Backward reaches the last layers first. When a parameter's gradient is there, its hook moves it
   into its place in a bucket, divided by the number of ranks: one pass over the numbers. From then
   on `parameter.grad` is that place; there is no second copy.
3. The hook that fills a bucket launches its all_reduce, and backward goes on. Buckets leave in the
   same order on every rank: one that is full early waits for those before it.
4. When backward is over, it waits for all buckets.
The first step has one bucket for all, as nobody knows yet in which order gradients come. From the
second on, buckets follow the order seen in the first, on rank 0, and have their limits.

[Note: mean, not sum]
A rank's loss is the mean over its B/dp samples, so its gradient is that of a mean too, and the mean
of all ranks' gradients is the gradient of the whole batch's mean loss. Their sum would be dp times
as large: the same as a learning rate dp times too high.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel import _buckets
from lib.parallel._reducer import Reducer


def all_reduce_mean(bucket, group):
    """Average a bucket: the plain hook, to compare others with; give what can be waited for."""
    bucket.flat.div_(dist.get_world_size(group))
    return dist.all_reduce(bucket.flat, group=group, async_op=True)


class DistributedDataParallel(nn.Module):
    """A model whose gradients are the mean over a group, sent in buckets while backward runs.

    `bucket_bytes`: limit of a bucket; default 1 MiB for the first, 25 MiB for the others.
    `find_unused`: look in each step for parameters that the loss does not use. `static`: those that
    no rank uses in the first step are never used, and leave the buckets.
    `hook(bucket, group)` replaces the all_reduce: it gives something with `wait()`, after which
    `bucket.flat` holds the mean of all ranks' gradients (it is given undivided).
    Raises ValueError where the models of the ranks differ or nothing is to be trained.
    """

    def __init__(
        self, module: nn.Module, group=None, *, bucket_bytes: int | None = None, hook=None,
        find_unused: bool = False, static: bool = False, broadcast_buffers: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.module, self.group = module, group
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("no parameter of this model is trained: run it as it is")
        _buckets.same_everywhere(module, group)
        _buckets.broadcast([*module.parameters(), *module.buffers()], group)
        self._moving = list(module.buffers()) if broadcast_buffers else []
        self._synced = self._sync = True  # whether the last forward was, whether the next is
        self._reducer = Reducer(named, group, bucket_bytes, hook, find_unused, static)

    @property
    def buckets(self) -> list:
        """The buckets in the order they are launched; another list after the first step."""
        return self._reducer.buckets

    def forward(self, *args, **kwargs):
        reducer, training = self._reducer, torch.is_grad_enabled()
        sync = self._sync and training
        if training:
            reducer.rebuild()
        if self._synced and self._moving:  # a buffer is what the first rank's batches made of it
            _buckets.broadcast(self._moving, self.group)
        self._synced = sync
        if training:
            reducer.armed = sync
            reducer.begin()
        outputs = self.module(*args, **kwargs)
        if sync and reducer.find_unused:
            reducer.unused = _buckets.unused_by(outputs, reducer.params)
        return outputs

    @contextlib.contextmanager
    def no_sync(self):
        """Add up gradients on this rank alone: forward *and* backward belong inside.

        What counts is where forward ran, as in PyTorch; the next step outside sends the whole sum.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def state_dict(self, *args, **kwargs):
        """Give the plain model's own state dict: names without "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state dict of the plain model."""
        return self.module.load_state_dict(*args, **kwargs)
