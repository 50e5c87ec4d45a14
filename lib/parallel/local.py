"""Local SGD: each rank trains on its own for some steps, then all take the mean of their weights.

    W_r [N] on rank r, different between averages;  every k steps  W [N] = 1/n · all_reduce(W_r)

Source: McMahan et al. 2017 (arXiv 1602.05629); Stich 2019 (arXiv 1805.09767).
"""

import torch
import torch.distributed as dist
from torch import nn


class LocalSGD:
    """Steps `optimizer` on every rank and averages the weights after each `every` steps.

    Sends 1/every of what data parallel sends. With every=1 and SGD, with momentum too, it is data
    parallel: both are linear in the gradient. The optimizer's states stay each rank's own, so
    Adam's do not agree, and buffers are not averaged. Parameters and buffers are broadcast from the
    group's first rank when it is made.
    """

    def __init__(self, model: nn.Module, optimizer, every: int, *, group=None):
        if every < 1:
            raise ValueError(f"every={every}: weights are averaged after each 1, 2, ... steps")
        self.model, self.optimizer, self.every, self.group = model, optimizer, every, group
        self.steps = 0
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)

    def step(self) -> None:
        """Step on this rank's own gradients; when it is time, average. Every rank calls it."""
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Give every rank the mean of all ranks' trainable weights: one all_reduce for a dtype."""
        kinds: dict[torch.dtype, list] = {}
        for p in self.model.parameters():
            if p.requires_grad:
                kinds.setdefault(p.dtype, []).append(p)
        for params in kinds.values():
            flat = torch.cat([p.flatten() for p in params])
            dist.all_reduce(flat, group=self.group)
            flat.div_(dist.get_world_size(self.group))
            for p, mean in zip(params, flat.split([p.numel() for p in params])):
                p.copy_(mean.view(p.shape))
