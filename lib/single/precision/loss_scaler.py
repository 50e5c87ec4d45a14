"""Loss scaling: small gradients are moved into the range of fp16, and steps that overflow skipped.

    loss · s -> backward -> gradients · s        gradients · s / s, in fp32 -> optimizer

Source: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), section 3.2.

[Note: a step with loss scaling]
1. `scale(loss)` multiplies the loss by s. By the chain rule every gradient is s times as large.
2. `unscale_(optimizer)` divides the gradients by s, in fp32, and looks for infinity and NaN. It has
   to come before anything that compares gradients with a number, such as clipping.
3. `step(optimizer)` does the optimizer's step if all gradients are finite, and skips it otherwise.
4. `update()` makes s smaller after a skipped step, and larger after `interval` steps without one.
So s stays as large as the largest gradient allows, without anybody choosing it.

[Note: one decision]
An optimizer that sees only a part of the gradients (a shard, a stage, an expert) may find them
finite while another rank found infinity. If one rank skipped and the other did not, their weights
would belong to different steps, and their scales would differ from then on. `found_anywhere` is
where a flag is exchanged; this file does not know with whom.
"""

import math
from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor


class Stage(Enum):
    """How far an optimizer's step has come since the last `update`."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class LossScaler:
    """Scales losses by a factor that follows the gradients, as `torch.amp.GradScaler` does.

    `factor` is the scale s: `initial` first, then times `backoff` after each update in which a
    gradient was not finite, and times `growth` after `interval` updates in a row in which all were.
    `found_anywhere(flag)` gets a tensor [] that is 1.0 where this process found infinity or NaN and
    0.0 elsewhere, and returns the flag that counts; it is called once in each `unscale_`, also
    where there are no gradients. Raises ValueError for factors that do not make sense.
    """

    def __init__(
        self, initial: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5,
        interval: int = 2000, *, found_anywhere: Callable[[Tensor], Tensor] | None = None,
    ):  # fmt: skip
        if not 0 < initial < math.inf:
            raise ValueError(f"A loss is scaled by a positive number, not by {initial!r}.")
        if not growth >= 1 or not 0 < backoff <= 1:
            raise ValueError(
                f"A scale grows by a factor of at least 1 and backs off by one above 0 and at most "
                f"1, but growth is {growth!r} and backoff is {backoff!r}."
            )
        if interval < 1:
            raise ValueError(f"interval counts steps and is at least 1, not {interval!r}.")
        self.factor, self.growth, self.backoff = as_fp32(initial), growth, backoff
        self.interval, self.found_anywhere = interval, found_anywhere
        self.finite_updates = 0  # in a row, since the scale last changed
        self._stages: dict[int, Stage] = {}  # by the optimizer's id, since the last update
        self._overflows: dict[int, bool] = {}
        self._scaled = False

    @classmethod
    def static(cls, factor: float, **options) -> "LossScaler":
        """Return a scaler whose factor never changes; steps that overflow are skipped as well."""
        return cls(factor, growth=1.0, backoff=1.0, **options)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the factor; call `backward` on the result."""
        self._scaled = True
        return loss * self.factor

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the factor, in place, and look for infinity.

        An optimizer that has copies of its weights in fp32 (`MasterWeights`) collects the gradients
        first. Raises RuntimeError if this is not the first time since `update`, if no loss was
        scaled, or if there is no gradient; ValueError for gradients in fp16, where the division
        would round the small ones to zero again.
        """
        self._refuse_another_unscale(optimizer)
        if hasattr(optimizer, "collect"):
            optimizer.collect()
        gradients = _gradients(optimizer)
        for gradient in gradients:
            gradient.mul_(1.0 / self.factor)
        finite = [gradient.isfinite().all() for gradient in gradients]
        device = gradients[0].device if gradients else torch.get_default_device()
        flag = torch.zeros((), device=device)
        for one in finite:
            flag = torch.maximum(flag, (~one).to(flag))
        if self.found_anywhere is not None:
            flag = self.found_anywhere(flag)
        elif not gradients:
            raise RuntimeError(
                "No parameter of this optimizer has a gradient, so there is nothing to unscale. "
                "Call scaler.scale(loss).backward() first."
            )
        self._overflows[id(optimizer)] = bool(flag)
        self._stages[id(optimizer)] = Stage.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Do the optimizer's step unless a gradient was infinite or NaN; return if it was done.

        A schedule of the learning rate counts steps that were done, so advance it only after those.
        Gradients are unscaled first unless that was done. Raises RuntimeError for a second step
        before `update`.
        """
        if self._stage(optimizer) is Stage.STEPPED:
            raise RuntimeError(
                "step() was already called for this optimizer since the last update(). Call "
                "scaler.update() once at the end of every step."
            )
        if self._stage(optimizer) is Stage.READY:
            self.unscale_(optimizer)
        self._stages[id(optimizer)] = Stage.STEPPED
        if self._overflows[id(optimizer)]:
            return False
        optimizer.step()
        return True

    def update(self) -> None:
        """Adapt the factor to what was found since the last update, for all optimizers together.

        Raises RuntimeError where no gradients were looked at since then.
        """
        if not self._overflows:
            raise RuntimeError(
                "update() adapts the scale to what step() or unscale_() found, but neither was "
                "called since the last update(). Call scaler.step(optimizer) first."
            )
        if any(self._overflows.values()):
            self.factor, self.finite_updates = as_fp32(self.factor * self.backoff), 0
        else:
            self.finite_updates += 1
            if self.finite_updates == self.interval:
                larger = as_fp32(self.factor * self.growth)
                self.factor = larger if math.isfinite(larger) else self.factor
                self.finite_updates = 0
        self._stages, self._overflows, self._scaled = {}, {}, False

    def state_dict(self) -> dict:
        """Return what a later run needs to go on: the factor, its rules and the count."""
        return {
            "factor": self.factor, "growth": self.growth, "backoff": self.backoff,
            "interval": self.interval, "finite_updates": self.finite_updates,
        }  # fmt: skip

    def load_state_dict(self, state: dict) -> None:
        """Go on from a state; raises KeyError, and changes nothing, where a part is missing."""
        values = {name: state[name] for name in self.state_dict()}
        vars(self).update(values)

    def _stage(self, optimizer) -> Stage:
        return self._stages.get(id(optimizer), Stage.READY)

    def _refuse_another_unscale(self, optimizer) -> None:
        if self._stage(optimizer) is Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() was already called for this optimizer since the last update(). A "
                "second call would divide its gradients by the scale twice."
            )
        if self._stage(optimizer) is Stage.STEPPED:
            raise RuntimeError(
                "unscale_() was called after step(), which has unscaled the gradients itself. Call "
                "unscale_() before step(), or update() to begin a new step."
            )
        if not self._scaled and self.found_anywhere is None:  # another rank may have the loss
            raise RuntimeError(
                "No loss was scaled since the last update(), so these gradients are not scaled and "
                "must not be divided. Call scaler.scale(loss).backward()."
            )


def as_fp32(number: float) -> float:
    """Return a number rounded to fp32, in which PyTorch keeps the scale; or infinity."""
    return torch.tensor(number, dtype=torch.float64, device="cpu").float().item()


def _gradients(optimizer) -> list[Tensor]:
    """Return the gradients of an optimizer's parameters; of sparse ones, the values."""
    gradients = []
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter.grad is None:
            continue
        if parameter.grad.dtype == torch.float16:
            raise ValueError(
                f"A gradient of shape {list(parameter.shape)} is in fp16, where dividing it by the "
                "scale would round small numbers to zero again. Give the optimizer weights in "
                "fp32: wrap it in MasterWeights."
            )
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        gradients.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    return gradients
