"""A part of fsdp.py: which modules are units, and which unit has which parameters.

[Note: units]
A unit is what is gathered, computed and freed together. By default each block in the model's lists
(nn.ModuleList, nn.ModuleDict, nn.Sequential) is a unit, and in a model without a list each of its
children. A unit in another unit keeps its own parameters. What remains belongs to the root, which
is gathered first and stays whole until the end of the step; so do weights that two units share. If
one unit has everything, the whole model is gathered at once and nothing is saved.
"""

from dataclasses import dataclass, field

from torch import nn

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass
class Weight:
    """One parameter of the model, its names, and the places (module, attribute) that hold it."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    slots: list[tuple[nn.Module, str]] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first of its names; the others are those of tied weights."""
        return self.names[0]


def find_units(model: nn.Module, units=None) -> dict[str, nn.Module]:
    """Return the modules that are units, by name in order of registration.

    `units` is None for the rule above, a list of modules, a class or tuple of classes, or a
    function of a module's name and the module. Raises ValueError for modules that the model does
    not have, or where none is chosen.
    """
    named = {name: part for name, part in model.named_modules() if name}
    if units is None:
        return _blocks(model, "") or {n: m for n, m in model.named_children() if _weights(m)}
    if isinstance(units, type | tuple):
        chosen = {name: part for name, part in named.items() if isinstance(part, units)}
    elif callable(units) and not isinstance(units, nn.Module):
        chosen = {name: part for name, part in named.items() if units(name, part)}
    else:
        wanted = {id(part): part for part in units}
        if id(model) in wanted:
            del wanted[id(model)]  # the whole model is the root, which there always is
        chosen = {name: part for name, part in named.items() if id(part) in wanted}
        if len(chosen) < len(wanted):
            names = {id(part) for part in chosen.values()}
            missing = next(part for key, part in wanted.items() if key not in names)
            raise ValueError(
                f"A unit is a {type(missing).__name__} that is not part of this model. Choose "
                "units among model.modules()."
            )
        return chosen
    if not chosen:
        raise ValueError(
            "No module of the model is a unit by this rule, so the whole model would be gathered "
            "at once. Pass units=[] if you want that."
        )
    return chosen


def _blocks(module: nn.Module, prefix: str) -> dict[str, nn.Module]:
    """Return the members of the outermost lists below a module, by name."""
    blocks = {}
    for name, child in module.named_children():
        if not _weights(child):
            continue
        if isinstance(module, _LISTS) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            blocks[prefix + name] = child
        else:
            blocks |= _blocks(child, f"{prefix}{name}.")
    unique = {id(child): name for name, child in reversed(blocks.items())}  # a block used twice
    return {name: child for name, child in blocks.items() if unique[id(child)] == name}


def _weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def weights_by_unit(model: nn.Module, units: dict[str, nn.Module]) -> dict[str, list[Weight]]:
    """Return each unit's weights in order of registration, those of the root under the name ""."""
    weights: dict[int, Weight] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        owner = _innermost(prefix, model, units)
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            weight = weights.setdefault(id(parameter), Weight(parameter))
            weight.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            weight.owners.append(owner)
            if not any(m is module and a == attribute for m, a in weight.slots):
                weight.slots.append((module, attribute))
    by_unit: dict[str, list[Weight]] = {name: [] for name in ("", *units)}
    for weight in weights.values():
        owners = set(weight.owners)
        by_unit[owners.pop() if len(owners) == 1 else ""].append(weight)
    return by_unit


def _innermost(prefix: str, model: nn.Module, units: dict[str, nn.Module]) -> str:
    """Return the name of the innermost unit around the module at `prefix`, "" for the root."""
    names = {id(module): name for name, module in units.items()}
    path, inside, module = prefix.split(".") if prefix else [], "", model
    for part in path:
        module = module._modules[part]
        inside = names.get(id(module), inside)
    return inside
