"""Puts other layers in the place of a model's linear layers, which keep names and parameters."""

from collections.abc import Callable, Sequence

from torch import nn


def replace_linear(
    model: nn.Module, layer: Callable[[nn.Linear, int], nn.Module], keep: Sequence[str] = ()
) -> nn.Module:
    """Put layer(linear, number) in the place of every nn.Linear of a model; return the model.

    A layer that stands in several places stays one. Subclasses of nn.Linear stay as they are, and
    so do layers that `keep` names, or that lie in a module that it names. A model that is a single
    layer is returned replaced. Raises ValueError for names that the model has not.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    for name in keep:
        if name not in names:
            raise ValueError(f"The model has no module {name!r} that could be kept.")
    replaced: dict[nn.Module, nn.Module] = {}
    for name, module in names.items():
        kept = any(name == other or name.startswith(f"{other}.") for other in keep)
        if type(module) is not nn.Linear or kept:
            continue
        if module not in replaced:
            replaced[module] = layer(module, len(replaced))
        if not name:
            return replaced[module]
        parent, _, own = name.rpartition(".")
        setattr(names[parent], own, replaced[module])
    return model
