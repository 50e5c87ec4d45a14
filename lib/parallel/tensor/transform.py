"""A plain model becomes a tensor-parallel one, in place, and back.

    model = tensor_parallel(GPT(shape), group)      tokens [B, S] -> logits [B, S, V/tp]
    state = to_plain(model)                         the state dict of the plain model, on every rank
    load_plain(model, state)                        from the state dict of the plain model

The names of parameters do not change. So a state dict of the plain model, written on any number of
ranks, is read on any other number.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.tensor.linear import SplitModule
from lib.parallel.tensor.placements import Replicated
from lib.parallel.tensor.plan import MAKERS, assignments, plan_of
from lib.predict.arguments import equal_share
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.gradients import sum_gradient


def tensor_parallel(
    model: nn.Module, group=None, plan: Mapping[str, str] | None = None, *,
    seed: int | None = None,
) -> nn.Module:  # fmt: skip
    """Split the modules of a model over a group, in place, and return it.

    All ranks begin with the weights and buffers of the group's first rank. Without a plan, the
    model is a plain GPT, or a part of one; plan.py says what a plan is. `seed` is for dropout on
    split numbers (dropout.py). Make the optimizer afterwards. Raises ValueError, and leaves the
    model as it is, where the ranks' models differ, for a plan that does not fit, and for sizes that
    the ranks cannot share equally; a vocabulary is padded instead.
    """
    chosen = assignments(model, plan_of(model) if plan is None else plan)
    tied = _tied(model)
    same_everywhere(model, group)
    made = _made(model, chosen, group, seed)
    _refuse_halves(model, made, tied)
    numbers = _divided(model, chosen, dist.get_world_size(group))
    for tensor in (*model.parameters(), *model.buffers()):  # nothing can be refused any more
        from_first(tensor, group)
    for name, module in made.items():
        _fill(module, model.get_submodule(name))
        model.set_submodule(name, module)
    for owner, key, share in numbers:
        setattr(owner, key, share)
    _tie(model, tied)
    for name, kind in chosen.items():
        if kind == "summed":
            _sum_gradients(model.get_submodule(name), group)
    model.tensor_parallel_group, model.tensor_parallel_rank = group, dist.get_rank(group)
    return model


def _made(model, chosen, group, seed) -> dict[str, nn.Module]:
    """Return the split modules by name; a module that has two names is split once."""
    made, by_module = {}, {}
    for name, kind in chosen.items():
        if kind not in MAKERS:
            continue
        full = model.get_submodule(name)
        if id(full) not in by_module:
            try:
                arguments = (full, group, None if seed is None else seed + len(made))
                by_module[id(full)] = MAKERS[kind][1](*arguments)
            except ValueError as error:
                refusal = f"{name} cannot be split. {error}"
                raise ValueError(refusal) from None
            by_module[id(full)].train(full.training)
        made[name] = by_module[id(full)]
    return made


@torch.no_grad()
def _fill(module: nn.Module, full: nn.Module) -> None:
    """Give the parts of a split module their numbers of the whole one."""
    for path, part in module.named_modules():
        if isinstance(part, SplitModule):
            whole = full.get_submodule(path)
            for key, place in part.placements.items():
                part.get_parameter(key).copy_(place.shard(whole.get_parameter(key), part.rank))


def _divided(model, chosen, ranks) -> list[tuple[nn.Module, str, int]]:
    """Return the module, the attribute and the share of each number that the plan divides."""
    shares = []
    for name in (name for name, kind in chosen.items() if kind == "divide"):
        path, _, key = name.rpartition(".")
        owner = model.get_submodule(path)
        shares.append((owner, key, equal_share(getattr(owner, key), ranks, name + " is {}")))
    return shares


def _tied(model) -> list[list[str]]:
    """Return the names of each parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _placement(made, name: str):
    """Return where a parameter of a split module is; None where it stays whole."""
    for path, module in made.items():
        for inner, part in module.named_modules(prefix=path):
            if isinstance(part, SplitModule):
                for key, placement in part.placements.items():
                    if f"{inner}.{key}" == name:
                        return None if isinstance(placement, Replicated) else placement
    return None


def _refuse_halves(model, made, tied) -> None:
    for names in tied:
        first, *others = (_placement(made, name) for name in names)
        for name, other in zip(names[1:], others):
            if other != first:
                raise ValueError(
                    f"{names[0]} and {name} are one parameter, but the plan splits them "
                    "differently. Give both modules the same kind."
                )


def _tie(model, tied) -> None:
    for first, *others in tied:
        for name in others:
            path, _, key = name.rpartition(".")
            setattr(model.get_submodule(path), key, model.get_parameter(first))


def _sum_gradients(module, group) -> None:
    """Sum the gradients of a replicated module that works on split numbers."""
    for parameter in module.parameters():
        sum_gradient(parameter, [group])


# Whole weights.


def placements(model: nn.Module) -> dict[str, Replicated]:
    """Return where the numbers of each parameter and buffer are, by name."""
    ranks = dist.get_world_size(model.tensor_parallel_group)
    places = dict.fromkeys(model.state_dict(), Replicated(ranks))
    for path, module in model.named_modules():
        if isinstance(module, SplitModule):
            prefix = f"{path}." if path else ""
            places |= {prefix + key: place for key, place in module.placements.items()}
    return places


def to_plain(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model, whole on every rank; all ranks of the group come.

    The tensors are copies, so that training on does not change them.
    """
    return {name: _whole(model, tensor, place) for name, tensor, place in _named(model)}


def plain_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Return the gradients of the plain model's parameters, whole on every rank, by name.

    All ranks of the group come. None stands for a parameter without a gradient.
    """
    places = placements(model)
    return {
        name: None if p.grad is None else _whole(model, p.grad, places[name])
        for name, p in model.named_parameters()
    }


def _whole(model, tensor: Tensor, place) -> Tensor:
    if isinstance(place, Replicated):
        return tensor.clone()
    shards = [torch.empty_like(tensor) for _ in range(place.ranks)]
    dist.all_gather(shards, tensor.contiguous(), model.tensor_parallel_group)
    return place.whole(shards)


def load_plain(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a tensor-parallel model the weights and buffers of a plain model's state dict.

    Nothing is sent: every rank takes its part. Raises ValueError, and leaves the model as it is,
    where names or shapes differ from those of the plain model.
    """
    own = list(_named(model))
    missing = {name for name, *_ in own} - set(state)
    unknown = set(state) - {name for name, *_ in own}
    if missing or unknown:
        what = f"lacks {min(missing)}" if missing else f"has {min(unknown)}, which the model lacks"
        raise ValueError(f"The state dict does not fit: it {what}. Load the plain model's.")
    shards = []
    for name, tensor, place in own:
        try:
            shard = place.shard(state[name], model.tensor_parallel_rank)
        except (RuntimeError, ValueError, IndexError):
            shard = None
        if shard is None or shard.shape != tensor.shape:
            raise ValueError(
                f"{name} of the state dict has the shape {list(state[name].shape)}, which gives no "
                f"part of the shape {list(tensor.shape)}. Load the state dict of the plain model."
            )
        shards.append((tensor, shard))
    with torch.no_grad():
        for tensor, shard in shards:
            tensor.copy_(shard)


def _named(model) -> Iterator[tuple[str, Tensor, Replicated]]:
    """Give name, this rank's tensor and placement of each entry of the state dict."""
    places = placements(model)
    for name, tensor in model.state_dict().items():
        yield name, tensor.detach(), places[name]
