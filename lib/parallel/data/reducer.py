"""A part of ddp.py: the path of each gradient from its hook to the end of backward."""

import functools

import torch
import torch.distributed as dist
from torch.autograd import Variable

from lib.parallel.data import buckets, refusals
from lib.parallel.data.sparse import SparseSum, no_rows
from lib.predict.data.buckets import limits_of
from lib.ranks.state.live_storages import tensors_of


class Reducer:
    """Fills buckets as gradients arrive, launches them in order, and waits at the end of backward.

    `named` lists (name, parameter) of all trained parameters, and `sparse` holds the ids of those
    whose gradients are sparse. `armed` says whether the gradients of this backward are averaged.
    """

    def __init__(
        self, named: list, group, bucket_bytes, hook, find_unused: bool, static: bool, sparse: set
    ):
        self.names, self.params = map(list, zip(*named))
        self.sparse = {n for n, parameter in enumerate(self.params) if id(parameter) in sparse}
        if hook and self.sparse:
            raise ValueError(refusals.no_hook(self.names[min(self.sparse)]))
        self.group, self.hook, self.limits = group, hook, limits_of(bucket_bytes)
        self.find_unused, self.static = find_unused and not static, static
        # The division costs no extra pass: it happens while a gradient is copied into its bucket.
        self.scale = 1.0 if hook else 1 / dist.get_world_size(group)
        self.armed, self.unused = True, []
        self.options = dist.AllreduceOptions()
        self.options.reduceOp, self.options.asyncOp = dist.ReduceOp.SUM, True
        # The order in which gradients arrive in the first step; None once that step is over.
        self.order: list[int] | None = None if self.find_unused else []
        limits = self.limits if self.find_unused else [float("inf")]
        self.lay_out(list(range(len(named))), limits, backwards=True)
        self.used, self.arrived = bytearray(len(named)), bytearray()
        # In a static model a gradient may arrive in parts; the first step counts them.
        self.parts, self.came = None, {}
        self.begin()
        hook = self.part if static else self.arrive
        self.handles = [
            parameter.register_post_accumulate_grad_hook(functools.partial(hook, n))
            for n, parameter in enumerate(self.params)
        ]

    def lay_out(self, order: list[int], limits, backwards: bool = False) -> None:
        """Make buckets for these parameters, and move existing gradients into them."""
        self.buckets = self.places = None  # frees the memory of the old buckets first
        self.buckets, self.places = buckets.make(self.params, order, limits, self.sparse, backwards)
        for place, parameter in zip(self.places, self.params):
            if place and not place[0].sparse and parameter.grad is not None:
                place[1].copy_(parameter.grad)
                parameter.grad = place[1]

    def rebuild(self) -> None:
        """After the first step, make the buckets again in the order of rank 0's gradients."""
        if not self.order or len(self.order) < len(self.params):
            return
        order = torch.tensor(self.order, device=self.params[0].device)
        dist.broadcast(order, group=self.group, group_src=0)
        self.lay_out([n for n in order.tolist() if n not in self.never], self.limits)
        self.order = None

    def begin(self) -> None:
        """Prepare for a backward, in which no gradient has arrived and no bucket is launched.

        Raises RuntimeError if the last backward did not complete, because its gradients would never
        be sent.
        """
        if 1 in self.arrived or self.came:
            raise RuntimeError(refusals.left_out([self.names[n] for n in self._missing()]))
        self.next, self.queued = 0, False
        self.arrived = bytearray(len(self.params))
        if self.order is not None:
            self.order, self.never = [], set()
        for bucket in self.buckets:
            bucket.missing, bucket.work = len(bucket.params), None

    def watch(self, outputs) -> None:
        """Let `finish` run at the end of these outputs' backward, and our hooks after the reader's.

        A parameter's hook alone is not enough: inside a segment of a checkpoint
        (use_reentrant=True), autograd would call `finish` at the end of that segment.
        """
        for tensor in tensors_of(outputs):
            if tensor.grad_fn is not None:
                tensor.register_hook(self.await_end)
        for parameter, handle in zip(self.params, self.handles):
            hooks = parameter._post_accumulate_grad_hooks
            if next(reversed(hooks)) != handle.id:
                hooks[handle.id] = hooks.pop(handle.id)

    def await_end(self, *_) -> None:
        """Ask autograd to call `finish` at the end of the backward that is running."""
        if self.armed and not self.queued:
            self.queued = True
            Variable._execution_engine.queue_callback(self.finish)

    def part(self, n: int, parameter) -> None:
        """Take a part of gradient n, which is complete after as many parts as in the first step."""
        if not self.armed:
            return self.arrive(n, parameter)
        self.await_end()
        self.came[n] = self.came.pop(n, 0) + 1  # pop() keeps the dict in the order of last arrival
        if self.parts is not None and self.came[n] >= self.parts.get(n, 1):
            self.arrive(n, parameter)

    def arrive(self, n: int, parameter) -> None:
        """Take gradient n, which backward has completed; it may be None.

        Raises RuntimeError for a gradient that is not expected, or has another layout.
        """
        if self.armed:
            self.await_end()
            if 1 not in self.arrived:
                for other in self.unused:
                    self.absent(other)
        grad, removed = parameter.grad, self.places[n] is None
        if grad is None:  # the reader's own autograd function may return None
            if self.armed and not removed and not self.arrived[n]:
                self.absent(n)
            return
        if removed or self.arrived[n]:
            raise RuntimeError(refusals.surprise(self.names[n], removed))
        if grad.is_sparse != (n in self.sparse):
            raise RuntimeError(refusals.other_layout(self.names[n], n in self.sparse))
        self.ready(n, parameter)

    def ready(self, n: int, parameter) -> None:
        """Move the gradient of parameter n, which backward has completed, into its bucket."""
        bucket, view = self.places[n]
        grad = parameter.grad
        if bucket.sparse:
            bucket.flat = grad.detach() * self.scale if self.armed else None
        elif grad is not view:
            if grad.requires_grad:  # backward ran with create_graph=True
                grad = grad.detach()
            if self.armed:
                torch.mul(grad, self.scale, out=view)
            else:
                view.copy_(grad)
            parameter.grad = view
            del grad  # frees its memory before the all_reduce allocates
        elif self.armed and self.scale != 1:
            view.mul_(self.scale)
        self.used[n] = 1
        if self.armed:
            self.count(n, bucket)

    def absent(self, n: int) -> None:
        """Fill an unused parameter's view with its earlier gradient, or with zeros."""
        (bucket, view), grad = self.places[n], self.params[n].grad
        if bucket.sparse:
            bucket.flat = no_rows(self.params[n]) if grad is None else grad * self.scale
        elif grad is None:
            view.zero_()
        else:
            torch.mul(grad, self.scale, out=view)
        self.count(n, bucket)

    def count(self, n: int, bucket) -> None:
        """Note that parameter n's view is filled, and launch all buckets whose turn it is."""
        self.arrived[n] = 1
        if self.order is not None and len(self.order) < len(self.params):
            self.order.append(n)
        bucket.missing -= 1
        while not bucket.missing and bucket.index == self.next:
            if self.hook:
                bucket.work = self.hook(bucket, self.group)
            elif bucket.sparse:
                bucket.work = SparseSum(bucket, self.group)
            else:
                # This is dist.all_reduce(..., async_op=True) without its checks, which take 0.1 ms.
                group = self.group or dist.group.WORLD
                bucket.work = group.allreduce([bucket.flat], self.options)
            self.next += 1
            if self.next == len(self.buckets):
                return
            bucket = self.buckets[self.next]

    def finish(self) -> None:
        """Wait for all buckets; autograd calls this at the end of backward."""
        inside = torch._C._current_autograd_node() is not None  # the end of a checkpoint's segment
        if self.came and self.parts is None and not inside:
            self.parts = self.came
            for n in self.parts:
                self.arrive(n, self.params[n])
        self.queued = False
        asked = self.find_unused or self.static and self.order is not None
        if self.next < len(self.buckets):
            if inside or not (1 in self.arrived or self.came):
                return  # backward continues, or did not compute gradients of the parameters
            if not asked:
                missing, self.arrived, self.came = self._missing(), bytearray(), {}
                raise RuntimeError(refusals.left_out([self.names[n] for n in missing]))
            for n in self._missing():
                self.absent(n)
        used = self._used_anywhere() if asked else None
        for bucket in self.buckets:
            bucket.work.wait()
        for n, place in enumerate(self.places):
            if place and (used is None or used[n]):
                if place[0].sparse:
                    self.params[n].grad = place[0].flat
                elif not self.used[n]:  # another rank used it
                    self.params[n].grad = place[1]
        order, self.order = self.order, None
        if used and self.static:
            self.never = {n for n, ranks in enumerate(used) if not ranks}
            self.unused = [n for n, is_used in enumerate(self.used) if not is_used and used[n]]
        self.used, self.arrived, self.came = bytearray(len(self.params)), bytearray(), {}
        self.begin()
        self.order = order

    def _missing(self) -> list[int]:
        return [n for n, place in enumerate(self.places) if place and not self.arrived[n]]

    def _used_anywhere(self) -> list[int]:
        """Count the ranks that used each parameter, in one small all_reduce."""
        used = torch.tensor(list(self.used), dtype=torch.int32, device=self.params[0].device)
        dist.all_reduce(used, group=self.group)
        return used.tolist()
