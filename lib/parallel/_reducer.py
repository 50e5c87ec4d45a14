"""A part of data.py: what happens to each gradient between its hook and the end of backward."""

import functools

import torch
import torch.distributed as dist
from torch.autograd import Variable

from lib.parallel import _buckets
from lib.predict.buckets import limits_of


class Reducer:
    """Fills buckets as gradients come, launches them in order, waits for them after backward.

    `named`: (name, parameter) of all that is trained. `armed` says whether this backward's
    gradients are averaged or stay on this rank.
    """

    def __init__(self, named: list, group, bucket_bytes, hook, find_unused: bool, static: bool):
        self.names, self.params = map(list, zip(*named))
        self.group, self.hook, self.limits = group, hook, limits_of(bucket_bytes)
        self.find_unused, self.static = find_unused and not static, static
        # The mean costs nothing: each gradient is divided while it is copied into its bucket.
        self.scale = 1.0 if hook else 1 / dist.get_world_size(group)
        self.armed, self.unused = True, []
        self.options = dist.AllreduceOptions()
        self.options.reduceOp, self.options.asyncOp = dist.ReduceOp.SUM, True
        # Which order gradients come in: seen in the first step, None once that is over.
        self.order: list[int] | None = None if self.find_unused else []
        limits = self.limits if self.find_unused else [float("inf")]
        self.lay_out(list(range(len(named))), limits, backwards=True)
        self.used, self.arrived = bytearray(len(named)), bytearray()
        self.begin()
        for n, parameter in enumerate(self.params):
            parameter.register_post_accumulate_grad_hook(functools.partial(self.ready, n))

    def lay_out(self, order: list[int], limits, backwards: bool = False) -> None:
        """Make buckets for these parameters; gradients that exist move into them."""
        self.buckets = self.places = None  # let go of the old ones first
        self.buckets, self.places = _buckets.make(self.params, order, limits, backwards)
        for place, parameter in zip(self.places, self.params):
            if place and parameter.grad is not None:
                place[1].copy_(parameter.grad)
                parameter.grad = place[1]

    def rebuild(self) -> None:
        """Once, after the first step: buckets in the order in which rank 0's gradients came."""
        if not self.order or len(self.order) < len(self.params):
            return
        order = torch.tensor(self.order, device=self.params[0].device)
        dist.broadcast(order, group=self.group, group_src=0)
        self.lay_out([n for n in order.tolist() if n not in self.never], self.limits)
        self.order = None

    def begin(self) -> None:
        """Make ready for a backward: no gradient is there, no bucket launched.

        Raises RuntimeError if the last backward ended midway: what it left would never be sent.
        """
        if 1 in self.arrived:
            raise RuntimeError(self._left_out())
        self.next, self.queued = 0, False
        self.arrived = bytearray(len(self.params))
        if self.order is not None:
            self.order, self.never = [], set()
        for bucket in self.buckets:
            bucket.missing, bucket.work = len(bucket.params), None

    def ready(self, n: int, parameter) -> None:
        """Move the gradient of parameter n, which backward has completed, into its bucket."""
        if self.places[n] is None or self.arrived[n]:
            raise RuntimeError(self._surprise(n))
        bucket, view = self.places[n]
        grad = parameter.grad
        if grad is not view:
            if grad.is_sparse:
                raise RuntimeError(f"{self.names[n]} has a sparse gradient: make it dense")
            if grad.requires_grad:  # backward keeps a graph of its own
                grad = grad.detach()
            if self.armed:
                torch.mul(grad, self.scale, out=view)
            else:
                view.copy_(grad)
            parameter.grad = view
            del grad  # its memory is free before the all_reduce asks for some
        elif self.armed and self.scale != 1:
            view.mul_(self.scale)
        self.used[n] = 1
        if self.armed:
            if not self.queued:
                self.queued = True
                Variable._execution_engine.queue_callback(self.finish)
                for other in self.unused:
                    self.absent(other)
            self.count(n, bucket)

    def absent(self, n: int) -> None:
        """Fill an unused parameter's place with what its gradient holds from before, or zeros."""
        bucket, view = self.places[n]
        grad = self.params[n].grad
        if grad is None:
            view.zero_()
        else:
            torch.mul(grad, self.scale, out=view)
        self.count(n, bucket)

    def count(self, n: int, bucket) -> None:
        """Note that parameter n's place is filled; launch all buckets whose turn it is."""
        self.arrived[n] = 1
        if self.order is not None and len(self.order) < len(self.params):
            self.order.append(n)
        bucket.missing -= 1
        while not bucket.missing and bucket.index == self.next:
            if self.hook:
                bucket.work = self.hook(bucket, self.group)
            else:
                # dist.all_reduce(..., async_op=True) without its checks: 0.1 ms for each bucket.
                group = self.group or dist.group.WORLD
                bucket.work = group.allreduce([bucket.flat], self.options)
            self.next += 1
            if self.next == len(self.buckets):
                return
            bucket = self.buckets[self.next]

    def finish(self) -> None:
        """Wait for all buckets; autograd calls this when backward is over."""
        self.queued = False
        asked = self.find_unused or self.static and self.order is not None
        if self.next < len(self.buckets):
            if torch._C._current_autograd_node() is not None:
                return  # one segment of a checkpoint is over, not backward
            if not asked:
                text, self.arrived = self._left_out(), bytearray()
                raise RuntimeError(text)
            for n in self._missing():
                self.absent(n)
        used = self._used_anywhere() if asked else None
        for bucket in self.buckets:
            bucket.work.wait()
        for n in (n for n, mine in enumerate(self.used) if not mine):
            if self.places[n] and (used is None or used[n]):  # elsewhere it was used
                self.params[n].grad = self.places[n][1]
        order, self.order = self.order, None
        if used and self.static:
            self.never = {n for n, ranks in enumerate(used) if not ranks}
            self.unused = [n for n, mine in enumerate(self.used) if not mine and used[n]]
        self.used, self.arrived = bytearray(len(self.params)), bytearray()
        self.begin()
        self.order = order

    def _missing(self) -> list[int]:
        return [n for n, place in enumerate(self.places) if place and not self.arrived[n]]

    def _used_anywhere(self) -> list[int]:
        """Count the ranks that have used each parameter: one small all_reduce."""
        used = torch.tensor(list(self.used), dtype=torch.int32, device=self.params[0].device)
        dist.all_reduce(used, group=self.group)
        return used.tolist()

    def _left_out(self) -> str:
        names = [self.names[n] for n in self._missing()]
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
        return (
            f"backward is over on rank {dist.get_rank()}, and no gradient came for {some}. Their "
            "buckets would never be sent. If the loss does not use them, say find_unused=True, or "
            "static=True if it never does. Freeze before what is frozen; checkpoint with "
            "use_reentrant=False"
        )

    def _surprise(self, n: int) -> str:
        if self.places[n] is None:
            return f"{self.names[n]} was unused in the first step, and static=True: it must stay so"
        return (
            f"{self.names[n]} got a second gradient in one backward, after its first was sent. Use "
            "checkpoint(..., use_reentrant=False); or return from forward all that the loss uses"
        )
