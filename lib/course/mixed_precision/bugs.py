"""Steps of mixed-precision training with bugs that have occurred in real programs.

Each function is one step on a run, and returns what LossScaler.step does: whether the optimizer has
stepped. `right_step` is what it should be. `softmax_of_parts` and `own_decision` are the bugs of a
softmax in fp16 and of ranks that each decide alone. (The sixth, Adam's ε below the smallest number
of fp16, is in opening.py.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from lib.course.mixed_precision.networks import DETECTOR, Network
from lib.single.precision import LossScaler, MasterWeights

LIMIT, WARM_UP = 1e-3, 20  # the largest norm of the gradient; steps until the rate is whole


@dataclass
class Run:
    """Holds a network in fp16 and what trains it; `rates` are the learning rates of its steps."""

    network: Network
    model: torch.nn.Module
    optimizer: MasterWeights
    scaler: LossScaler
    schedule: torch.optim.lr_scheduler.LRScheduler
    rates: list[float]

    def backward(self, step: int) -> float:
        """Run forward and backward of a step with the scaled loss; return the loss."""
        inputs, targets = self.network.batch(0, step)
        self.optimizer.zero_grad()
        loss = self.network.loss(self.model(inputs.half()).float(), targets)
        self.scaler.scale(loss).backward()
        return loss.item()


def run(network: Network = DETECTOR, scale: float = 2.0**16, rate: float = 0.1) -> Run:
    """Return a new run by SGD, whose rate grows from rate/20 in its first 20 steps."""
    model = network.model(0).to(torch.get_default_device(), torch.float16)
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), rate))
    warm_up = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / WARM_UP)
    )
    return Run(network, model, optimizer, LossScaler(scale), warm_up, [])


def right_step(run: Run, step: int) -> bool:
    """Unscale, clip, step, and advance the schedule if the step was done."""
    run.backward(step)
    run.scaler.unscale_(run.optimizer)
    clip_grad_norm_(run.optimizer.parameters(), LIMIT)
    stepped = run.scaler.step(run.optimizer)
    if stepped:
        _advance(run)
    run.scaler.update()
    return stepped


def clip_first(run: Run, step: int) -> bool:
    """Clip gradients that are still scaled: step() divides what is left by the scale once more."""
    run.backward(step)
    run.optimizer.collect()
    clip_grad_norm_(run.optimizer.parameters(), LIMIT)
    stepped = run.scaler.step(run.optimizer)
    if stepped:
        _advance(run)
    run.scaler.update()
    return stepped


def advance_always(run: Run, step: int) -> bool:
    """Advance the schedule also when the step was skipped, so that it is ahead of the training."""
    run.backward(step)
    run.scaler.unscale_(run.optimizer)
    clip_grad_norm_(run.optimizer.parameters(), LIMIT)
    stepped = run.scaler.step(run.optimizer)
    _advance(run)
    run.scaler.update()
    return stepped


def _advance(run: Run) -> None:
    run.rates.append(run.optimizer.param_groups[0]["lr"])
    run.schedule.step()


def softmax_of_parts(scores: Tensor) -> Tensor:
    """Compute a softmax along the last dim in the format of the scores, as the formula is written.

    In fp16 a score of 11.1 is too large: its exponential is above 65,504.
    """
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True)


def own_decision(flag: Tensor) -> Tensor:
    """Return the flag of this rank alone, where `on_any_rank` would ask the others."""
    return flag
