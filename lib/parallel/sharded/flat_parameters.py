"""A part of fsdp.py: parameters of one unit in one flat buffer, sharded, gathered and freed.

    shard [L/dp] -> all_gather -> flat [L]        gradients [L] +dp -> reduce_scatter -> [L/dp]

[Note: gather and free]
Autograd saves views of the weights in forward and reads them in backward. So the whole weights are
always the same tensors: to free them, their storage is given the size 0, and to gather them again
it gets its memory back and is filled in place. Autograd counts them as unchanged. The buffer of
whole gradients comes and goes in the same way; it has memory only while it is sent. Until then each
gradient stays where backward has put it, so that two buffers are never there while one fills.

[Note: where the mean is divided]
A mean of n gradients is their sum divided by n. In fp32 and bf16 the division follows the sum, of
which only a shard is left by then. In fp16, whose largest number is 65,504, such a sum may be
infinite where the mean is not, and gradients that are divided by n first may become zero. So there
the buffer is divided by a power of two near the root of n before it is sent, and the sum by the
rest: each of the two dangers begins a factor of about the root of n later.
"""

import functools

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.sharded import refusals
from lib.parallel.sharded.hosted import HostShard
from lib.parallel.sharded.layout import Layout
from lib.ranks.state.live_storages import await_death
from lib.ranks.state.this_rank import this_rank


