"""Layers by channel: each rank computes its share of the output channels, and all gather the whole.

    x [B, .., I] · W [O/n, I] -> y [B, .., O/n], gathered to [B, .., O] on every rank

[Note: three collectives]
A layer needs the whole input and has a share of the output. Where its input is equal on all ranks,
each rank gets only a part of the input's gradient, so `collectives.copy` passes the input on and
sums the gradient. Where the output is then used as a whole by all ranks in the same way, its
gradient is equal on all ranks, so `join` takes this rank's slice of it. Where shares are gathered
only to be the input of another layer by channel, `all_gather` does both at once: its backward is a
reduce-scatter.
"""

import copy

import torch.distributed as dist
from torch import nn

from lib.predict.arguments import equal_share
from lib.ranks import collectives
from lib.single.convnet import Classes, Convolution
from lib.single.models import Block, Chain, Embedding, Head, Layer


def by_channel(stage: Chain, group) -> Chain:
    """Return a copy of a stage in which each rank of `group` has its share of the channels.

    Names do not change; a weight of the copy is this rank's rows of the whole one, and norms are
    whole on all ranks. The output is whole on every rank, and so is the gradient of the input.
    Raises ValueError where channels or heads do not divide, where two blocks share a weight, where
    there is dropout, and for a block whose layers are not known here.
    """
    _refuse_tied(stage)
    _refuse_dropout(stage)
    ranks, copied = dist.get_world_size(group), copy.deepcopy(stage)
    blocks = list(copied.blocks.items())
    for place, (name, block) in enumerate(blocks):
        if type(block) not in _RULES:
            known = ", ".join(sorted(kind.__name__ for kind in _RULES))
            raise ValueError(
                f"Block {name} is a {type(block).__name__}, which cannot be shared by channel. "
                f"Blocks that can be are {known}."
            )
        chained = [
            0 <= near < len(blocks) and {type(block), type(blocks[near][1])} <= _CHAINED
            for near in (place - 1, place + 1)
        ]
        _RULES[type(block)](block, _Cutter(group, ranks, f"blocks.{name}"), *chained)
    return copied


class _Cutter:
    """Cuts the layers of one block, and hangs the collectives before and after them."""

    def __init__(self, group, ranks: int, name: str):
        self.group, self.ranks, self.rank, self.name = group, ranks, dist.get_rank(group), name

    def narrow(self, layer: nn.Module, name: str, dim: int = 0) -> nn.Module:
        """Keep this rank's share of a layer's weight along `dim`, and of its bias."""
        for kind in ("weight", "bias"):
            whole = getattr(layer, kind, None)
            if whole is not None:
                along = dim if kind == "weight" else 0
                what = f"Dim {along} of {self.name}.{name}.{kind} has {{}} entries"
                size = equal_share(whole.shape[along], self.ranks, what)
                own = whole.detach().narrow(along, self.rank * size, size).clone()
                setattr(layer, kind, nn.Parameter(own, whole.requires_grad))
        return layer

    def enter(self, layer: nn.Module) -> None:
        """Let the layer take an input that is whole and equal on all ranks."""
        layer.register_forward_pre_hook(
            lambda _, inputs: (collectives.copy(inputs[0], self.group),)
        )

    def enter_parts(self, layer: nn.Module) -> None:
        """Let the layer take shares of its input, which are gathered."""
        layer.register_forward_pre_hook(
            lambda _, inputs: (collectives.all_gather(inputs[0], -1, self.group),)
        )

    def leave(self, layer: nn.Module, dim: int = -1, parts: bool = False) -> None:
        """Gather the shares of the layer's output."""
        gather = collectives.all_gather if parts else collectives.join
        layer.register_forward_hook(lambda _, inputs, y: gather(y, dim, self.group))


def _embedding(block: Embedding, cutter: _Cutter, *_) -> None:
    for name in ("tokens", "positions"):
        if (table := getattr(block, name)) is not None:  # rotary positions have none
            cutter.leave(cutter.narrow(table, name, dim=1))


def _block(block: Block, cutter: _Cutter, *_) -> None:
    attention = block.attention
    heads = attention.proj.in_features // attention.head_size // attention.group_size
    what = "heads" if attention.group_size == 1 else "heads of keys"
    equal_share(heads, cutter.ranks, f"{cutter.name}.attention has {{}} {what}")
    for part, first, last in (("attention", "qkv", "proj"), ("mlp", "up", "down")):
        inside = getattr(block, part)
        cutter.enter(cutter.narrow(getattr(inside, first), f"{part}.{first}"))
        layer = cutter.narrow(getattr(inside, last), f"{part}.{last}")
        cutter.enter_parts(layer)
        cutter.leave(layer)


def _head(block: Head, cutter: _Cutter, *_) -> None:
    layer = cutter.narrow(block.linear, "linear")
    cutter.enter(layer)
    cutter.leave(layer)


def _alone(layer: str, dim: int):
    """Return the rule of a block with a single layer, whose shares other operations keep apart."""

    def rule(block, cutter: _Cutter, after_parts: bool, before_parts: bool) -> None:
        cutter.narrow(getattr(block, layer), layer)
        if not after_parts:
            cutter.enter(block)
        cutter.leave(block, dim, parts=before_parts)

    return rule


_RULES = {
    Embedding: _embedding,
    Block: _block,
    Head: _head,
    Layer: _alone("linear", -1),
    Convolution: _alone("conv", 1),
    Classes: _alone("linear", -1),
}
_CHAINED = {Layer, Convolution, Classes}  # blocks that do nothing else with their input


def _refuse_tied(stage: Chain) -> None:
    homes: dict[int, str] = {}
    for name, parameter in stage.named_parameters(remove_duplicate=False):
        first = homes.setdefault(id(parameter), name)
        if first != name:
            raise ValueError(
                f"{name} and {first} are one weight, whose two uses need different shares of it. "
                "Use a model that is not tied."
            )


def _refuse_dropout(stage: Chain) -> None:
    for name, part in stage.named_modules():
        if isinstance(part, nn.Dropout) and part.p:
            raise ValueError(
                f"{name} drops numbers at random, but each rank has random numbers of its own, so "
                "what must be equal on all ranks would differ. Use a model without dropout."
            )
