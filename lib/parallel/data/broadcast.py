"""The broadcast with which data-parallel methods begin: all ranks get the first rank's tensors."""

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from lib.predict.data.buckets import assign


def check_made(module) -> None:
    """Raise ValueError where a parameter or buffer of the module has no shape yet."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(
                f"{name} has no shape yet, because the model is lazy. Run the model once before "
                "you make it parallel."
            )


def check(module) -> None:
    """Raise ValueError where a parameter or buffer has no shape yet, or is not dense."""
    check_made(module)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.layout != torch.strided:
            raise ValueError(
                f"{name} is {str(tensor.layout).removeprefix('torch.')}, but only dense tensors "
                "can be broadcast to the other ranks. Make it dense, or keep it as a plain "
                "attribute instead of a buffer."
            )


def broadcast_model(model, group) -> None:
    """Send the first rank's parameters and buffers to all ranks, a tensor at a time.

    Raises ValueError where one of them cannot be sent.
    """
    check(model)
    for tensor in [*model.parameters(), *model.buffers()]:
        broadcast([tensor], group)


@torch.inference_mode()  # also writes to tensors that were reassigned in inference mode
def broadcast(tensors: list, group) -> None:
    """Send the values of the group's first rank to all ranks, one dtype and device to a message.

    A message holds about 250 MiB: tensors are added until it has at least that much. So little
    memory is needed for copies. It is sent as bytes, so that dtypes can be sent which the backend
    does not know. As in PyTorch, autograd counts the tensors as unchanged, so a backward that has
    saved them can still run.
    """
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    pieces = [_without_repeats(tensor.detach()) for tensor in tensors]
    kinds = [(piece.dtype, piece.device) for piece in pieces]
    with torch.autograd._unsafe_preserve_version_counter(tuple(counted)):
        for positions in assign([piece.nbytes for piece in pieces], [250 * 2**20], kinds):
            inside = [pieces[n] for n in positions]
            flat = torch.cat([piece.reshape(-1) for piece in inside])
            dist.broadcast(flat.view(torch.uint8), group=group, group_src=0)
            for piece, part in zip(inside, flat.split([piece.numel() for piece in inside])):
                piece.copy_(part.view(piece.shape))


def _without_repeats(tensor):
    """Return a view with each number in memory once, without the repetitions that `expand` adds."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
