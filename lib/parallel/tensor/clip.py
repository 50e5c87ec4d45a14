"""The norm of all gradients of a tensor-parallel model, in which each number counts once."""

from torch import Tensor, nn

from lib.parallel.tensor.placements import Replicated
from lib.parallel.tensor.transform import placements
from lib.ranks.norms import norm_of_all, scale_gradients, sum_of_powers


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale the gradients of a model so that the norm of the whole model's is at most `max_norm`.

    Returns the norm before, which is the same on every rank. A parameter that several ranks have
    (a norm's, or a key that neighbours share) counts on the first of them only: counted by all, it
    would count up to tp times, and the ranks would clip a plain model's gradients too much.
    """
    places, group = placements(model), model.tensor_parallel_group
    parts, gradients = [], []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients.append(parameter.grad)
            parts.append(_counted(parameter.grad, places[name], model.tensor_parallel_rank))
    like = next(model.parameters())
    norm = norm_of_all(sum_of_powers(parts, norm_type), group, like, norm_type)
    scale_gradients(gradients, norm, max_norm)
    return norm


def _counted(gradient: Tensor, place: Replicated, rank: int) -> Tensor:
    """Return the part of a gradient that this rank counts."""
    return gradient if rank % place.sharers == 0 else place.own(gradient)
