"""A part of fsdp.py: the whole weights of one flat buffer, also of a model on the meta device.

Only the group's first rank makes them, a buffer at a time, and scatters the shards. So no rank ever
holds the whole of a model that was built on the meta device.
"""

import torch
import torch.distributed as dist
from torch import nn


def whole_weights(flat, init=None) -> torch.Tensor | None:
    """Return the weights of a flat buffer on the first rank, [L]; None on the others."""
    if dist.get_rank(flat.groups.all):
        return None
    parameters = [weight.parameter for weight in flat.weights]
    if any(parameter.is_meta for parameter in parameters):
        return flat.joined(_initialized(flat, init))
    return flat.joined(parameters)


def prepare(module: nn.Module, device, init=None) -> None:
    """Give memory to the buffers that are on the meta device, and check that weights can be made.

    Raises ValueError where a module has weights on the meta device and nothing initializes them.
    """
    for name, part in module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[key] = torch.zeros_like(buffer, device=device)
        meta = [key for key, p in part._parameters.items() if p is not None and p.is_meta]
        if meta and init is None and not hasattr(part, "reset_parameters"):
            raise ValueError(
                f"{name or 'The model'} has {meta[0]} on the meta device, but no function "
                "reset_parameters(). Pass FSDP(..., init=...), which sets the weights of a module."
            )


def _initialized(flat, init) -> list[torch.Tensor]:
    """Return the weights of a flat buffer, initialized module by module."""
    values: dict[int, torch.Tensor] = {}
    modules = {id(module): module for weight in flat.weights for module, _ in weight.slots}
    for module in modules.values():
        before = dict(module._parameters)
        for key, parameter in before.items():
            if parameter is not None:
                empty = torch.empty_like(parameter, device=flat.groups.device)
                module._parameters[key] = nn.Parameter(empty, parameter.requires_grad)
        module.reset_parameters() if init is None else init(module)
        for n, weight in enumerate(flat.weights):
            for owner, key in weight.slots:
                if owner is module:
                    values.setdefault(n, module._parameters[key].detach())
        module._parameters.update(before)
    return [values[n] for n in range(len(flat.weights))]
