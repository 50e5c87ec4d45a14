"""A part of data.py: buckets of gradients, what ranks must agree on, what a loss did not use."""

import zlib
from itertools import zip_longest

import torch
import torch.distributed as dist

from lib.predict.buckets import assign
from lib.ranks.storages import tensors_of


class Bucket:
    """Gradients of `params` end to end in `flat`; `views[i]`, a part of it, is that of `params[i]`.

    `index` is its place in the order of launching.
    """

    def __init__(self, index: int, params: list):
        self.index, self.params = index, params
        sizes = [parameter.numel() for parameter in params]
        first = params[0]
        self.flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [_laid_out(piece, p) for piece, p in zip(self.flat.split(sizes), params)]
        self.missing, self.work = len(params), None


def _laid_out(piece, parameter):
    """View a flat piece in a parameter's shape and in the order of its memory (channels last)."""
    dims = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    if not parameter.permute(dims).is_contiguous():  # it has gaps, or overlaps
        return piece.view(parameter.shape)
    back = sorted(range(parameter.dim()), key=dims.__getitem__)
    return piece.view([parameter.shape[dim] for dim in dims]).permute(back)


def make(params: list, order: list[int], limits, backwards: bool = False):
    """Make the buckets of `params[order[0]]`, `params[order[1]]`, ... with these limits in bytes.

    Gives the buckets, and for each of `params` its (bucket, view); None for those not in `order`.
    `backwards`: the order is that of definition, the last bucket is launched first.
    """
    kinds = [(params[n].dtype, params[n].device) for n in order]
    groups = assign([params[n].nbytes for n in order], limits, kinds)
    if backwards:  # the bucket of the first parameter is full last
        groups.sort(key=lambda positions: positions[0], reverse=True)
    buckets, places = [], [None] * len(params)
    for positions in groups:
        inside = [order[position] for position in positions]
        bucket = Bucket(len(buckets), [params[n] for n in inside])
        buckets.append(bucket)
        for n, view in zip(inside, bucket.views):
            places[n] = bucket, view
    return buckets, places


@torch.no_grad()
def broadcast(tensors: list, group) -> None:
    """Give every rank the group's first rank's `tensors`, all of one type in one message.

    A message holds at most 250 MB (or one tensor), so that little is copied at once.
    """
    tensors = [tensor.detach() for tensor in tensors]
    kinds = [(tensor.dtype, tensor.device) for tensor in tensors]
    for positions in assign([tensor.nbytes for tensor in tensors], [250 * 2**20], kinds):
        inside = [tensors[n] for n in positions]
        flat = torch.cat([tensor.reshape(-1) for tensor in inside])
        dist.broadcast(flat, group=group, group_src=0)
        for tensor, piece in zip(inside, flat.split([tensor.numel() for tensor in inside])):
            tensor.copy_(piece.view_as(tensor))


def same_everywhere(module, group) -> None:
    """Raise ValueError, on every rank, unless all have parameters of the same names and shapes."""
    mine = [
        (name, f"{list(p.shape)} {p.dtype}, {'trained' if p.requires_grad else 'frozen'}")
        for name, p in module.named_parameters()
    ]
    device = next(module.parameters()).device
    checksum = torch.tensor([len(mine), zlib.crc32(repr(mine).encode())], device=device)
    checksums = [torch.empty_like(checksum) for _ in range(dist.get_world_size(group))]
    dist.all_gather(checksums, checksum, group)
    if all(torch.equal(other, checksums[0]) for other in checksums):
        return
    theirs: list = [None] * len(checksums)  # words only where they are needed
    dist.all_gather_object(theirs, mine, group)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            pairs = zip_longest(theirs[0], other, fillvalue=("no such parameter",))
            here, there = next((a, b) for a, b in pairs if a != b)
            raise ValueError(
                f"the models differ: rank 0 of the group has {' '.join(here)}; rank {rank} has "
                f"{' '.join(there)}. Build the same model on every rank"
            )


def unused_by(outputs, params: list) -> list[int]:
    """Say which of `params` no path through autograd's graph leads to from `outputs`.

    Gives none where the outputs hide their tensors: then the end of backward tells.
    """
    left = [t.grad_fn for t in tensors_of(outputs) if t.grad_fn is not None]
    if not left:
        return []
    seen, reached = set(left), set()
    while left:
        node = left.pop()
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)
    return [n for n, parameter in enumerate(params) if id(parameter) not in reached]
