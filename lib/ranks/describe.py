"""Writing what a collective is given, in the words that ranks compare on the board."""

import torch


def flat(item) -> list[torch.Tensor]:
    """Give the tensors of nested lists, in order."""
    if isinstance(item, torch.Tensor):
        return [item]
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
