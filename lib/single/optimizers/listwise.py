"""What our optimizers share: a step takes parameters in lists, and says which it cannot take.

`torch._foreach_` functions do one operation on a whole list: on a GPU in a few launches, where a
loop over the parameters needs one for each. A CPU has nothing to launch, but a cache: there a list
is so short that it is still in the cache when the next operation comes. Short lists also keep what
a step needs between its operations far smaller than the model.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

LIST_BYTES = {"cpu": 2**20}  # of the parameters of one list, by the type of the device
OTHER_LIST_BYTES = 2**26


class ListwiseOptimizer(Optimizer):
    """An optimizer that updates parameters of one device and dtype together, as a list.

    A subclass gives `update(group, parameters)`, in which every parameter has a gradient.
    """

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; return the loss of `closure`, if given.

        Raises RuntimeError for a sparse gradient and for a complex parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters in self.lists(group["params"]):
                self.update(group, parameters)
        return loss

    def lists(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the parameters that have a gradient, in the lists that are updated together."""
        yield from short_lists(with_gradient(parameters, type(self).__name__))

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these parameters by the options of their group."""
        raise TypeError(f"{type(self).__name__} does not say how it updates parameters.")


def with_gradient(parameters: Iterable[Tensor], name: str) -> list[Tensor]:
    """Return the parameters that have a gradient; `name` is the optimizer's, for refusals.

    Raises RuntimeError for a sparse gradient and for a complex parameter.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    for parameter in trained:
        if parameter.grad.is_sparse:
            raise RuntimeError(
                f"{name} cannot use the sparse gradient of a parameter of the shape "
                f"{list(parameter.shape)}. Build its Embedding with sparse=False."
            )
        if parameter.is_complex():
            raise RuntimeError(
                f"{name} cannot update a complex parameter, of the shape {list(parameter.shape)}. "
                "Train its real and its imaginary part as two parameters."
            )
    return trained


def short_lists(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of parameters of one device and dtype, of LIST_BYTES at most or of one."""
    alike: dict[tuple, list[Tensor]] = {}
    for parameter in parameters:
        alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for (device, _), same in alike.items():
        limit = LIST_BYTES.get(device.type, OTHER_LIST_BYTES)
        part, filled = [], 0
        for parameter in same:
            if part and filled + parameter.nbytes > limit:
                yield part
                part, filled = [], 0
            part.append(parameter)
            filled += parameter.nbytes
        yield part


def counter() -> Tensor:
    """Return a counter of steps as torch.optim keeps it: 4 bytes in the host's memory, []."""
    return torch.zeros((), dtype=torch.float32, device="cpu")


def counted(states: list[dict]) -> list[float]:
    """Add 1 to the counters of these states and return them as numbers."""
    counters = [state["step"] for state in states]
    torch._foreach_add_(counters, torch.ones((), device="cpu"), alpha=1.0)
    return [count.item() for count in counters]
