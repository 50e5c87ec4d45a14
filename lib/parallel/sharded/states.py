"""Weights and optimizer states of a sharded model: whole, or as shards for any number of ranks.

FSDP shards both. A ZeroRedundancyOptimizer shards the states alone: the weights are whole on every
rank, so the plain model's state dict holds them, and parameters are known by their positions.
"""

import math

import torch
import torch.distributed as dist

from lib.parallel.sharded import shards
from lib.parallel.sharded.shards import entry
from lib.ranks.agreement import from_first


def full_gradients(fsdp) -> dict:
    """Gather each gradient, by name; None where no rank has a part of it."""
    gradients = {}
    for flat in fsdp.flats():
        present = torch.tensor([p.grad is not None for p in flat.parameters], dtype=torch.int32)
        present = present.to(flat.groups.device)
        dist.all_reduce(present, group=flat.groups.shard)
        shard = torch.zeros_like(flat.shard)
        pieces = flat.layout.pieces(shard, flat.rank)
        for piece, parameter in zip(pieces, flat.parameters):
            if parameter.grad is not None:
                piece.copy_(parameter.grad)
        wholes = flat.whole_of(shard)
        for weight, whole, count in zip(flat.weights, wholes, present.tolist()):
            gradients |= dict.fromkeys(weight.names, whole if count else None)
    return {name: gradients[name] for name, _ in fsdp.named_parameters()}


def full_state_dict(fsdp) -> dict:
    """Gather the plain model's state dict, one flat buffer at a time, on the CPU."""
    fsdp._schedule.begin()
    wholes = {}
    for flat in fsdp.flats():
        for parameter, whole in zip(flat.parameters, flat.whole_of(flat.shard)):
            wholes[id(parameter)] = whole.to("cpu", copy=True)
    state = fsdp.module.state_dict(keep_vars=True)
    return {name: wholes.get(id(value), _copied(value)) for name, value in state.items()}


def _copied(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to("cpu", copy=True)


def load_full_state_dict(fsdp, state) -> None:
    """Load the first rank's `state`: each rank gets its shard of it by a scatter."""
    fsdp._schedule.begin()
    everyone = fsdp.groups.all
    first = dist.get_rank(everyone) == 0
    refusal = [_misfit(fsdp, state) if first else None]
    dist.broadcast_object_list(refusal, group=everyone, group_src=0)
    if refusal[0]:
        raise ValueError(refusal[0])
    for flat in fsdp.flats():
        tensors = [state[weight.name] for weight in flat.weights] if first else None
        flat.refill(flat.joined(tensors))
    for name, buffer in _buffers(fsdp).items():
        if first:
            buffer.copy_(state[name])
        from_first(buffer, everyone)


def _buffers(fsdp) -> dict:
    """Return the buffers that a state dict holds, by name."""
    kept = fsdp.module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in fsdp.named_buffers() if name in kept}


def _misfit(fsdp, state) -> str | None:
    """Return how a state dict differs from the plain model's, None where it does not."""
    if state is None:
        return "The first rank passed no state dict. Only the other ranks may pass None."
    shapes = {
        n: s for f in fsdp.flats() for w, s in zip(f.weights, f.layout.shapes) for n in w.names
    }
    shapes |= {name: tuple(buffer.shape) for name, buffer in _buffers(fsdp).items()}
    for name, shape in shapes.items():
        if name not in state:
            return f"The state dict has no {name}. It must be one of the plain model."
        if tuple(state[name].shape) != shape:
            return (
                f"{name} has the shape {list(state[name].shape)} in the state dict, but "
                f"{list(shape)} in the model. Build the same model."
            )
    extra = [name for name in state if name not in shapes and torch.is_tensor(state[name])]
    return f"The model has no {extra[0]}, which is in the state dict." if extra else None


def sharded_state_dict(fsdp, optimizer=None) -> dict:
    """Return this rank's pieces, each with its place in the whole; nothing is sent."""
    fsdp._schedule.begin()
    weights, names = {}, {}
    for flat in fsdp.flats():
        for n, (weight, parameter) in enumerate(zip(flat.weights, flat.parameters)):
            start, _ = flat.layout.piece(n, flat.rank)
            place = {"shape": flat.layout.shapes[n], "start": start}
            weights[weight.name] = entry(parameter, place)
            names[parameter] = weight.name, place
    group = fsdp.groups.shard
    state = {"rank": dist.get_rank(group), "ranks": dist.get_world_size(group), "weights": weights}
    state["buffers"] = {name: _copied(buffer) for name, buffer in _buffers(fsdp).items()}
    if optimizer is not None:
        state["optimizer"] = shards.of_optimizer(optimizer, names)
    return state


def load_sharded_state_dict(fsdp, saved: list[dict], optimizer=None) -> None:
    """Load this rank's pieces from the shards of any number of ranks; nothing is sent."""
    fsdp._schedule.begin()
    saved = shards.one_of_each(saved)
    flats = fsdp.flats()
    expected = {weight.name for flat in flats for weight in flat.weights}
    if differing := sorted(expected ^ set(saved[0]["weights"])):
        raise ValueError(
            f"The saved shards and the model differ in {differing[0]}. Build the same model."
        )
    for flat in flats:
        for n, (weight, parameter) in enumerate(zip(flat.weights, flat.parameters)):
            entries = [state["weights"][weight.name] for state in saved]
            first, last = flat.layout.piece(n, flat.rank)
            piece = shards.cut(entries, weight.name, flat.layout.shapes[n], first, last)
            parameter.data.copy_(piece)
            if optimizer is not None and last > first:
                states = [s["optimizer"]["state"].get(weight.name, {}) for s in saved]
                place = weight.name, flat.layout.shapes[n], first, last
                optimizer.state[parameter] = shards.cut_state(states, *place, parameter)
    for name, buffer in _buffers(fsdp).items():
        buffer.copy_(saved[0]["buffers"][name])
    if optimizer is not None:
        for group, options in zip(optimizer.param_groups, saved[0]["optimizer"]["groups"]):
            group.update(options)


