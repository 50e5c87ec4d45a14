"""The error messages of the sharded methods."""

import torch.distributed as dist


def lost(name: str) -> str:
    """Return the message for whole weights that were changed while they were gathered."""
    return (
        f"The weights of the unit of {name} were changed on rank {dist.get_rank()} while they were "
        "gathered. The change would be lost when they are freed, because each rank keeps only its "
        "shard. Change weights inside `with fsdp.unshard():`."
    )


def other_order(expected: str, found: str, rank: int) -> str:
    """Return the message for a rank that runs other units than the others."""
    return (
        f"Rank {rank} runs the unit {found!r} where other ranks run {expected!r}. All ranks must "
        "run the same units in the same order, because a unit is gathered from all of them."
    )


def trained_then(name: str, trained: bool) -> str:
    """Return the message for a parameter that was frozen or unfrozen after the model was built."""
    before, now = ("trained", "frozen") if trained else ("frozen", "trained")
    return (
        f"{name} was {before} when the model was sharded but is {now} now. Trained and frozen "
        "weights lie in separate buffers, so freeze parameters before you build the FSDP."
    )


def cast_before(name: str) -> str:
    """Return the message for a model that is moved or cast after it was sharded."""
    return (
        f"A model inside {name} cannot be moved or cast, because its parameters are views of one "
        "buffer. Do it before you shard the model."
    )
