"""Writing what a collective is given, in the words that ranks compare on the board."""

import torch


def flat(item) -> list[torch.Tensor]:
    """Give the tensors of nested lists, in order."""
    if isinstance(item, torch.Tensor):
        return [item]
    if not isinstance(item, list | tuple):
        return []
    return [tensor for part in item for tensor in flat(part)]


def bytes_of(tensors) -> int:
    """Add up the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def say(tensors, shapes: bool = False) -> str:
    """Write tensors as the board compares them: a sum needs one shape, all else one size."""
    sizes = [list(t.shape) if shapes else t.numel() for t in tensors[:16]]
    return f"{str(tensors[0].dtype)[6:]} {str(sizes)[1:-1] if shapes else sizes}" if tensors else ""


def splits(group, outputs, inputs, args) -> str:
    """Write what goes to and comes from each member in an all_to_all."""
    if len(args) > 3:  # one tensor each way, cut along dim 0
        n = group.size()
        into, out = (
            list(given) or [tensor.shape[0] // n] * n
            for given, tensor in ((args[3], inputs[0]), (args[2], outputs[0]))
        )
    else:
        into, out = ([t.numel() for t in tensors] for tensors in (inputs, outputs))
    return f"{str(inputs[0].dtype)[6:]} splits {','.join(map(str, into))}>{','.join(map(str, out))}"


def fits(mine: str, theirs: str, here: int, there: int) -> bool:
    """True if two all_to_all fit: what I send to them is what they expect, and the other way round.

    `here` and `there` are the places of the two ranks in the group.
    """
    (what, my_splits), (their_what, their_splits) = (t.split(" splits ") for t in (mine, theirs))
    my_in, my_out, their_in, their_out = (
        part.split(",") for text in (my_splits, their_splits) for part in text.split(">")
    )
    if len(their_out) <= here or len(their_in) <= here:  # cut short on the board: gloo will judge
        return True
    same = my_in[there] == their_out[here] and my_out[there] == their_in[here]
    return what == their_what and same
