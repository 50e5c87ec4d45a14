"""A part of ddp.py: the error messages for gradients that do not arrive as they must."""

import torch.distributed as dist


def left_out(names: list[str]) -> str:
    """Return the message for parameters that have no gradient at the end of backward."""
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
    return (
        f"Backward has ended on rank {dist.get_rank()} without a gradient for {some}, so their "
        "buckets would never be sent. If the loss does not use them, pass find_unused=True, or "
        "static=True if it never does. Freeze parameters before you wrap the model, and use "
        "checkpoints with use_reentrant=False."
    )


def surprise(name: str, unused: bool) -> str:
    """Return the message for a parameter whose gradient was not expected, or not a second time."""
    if unused:
        return (
            f"{name} was unused in the first step but has a gradient now. With static=True every "
            "step must use the same parameters. Leave out static=True, or pass find_unused=True."
        )
    return (
        f"{name} got a second gradient in one backward, after its first was sent. Use "
        "checkpoint(..., use_reentrant=False), or static=True if every step does the same, or "
        "return everything that the loss uses from forward."
    )


def other_layout(name: str, sparse: bool) -> str:
    """Return the message for a dense gradient where a sparse one was expected, or the reverse."""
    if sparse:
        return (
            f"{name} has a dense gradient, although its Embedding has sparse=True, because another "
            "operation uses it as well. Pass sparse=False."
        )
    return (
        f"{name} has a sparse gradient, but it is not the weight of an nn.Embedding(sparse=True). "
        "Use that layer, or pass sparse=False."
    )


def no_hook(name: str) -> str:
    """Return the message for a parameter with sparse gradients in a model with a hook."""
    return (
        f"{name} has sparse gradients, but a hook accepts only dense ones. Build its Embedding "
        "with sparse=False, or leave out the hook."
    )


def frozen_then(name: str) -> str:
    """Return the message for a parameter that is trained now but was frozen when wrapped."""
    return (
        f"{name} was frozen when the model was wrapped but is trained now, so its gradient would "
        "not be averaged. Build the DistributedDataParallel again."
    )