class FlatParameters:
    """The weights of one unit that have one dtype and are all trained or all frozen.

    After construction each weight's parameter holds only this rank's piece of it. `gather` and
    `wait` put whole weights in its place, `free` takes them away again.
    """

    def __init__(self, weights: list, groups, param_dtype, reduce_dtype, arrived, host=None):
        self.weights, self.groups, self.host = weights, groups, host
        self.parameters = [weight.parameter for weight in weights]
        first = self.parameters[0]
        self.trained, self.dtype = first.requires_grad, first.dtype
        self.param_dtype = param_dtype if param_dtype and first.is_floating_point() else self.dtype
        self.reduce_dtype = reduce_dtype or self.param_dtype
        self.divided = first_divisor(groups.size) if self.reduce_dtype == torch.float16 else 1
        self.rank = dist.get_rank(groups.shard)
        shapes = [parameter.shape for parameter in self.parameters]
        self.layout = Layout(shapes, dist.get_world_size(groups.shard))
        self.flat, views = self._buffer(self.param_dtype)
        self.whole = [nn.Parameter(view, requires_grad=self.trained) for view in views]
        self.gradient, _ = self._buffer(self.reduce_dtype if self.trained else None)
        self.work = self.source = self.partial = self.reduced = None
        self.gathered = self.sending = False
        self.hosted: HostShard | None = None  # with a host, once there is a shard
        self.forget()
        for n, parameter in enumerate(self.whole if self.trained else ()):
            parameter.register_post_accumulate_grad_hook(functools.partial(arrived, self, n))

    def _buffer(self, dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return a buffer [L] that has no memory yet, and its views; nothing without a dtype."""
        length = self.layout.length if dtype else 0
        buffer = torch.empty(length, dtype=dtype, device=self.groups.device)
        views = self.layout.views(buffer) if dtype else []
        buffer.untyped_storage().resize_(0)
        return buffer, views

    # The shard.

    def shard_from(self, flat: torch.Tensor | None) -> None:
        """Keep this rank's shard of the first rank's flat weights, and free them.

        The other ranks pass None.
        """
        self.shard = self._scattered(flat)
        if self.host is not None:
            self.hosted = HostShard(self.host, self.shard)
            self.shard = self.hosted.home
        for n, piece in enumerate(self.layout.pieces(self.shard, self.rank)):
            parameter = self.parameters[n]
            parameter.grad = None
            if parameter.is_meta:
                parameter = nn.Parameter(piece, requires_grad=self.trained)
                self.parameters[n] = self.weights[n].parameter = parameter
            else:
                parameter.data = piece
        self.put(self.parameters)

    def _scattered(self, flat: torch.Tensor | None) -> torch.Tensor:
        """Return this rank's shard of the first rank's flat weights, and free them."""
        layout, group = self.layout, self.groups.all
        shard = torch.empty(layout.share, dtype=self.dtype, device=self.groups.device)
        parts = None
        if dist.get_rank(group) == 0:  # of a mesh, every line of the axis gets the same weights
            parts = list(flat.split(layout.share)) * (dist.get_world_size(group) // layout.ranks)
        _as_bytes(shard, parts, group)
        if flat is not None:  # gloo's threads may hold it for a while after the scatter is over
            flat.untyped_storage().resize_(0)
        return shard

    def refill(self, flat: torch.Tensor | None) -> None:
        """Replace the values of the shard by those of the first rank's flat weights."""
        self.shard.copy_(self._scattered(flat))
        for parameter, piece in zip(self.parameters, self.layout.pieces(self.shard, self.rank)):
            parameter.grad, parameter.data = None, piece
        self.put(self.parameters)

    def joined(self, tensors: list | None) -> torch.Tensor | None:
        """Lay whole tensors end to end, with the padding; None where there are none."""
        if tensors is None:
            return None
        padding = torch.zeros(self.layout.length - self.layout.numel)
        parts = [tensor.detach().reshape(-1) for tensor in tensors]
        return torch.cat([part.to(self.groups.device, self.dtype) for part in [*parts, padding]])

    def whole_of(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """Gather a tensor that is sharded as the weights are; return its whole tensors."""
        shard = shard.to(self.groups.device)
        flat = shard.new_empty(self.layout.length)
        dist.all_gather_single(flat, shard, group=self.groups.shard)
        return self.layout.views(flat)

    def cut(self, tensors: list[torch.Tensor]) -> None:
        """Keep this rank's pieces of whole weights."""
        for n, tensor in enumerate(tensors):
            first, last = self.layout.piece(n, self.rank)
            self.shard[self.layout.place(n, self.rank)] = tensor.detach().reshape(-1)[first:last]

    # Gather, compute, free.

    def fetch(self) -> None:
        """Start to copy a shard that lies in the host's memory to the device, for its gather."""
        if self.hosted and not self.gathered and self.work is None and self.partial is None:
            self.hosted.fetch()

    def gather(self) -> None:
        """Launch the gather, unless the weights are whole or on their way."""
        if self.gathered or self.work is not None:
            return
        self.flat.untyped_storage().resize_(self.flat.nbytes)
        group = self.groups.shard if self.partial is None else self.groups.small
        shard = self.hosted.take if self.hosted else lambda: self.shard
        source = shard() if self.partial is None else self.partial
        self.source = source.to(self.param_dtype)
        self.work = dist.all_gather_single(self.flat.data, self.source, group, async_op=True)

    def wait(self) -> None:
        """Wait for the gather that was launched, and put the whole weights into the modules."""
        if self.work is not None:
            self.work.wait()
            self._drop_source()
            self.gathered, self.version = True, self.flat._version
            if self.hosted:
                self.hosted.release()
            self.put(self.whole)

    def _drop_source(self) -> None:
        """Let go of what was gathered; where memory is counted, gloo's thread has done so too."""
        counted, copied = this_rank.counted, self.source is not self.shard and not self.hosted
        pieces = counted.see(self.source) if counted and copied else []
        self.work = self.source = self.partial = None
        await_death(pieces)

    def free(self, small: bool = False, check: bool = True) -> None:
        """Give the memory of the whole weights back; with `small`, keep a part of them.

        Raises RuntimeError where they were changed in place, because the change would be lost.
        With check=False, which is for failures, nothing is raised or waited for.
        """
        if check or self.work is not None and self.work.is_completed():
            self.wait()
        if not self.gathered:
            return
        self.put(self.parameters)
        self.gathered, changed = False, self.flat._version != self.version
        if small:
            parts = dist.get_world_size(self.groups.small)
            self.partial = self.flat.chunk(parts)[dist.get_rank(self.groups.small)].clone()
        self.flat.untyped_storage().resize_(0)
        if changed and check:
            raise RuntimeError(refusals.lost(self.weights[0].name))

    def put(self, parameters: list) -> None:
        """Put these parameters, pieces or whole ones, into the modules."""
        for weight, parameter in zip(self.weights, parameters):
            for module, attribute in weight.slots:
                if type(module).__setattr__ is nn.Module.__setattr__:
                    module._parameters[attribute] = parameter
                else:  # nn.LSTM keeps a second list of its weights
                    setattr(module, attribute, parameter)

    # Gradients.

    def forget(self) -> None:
        """Drop the gradients that have arrived and are not reduced."""
        if not self.sending:  # else the reduction may still read it
            self.gradient.untyped_storage().resize_(0)
        self.filled = bytearray(len(self.weights))  # which weights have a part in `gradient`
        self.came = bytearray(len(self.weights))  # which got theirs in this backward
        self.sums: list = [None] * len(self.weights)  # of earlier backwards, in reduce_dtype
        for whole in self.whole:
            whole.grad = None

    @property
    def has_gradients(self) -> bool:
        """True when some weight has a gradient that is not reduced yet."""
        return any(self.whole[n].grad is not None or s is not None for n, s in enumerate(self.sums))

    def accumulate(self) -> None:
        """Keep the gradients of a backward that sends none, added up in `reduce_dtype`."""
        if self.reduce_dtype == self.param_dtype:
            return  # autograd adds the next ones to them
        for n, whole in enumerate(self.whole):
            if whole.grad is not None:
                self.sums[n] = self._take(n).to(self.reduce_dtype)

    def _take(self, n: int) -> torch.Tensor | None:
        """Take the gradient of weight n, with what earlier backwards have left of it."""
        grad, self.whole[n].grad = self.whole[n].grad, None
        before, self.sums[n] = self.sums[n], None
        if before is None or grad is None:
            return grad if before is None else before
        return before.add_(grad)

    def fill(self) -> None:
        """Lay the gradients into the buffer, end to end; those that did not arrive are zeros."""
        grads, layout = [self._take(n) for n in range(len(self.whole))], self.layout
        self.came = bytearray(len(grads))
        self.filled = bytearray(grad is not None for grad in grads)
        self.gradient.untyped_storage().resize_(self.gradient.nbytes)
        zeros = [layout.sizes[n] for n in range(len(grads)) if grads[n] is None]
        zeros = self.gradient.new_zeros(max([layout.length - layout.numel, *zeros]))
        parts = [
            zeros[:size] if grad is None else grad.reshape(-1)
            for grad, size in zip(grads, layout.sizes)
        ]
        torch.cat([*parts, zeros[: layout.length - layout.numel]], out=self.gradient)
        if self.divided > 1:
            self.gradient.div_(self.divided)

    def reduce(self) -> dist.Work:
        """Launch the reduce_scatter of the buffer that `fill` has filled."""
        self.sending = True
        self.reduced, group = self.gradient.new_empty(self.layout.share), self.groups.shard
        return dist.reduce_scatter_single(self.reduced, self.gradient, group=group, async_op=True)

    def reduce_further(self):
        """Drop the whole gradient; on a mesh, launch the sum with those who hold the same shard."""
        self.sending = False
        self.gradient.untyped_storage().resize_(0)
        if self.groups.replicas is None:
            return None
        return dist.all_reduce(self.reduced, group=self.groups.replicas, async_op=True)

    def keep(self) -> None:
        """Add the mean of the gradients to those of this rank's pieces."""
        rest = self.groups.size / self.divided
        mean, self.reduced = self.reduced.div_(rest).to(self.dtype), None
        if self.hosted is None:
            self._add(mean)
        else:
            self.land()  # an earlier part of these gradients
            self.hosted.send(mean)

    def land(self) -> None:
        """Wait for a gradient that is on its way to the host, and keep it there."""
        if self.hosted and (mean := self.hosted.arrived()) is not None:
            with self.hosted.working("add"):
                self._add(mean)

    def _add(self, mean: torch.Tensor) -> None:
        """Add a gradient of the shard to those of this rank's pieces."""
        pieces = self.layout.pieces(mean, self.rank)
        for n, (parameter, piece) in enumerate(zip(self.parameters, pieces)):
            if not piece.numel():
                continue  # the optimizer leaves it out
            if parameter.grad is not None:
                parameter.grad.add_(piece)
            elif self.filled[n] or piece.any():  # another rank may have used it
                parameter.grad = piece
        self.filled = bytearray(len(self.weights))


def first_divisor(ranks: int) -> int:
    """Return by what a gradient in fp16 is divided before it is sent, as PyTorch's FSDP chooses it.

    It is the smallest power of two whose square is at least `ranks`, as far as it divides them.
    """
    divisor = 1
    while ranks % divisor == 0 and ranks / divisor > divisor:
        divisor *= 2
    return divisor


def _as_bytes(shard, parts, group) -> None:
    """Scatter as bytes, so that dtypes can be sent which the backend does not know."""
    if parts is not None:
        parts = [part.view(torch.uint8) for part in parts]
    dist.scatter(shard.view(torch.uint8), parts, group=group, group_src=0)
