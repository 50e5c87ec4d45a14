"""A part of ddp.py: buckets of gradients, and unused parameters."""

import torch
from torch.utils.checkpoint import CheckpointFunction

from lib.predict.data.buckets import assign
from lib.ranks.state.live_storages import tensors_of


class Bucket:
    """Holds the gradients of `params` end to end in `flat`; `views[i]` is the part of `params[i]`.

    `index` is its position in the order of launching. A `sparse` bucket holds the gradient of a
    single parameter, as the tensor that backward produced, and has no views.
    """

    def __init__(self, index: int, params: list, sparse: bool = False):
        self.index, self.params, self.sparse = index, params, sparse
        self.missing, self.work = len(params), None
        if sparse:
            self.flat, self.views = None, [None]
            return
        sizes = [parameter.numel() for parameter in params]
        first = params[0]
        self.flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [_laid_out(piece, p) for piece, p in zip(self.flat.split(sizes), params)]


def _laid_out(piece, parameter):
    """View a flat piece in a parameter's shape and in the order of its memory (channels last)."""
    dims = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    if not parameter.permute(dims).is_contiguous():  # its memory has gaps or overlaps
        return piece.view(parameter.shape)
    back = sorted(range(parameter.dim()), key=dims.__getitem__)
    return piece.view([parameter.shape[dim] for dim in dims]).permute(back)


def make(params: list, order: list[int], limits, sparse=(), backwards: bool = False):
    """Make the buckets of `params[order[0]]`, `params[order[1]]`, ... with these limits in bytes.

    Returns the buckets, and for each of `params` its (bucket, view), or None if it is not in
    `order`. Each parameter in `sparse` has a bucket of its own. With `backwards`, the order is that
    of definition, and the last bucket is launched first.
    """
    kinds = [n if n in sparse else (params[n].dtype, params[n].device) for n in order]
    groups = assign([params[n].nbytes for n in order], limits, kinds)
    if backwards:  # the bucket with the first parameter becomes full last
        groups.sort(key=lambda positions: positions[0], reverse=True)
    buckets, places = [], [None] * len(params)
    for positions in groups:
        inside = [order[position] for position in positions]
        bucket = Bucket(len(buckets), [params[n] for n in inside], inside[0] in sparse)
        buckets.append(bucket)
        for n, view in zip(inside, bucket.views):
            places[n] = bucket, view
    return buckets, places


def unused_by(outputs, params: list) -> list[int]:
    """Return the numbers of the `params` that no path in autograd's graph reaches from `outputs`.

    Returns none where the outputs hide their tensors, or where a checkpoint (use_reentrant=True)
    hides its graph; the unused parameters are then found at the end of backward.
    """
    left = [t.grad_fn for t in tensors_of(outputs) if t.grad_fn is not None]
    if not left:
        return []
    seen, reached = set(left), set()
    while left:
        node = left.pop()
        if isinstance(node, CheckpointFunction._backward_cls):
            return []
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)
    return [n for n, parameter in enumerate(params) if id(parameter) not in reached]
