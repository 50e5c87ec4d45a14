"""Saved shards, of any number of ranks: how a piece of another size is cut out of them.

An entry is a piece of a parameter, {"shape": of the whole, "start": first element, "values": [N]}.
These functions need no ranks, so a checkpoint can be joined or cut anew on one machine.
"""

import torch


def entry(values: torch.Tensor, place: dict) -> dict:
    """Return an entry with a copy of these values, on the CPU."""
    return place | {"values": values.detach().to("cpu", copy=True)}


def one_of_each(saved: list[dict]) -> list[dict]:
    """Return the first state dict of each rank, given those of all ranks of one run.

    With hybrid sharding every replica saves the same shards, so all of them or one of each may be
    given; they may differ in their buffers. Raises ValueError where they differ in weights or
    optimizer states, or a rank's is missing.
    """
    wanted = saved[0]["ranks"] if saved else 1
    kept: dict[int, dict] = {}
    for state in saved:
        first = kept.setdefault(state["rank"], state)
        if not all(_equal(first.get(k), state.get(k)) for k in ("weights", "optimizer")):
            raise ValueError(
                f"Two of the shards are those of rank {state['rank']}, but they differ. Give the "
                "state dicts of one run that were saved after the same step."
            )
    if sorted(kept) != list(range(wanted)) or any(s["ranks"] != wanted for s in saved):
        raise ValueError(
            f"The model was saved by {wanted} ranks, but the shards are those of ranks "
            f"{[state['rank'] for state in saved]}. Give the state dict of every rank once."
        )
    return list(kept.values())


def _equal(one, other) -> bool:
    """Return whether two parts of state dicts have the same keys and the same values."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if torch.is_tensor(one) else one == other


def cut(entries: list[dict], name: str, shape, first: int, last: int) -> torch.Tensor:
    """Return elements `first` to `last` (excluded) of a parameter, out of the pieces of all ranks.

    Raises ValueError where the saved parameter has another shape, or elements are missing.
    """
    if tuple(entries[0]["shape"]) != tuple(shape):
        raise ValueError(
            f"{name} was saved with the shape {list(entries[0]['shape'])}, but has {list(shape)} "
            "in the model. Build the same model."
        )
    piece, found = torch.empty(last - first, dtype=entries[0]["values"].dtype), 0
    for part in entries:
        start, values = part["start"], part["values"]
        begin, end = max(start, first), min(start + len(values), last)
        if begin < end:
            piece[begin - first : end - first] = values[begin - start : end - start]
            found += end - begin
    if found != last - first:
        raise ValueError(
            f"The shards hold {found} of {last - first} elements of {name} that this rank needs. "
            "Give the state dict of every rank once."
        )
    return piece


def whole(saved: list[dict]) -> dict[str, torch.Tensor]:
    """Join the shards of all ranks: the whole weights by name. It needs no ranks."""
    saved = one_of_each(saved)
    joined = {}
    for name in saved[0]["weights"]:
        entries = [state["weights"][name] for state in saved]
        shape = torch.Size(entries[0]["shape"])
        joined[name] = cut(entries, name, shape, 0, shape.numel()).view(shape)
    return joined | saved[0]["buffers"]


def of_optimizer(optimizer, names: dict) -> dict:
    """Return the state of an optimizer by names; `names` has each parameter's name and place.

    Raises ValueError for state that is neither a number nor as large as the piece of its parameter.
    """
    states: dict[str, dict] = {}
    for parameter, state in optimizer.state.items():
        name, place = names[parameter]
        states[name] = {}
        for key, value in state.items():
            if not torch.is_tensor(value) or not value.dim():
                states[name][key] = value.clone() if torch.is_tensor(value) else value
            elif value.shape == parameter.shape:
                states[name][key] = entry(value, place)
            else:
                raise ValueError(
                    f"The state {key} of {name} has {value.numel()} elements, but the piece of its "
                    f"parameter has {parameter.numel()}, so it cannot be cut for other ranks."
                )
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return {"state": states, "groups": groups}


def cut_state(states: list[dict], name: str, shape, first: int, last: int, parameter) -> dict:
    """Return the state of one piece of a parameter, out of the states of all ranks."""
    state_of_piece = {}
    for key in dict.fromkeys(key for state in states for key in state):
        values = [state[key] for state in states if key in state]
        if isinstance(values[0], dict):
            state_of_piece[key] = cut(values, f"{key} of {name}", shape, first, last).to(
                parameter.device
            )
        else:
            state_of_piece[key] = values[0].clone() if torch.is_tensor(values[0]) else values[0]
    return state_of_piece