# The states of a ZeroRedundancyOptimizer.


def sharded_optimizer_state(zero) -> dict:
    """Return this rank's share of the states, each piece with its place; nothing is sent."""
    names, pieces, group = {}, {}, zero.flats[0].group
    for n, shape, first, last, piece in _pieces(zero):
        names[piece] = _name(n), {"shape": shape, "start": first}
        pieces[_name(n)] = {"shape": shape, "start": first, "numel": last - first}
    state = {"rank": dist.get_rank(group), "ranks": dist.get_world_size(group), "pieces": pieces}
    return state | {"optimizer": shards.of_optimizer(zero, names)}


def load_sharded_optimizer_state(zero, saved: list[dict]) -> None:
    """Load this rank's share from the shares of any number of ranks; nothing is sent."""
    saved = shards.one_of_each(saved)
    _refuse_others(zero, saved[0])
    for n, shape, first, last, piece in _pieces(zero):
        states = _states_by_rank(saved, _name(n))
        zero.state.pop(piece, None)
        if last > first and any(states):
            zero.state[piece] = shards.cut_state(states, _name(n), shape, first, last, piece)
    for group, options in zip(zero.param_groups, saved[0]["optimizer"]["groups"]):
        group.update(options)


def full_optimizer_state(zero) -> dict:
    """Gather the state dict that the plain optimizer would have, on every rank, on the CPU."""
    own = sharded_optimizer_state(zero)
    saved, state, on_cpu = [None] * own["ranks"], {}, torch.empty(0, device="cpu")
    dist.all_gather_object(saved, own, zero.flats[0].group)
    for n, shape, *_ in _pieces(zero):
        if any(states := _states_by_rank(saved, _name(n))):
            whole = shards.cut_state(states, _name(n), shape, 0, math.prod(shape), on_cpu)
            state[n] = {key: v.view(shape) if _has_dims(v) else v for key, v in whole.items()}
    groups, position = [], 0
    for options, group in zip(own["optimizer"]["groups"], zero.param_groups):
        end = position + len(group["params"])
        groups.append(options | {"params": list(range(position, end))})
        position = end
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def load_full_optimizer_state(zero, state: dict) -> None:
    """Load a state dict of the plain optimizer, which every rank passes; nothing is sent."""
    pieces, states = {}, {}
    for n, shape, *_ in _pieces(zero):
        pieces[_name(n)] = {"shape": shape, "start": 0, "numel": math.prod(shape)}
        states[_name(n)] = {
            key: entry(value.flatten(), {"shape": value.shape, "start": 0})
            # Of a parameter without dims each state is a number too; only "step" is a count.
            if _has_dims(value) or (torch.is_tensor(value) and not shape and key != "step")
            else value
            for key, value in state["state"].get(n, {}).items()
        }
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    saved = {"rank": 0, "ranks": 1, "pieces": pieces}
    load_sharded_optimizer_state(zero, [saved | {"optimizer": {"state": states, "groups": groups}}])


def _pieces(zero):
    """Yield each parameter's position and shape, the ends of this rank's piece, and the piece."""
    parameters = [p for group in zero.param_groups for p in group["params"]]
    positions = {id(parameter): n for n, parameter in enumerate(parameters)}
    for flat in zero.flats:
        for n, (parameter, piece) in enumerate(zip(flat.parameters, flat.pieces)):
            ends = flat.layout.piece(n, flat.rank)
            yield positions[id(parameter)], flat.layout.shapes[n], *ends, piece


def _name(position: int) -> str:
    return f"Parameter {position}"


def _has_dims(value) -> bool:
    return torch.is_tensor(value) and value.dim() > 0


def _states_by_rank(saved: list[dict], name: str) -> list[dict]:
    """Return the states of one parameter by rank; a piece that was never stepped has zeros.

    Under ZeRO-2 a piece whose gradient has always been zero is not stepped, whatever the others do.
    """
    states = [dict(one["optimizer"]["state"].get(name, {})) for one in saved]
    shapes = {k: v for state in states for k, v in state.items() if isinstance(v, dict)}
    for state, one in zip(states, saved):
        for key, values in shapes.items():
            zeros = values["values"].new_zeros(one["pieces"][name]["numel"])
            state.setdefault(key, one["pieces"][name] | {"values": zeros})
    return states


def _refuse_others(zero, saved: dict) -> None:
    """Raise ValueError unless the states are those of an optimizer of the same parameters."""
    counts = [len(saved["pieces"]), len(saved["optimizer"]["groups"])]
    if counts != [len(list(_pieces(zero))), len(zero.param_groups)]:
        raise ValueError(
            f"The states were saved for {counts[0]} parameters in {counts[1]} groups, but this "
            f"optimizer has {len(list(_pieces(zero)))} in {len(zero.param_groups)}. Make it from "
            "the same model."
        )
