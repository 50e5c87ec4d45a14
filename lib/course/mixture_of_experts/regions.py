"""A task in which a layer of experts must divide the work, so that its loss shows what a gate does.

Points lie in eight regions of the space, and each region has a linear map of its own, which one
expert can learn. The regions hold 1/36, 2/36, … 8/36 of the points, so the gate that follows them
fills some experts too much, and one that evens the load lets experts share a region.
"""

from statistics import mean
from typing import NamedTuple

import torch

from lib.course.mixture_of_experts.training import WAYS, Rule
from lib.course.one_thread import on_one_thread
from lib.single import mean_squares
from lib.single.experts import MoE
from lib.single.experts.balance import nudge

WIDTH, HIDDEN, EXPERTS, POINTS, STEPS = 8, 16, 8, 256, 300
FACTOR, RATE, SPREAD = 1.25, 0.01, 0.5  # of capacity, of AdamW, of a region's points
LAST = 30  # steps over which means are taken


class Result(NamedTuple):
    """Holds means over the last steps: the share of points that are dropped, and the loss."""

    dropped: float
    loss: float


class Points:
    """Draws batches of points and what the layer should make of them: x, y [N, D]."""

    def __init__(self, seed: int):
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self.centers = 2 * self._normal(EXPERTS, WIDTH)
        self.maps = self._normal(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5
        self.sizes = torch.arange(1.0, EXPERTS + 1, dtype=torch.float64, device="cpu")

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64, device="cpu")

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next points and their results."""
        own = self.sizes.multinomial(POINTS, replacement=True, generator=self.generator)
        x = self.centers[own] + SPREAD * self._normal(POINTS, WIDTH)
        return x, (x[:, None] @ self.maps[own]).squeeze(1)


def trained(rule: Rule, seed: int) -> Result:
    """Train a layer of experts with a capacity, k = 1, and call the rule after each step."""
    with on_one_thread():
        layer = MoE(WIDTH, HIDDEN, EXPERTS, 1, capacity=FACTOR).cpu().double()
        layer.draw(seed, 0.3, 0.3)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE, weight_decay=0.0)
        points, results = Points(100 + seed), []
        for _ in range(STEPS):
            x, y = points.batch()
            optimizer.zero_grad()
            loss = mean_squares(layer(x), y)
            loss.backward()
            optimizer.step()
            results.append((1 - layer.kept.sum().item() / POINTS, loss.item()))
            with torch.no_grad():
                rule(layer, layer.decision.assignments.counts.double())
    return Result(*map(mean, zip(*results[-LAST:])))


def library_rule(layer: MoE, counts: torch.Tensor) -> None:
    """Move each expert's bias as the chapter's training does, by 0.003 up or down."""
    nudge(layer.gate, counts, WAYS["bias"][1])
