"""Local SGD: each rank trains alone for some steps, and then all ranks average their weights.

    W_r [N] on rank r, different between averages;  every k steps  W [N] = 1/n · all_reduce(W_r)

Source: McMahan et al. 2017 (arXiv 1602.05629); Stich 2019 (arXiv 1805.09767). With an outer
optimizer: DiLoCo, Douillard et al. 2023 (arXiv 2311.08105).
"""

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import broadcast


class LocalSGD:
    """Steps `optimizer` on every rank and averages the weights after each `every` steps.

    It sends 1/every of the bytes of data parallelism. With every=1 and SGD, with or without
    momentum, it equals data parallelism, because SGD is linear in the gradient. The optimizer's
    states are not averaged, so Adam's differ between ranks, and neither are buffers. Parameters and
    buffers are broadcast once from the group's first rank, when this object is built. Raises
    ValueError where one of them cannot be broadcast.

    `outer` is an optimizer of the same parameters that takes the step from the last average to the
    new one: what the ranks have moved on average, with its sign turned, is its gradient. DiLoCo's
    is SGD with Nesterov momentum; SGD with lr=1 and no momentum is local SGD. It equals on all
    ranks, and it costs memory (the last average, and its own states) but no bytes.
    """

    def __init__(self, model: nn.Module, optimizer, every: int, *, outer=None, group=None):
        if every < 1:
            raise ValueError(f"every must be at least 1 step, not {every}.")
        self.model, self.optimizer, self.every, self.group = model, optimizer, every, group
        self.steps, self.outer = 0, outer
        broadcast.broadcast_model(model, group)
        trained = [p for p in model.parameters() if p.requires_grad and outer]
        self.last_average = [(p, p.detach().clone()) for p in trained]

    def step(self) -> None:
        """Step with this rank's own gradients, and average when it is time; all ranks call this."""
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.average()

    def average(self) -> None:
        """Replace the trainable weights by their mean over all ranks, one all_reduce a dtype.

        With an outer optimizer they become what its step towards that mean makes of them.
        """
        replace_weights(self.model, self._mean)
        if self.outer:
            self._step_outer()

    @torch.no_grad()
    def _step_outer(self) -> None:
        """Go back to the last average, and step from there towards the new one."""
        gradients = [p.grad for p, _ in self.last_average]
        for p, last in self.last_average:
            p.grad = last - p
            p.copy_(last)
        self.outer.step()
        for (p, last), gradient in zip(self.last_average, gradients):
            p.grad = gradient
            last.copy_(p)

    def _mean(self, flat: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(flat, group=self.group)
        return flat.div_(dist.get_world_size(self.group))


@torch.no_grad()
def replace_weights(model: nn.Module, mean) -> None:
    """Replace the trainable weights of each dtype by `mean(flat)`, where flat [N] joins them."""
    kinds: dict[torch.dtype, list] = {}
    for p in model.parameters():
        if p.requires_grad:
            kinds.setdefault(p.dtype, []).append(p)
    for params in kinds.values():
        flat = mean(torch.cat([p.flatten() for p in params]))
        for p, part in zip(params, flat.split([p.numel() for p in params])):
            p.copy_(part.view(p.shape))
