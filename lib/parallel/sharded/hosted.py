"""A part of fsdp.py: shards that lie in the host's memory, and optimizers that step them there.

    host [L/dp] -> copy -> device [L/dp] -> all_gather -> [L]        [L] +dp -> reduce_scatter ->
    device [L/dp] -> copy -> host [L/dp], whose gradient it is; the optimizer's step is the host's

Source: Ren et al. 2021, "ZeRO-Offload" (arXiv 2101.06840), section 4.2, for shards; PyTorch's
`fully_shard` has `CPUOffloadPolicy`.

[Note: fetched ahead]
A shard is copied to the device before its unit can be gathered. So while a unit computes, the
shards of those in front are gathered, and that of the unit after these is on its way up the link.
"""

import contextlib
import weakref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lib.single.host_memory import Copy, HostMemory


class HostShard:
    """A shard whose home is the host's memory: fetched before a gather, stepped by the host."""

    def __init__(self, host: HostMemory, shard: torch.Tensor):
        self.host = host
        self.home = host.empty(shard)
        self.home.copy_(shard)
        self.nbytes = shard.nbytes
        self.on_device = shard.detach()  # has memory from a fetch until the gather is over
        self.fetched: Copy | None = None
        self.gradient: tuple[torch.Tensor, Copy] | None = None  # on its way to the host
        self.tasks: list = []  # what the next step comes after: the gradients' copies
        self.stepped: list = []  # what the next fetch comes after: the last step
        self.release()

    def fetch(self) -> None:
        """Start to copy the shard to the device, unless it is on its way."""
        if self.fetched is None:
            self.on_device.untyped_storage().resize_(self.nbytes)
            self.fetched = self.host.to_device(self.on_device, self.home, self.stepped)

    def take(self) -> torch.Tensor:
        """Return the shard on the device; the device's next work comes after its copy."""
        self.fetch()
        self.fetched.wait()
        return self.on_device

    def release(self) -> None:
        """Give the memory on the device back; the host may have another shard by the next fetch."""
        self.fetched = None
        self.on_device.untyped_storage().resize_(0)

    def send(self, gradient: torch.Tensor) -> None:
        """Start to copy a gradient to the host."""
        home = self.host.empty(gradient)
        self.gradient = home, self.host.to_host(home, gradient)

    def arrived(self) -> torch.Tensor | None:
        """Wait for the gradient that was sent; None where there is none."""
        if self.gradient is None:
            return None
        (home, copy), self.gradient = self.gradient, None
        copy.wait()
        self.tasks.append(copy.task)
        return home

    @contextlib.contextmanager
    def working(self, op: str):
        """Run what is inside as the host's work on this shard."""
        with self.host.working(op, self.tasks) as task:
            yield
        self.tasks = [task]


def step_on_host(fsdp, host: HostMemory) -> None:
    """Let every optimizer of a model's pieces step as the host, and keep its states there.

    It holds as long as the model lives. A `closure` that a step is given runs inside of it, so
    what it computes is counted as the host's too; call forward and backward before `step`.
    """
    model, under_way = weakref.ref(fsdp), contextlib.ExitStack()

    def shards(optimizer) -> list[HostShard]:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [flat.hosted for flat in model().flats()
                if any(id(p) in stepped for p in flat.parameters)]  # fmt: skip

    def begin(optimizer, *_) -> None:
        under_way.close()  # a step that failed
        if own := shards(optimizer):
            after = [task for shard in own for task in shard.tasks]
            task = under_way.enter_context(host.working("step", after))
            for shard in own:
                shard.tasks, shard.stepped = [], [task]

    def end(optimizer, *_) -> None:
        if own := shards(optimizer):
            keep_states(optimizer, host)
            under_way.close()
            own[0].stepped[0].wait()  # a step is over when the host's processor has done it

    for register, hook in (
        (register_optimizer_step_pre_hook, begin),
        (register_optimizer_step_post_hook, end),
    ):
        weakref.finalize(fsdp, register(hook).remove)


def keep_states(optimizer, host: HostMemory) -> None:
    """Say that the states of an optimizer lie in the host's memory."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                host.keep(value)
