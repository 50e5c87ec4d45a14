"""A plain model with layers of experts becomes expert parallel, in place, and back.

    x [B/P, S, D] -> rows sorted by expert -> all_to_all -> experts E/P -> all_to_all -> y [B/P, S, D]

Each rank has its own samples, the gate and all dense parts whole, and E/P of the experts. What the
ranks compute is data parallel outside the experts. Inside, rank r computes experts r·E/P to
(r+1)·E/P - 1 for the tokens of all ranks.

[Note: one scale]
The loss of the whole batch is the mean of the ranks' losses, so every gradient is a sum over all P
ranks, divided by P. A dense parameter's is summed by an all_reduce. An expert's is a sum over all
ranks' tokens already, because they all went to it, and is divided by P too; with R replicas of the
experts it is summed over the R ranks that hold the same expert, and divided by R·P. Divided by R, the
number of its copies, an expert would learn P times too fast: Adam hides it, SGD does not.
"""  # noqa: E501

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.expert.batch import OverRanks
from lib.parallel.expert.exchange import Flat, all_counts
from lib.predict.arguments import equal_share
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.gradients import sum_gradient
from lib.single.experts.gates import ExpertChoice
from lib.single.experts.layer import Experts, MoE

DECIDE = ("all", "rank")
SHARDED = ("up", "down")


class ExpertShard(Experts):
    """Holds E/P experts, and computes them for the rows of all ranks: [A, D] -> [A, D].

    `routes` sends the rows; `exchange.Flat` and `exchange.TwoHops` are the two ways. `of` is E.
    """

    def __init__(self, full: Experts, routes):
        nn.Module.__init__(self)
        self.routes, group = routes, routes.group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.of = len(full.up)
        for name in SHARDED:
            shard = self.shard(getattr(full, name))
            setattr(self, name, nn.Parameter(shard, getattr(full, name).requires_grad))

    def shard(self, full: Tensor) -> Tensor:
        """Return a copy of this rank's experts: [E, ..] -> [E/P, ..]."""
        return full.detach().chunk(self.ranks)[self.rank].clone()

    def launch(self, rows: Tensor, counts: Tensor) -> Callable[[], Tensor]:
        """Send rows, sorted by expert, to the ranks of their experts; return what finishes it."""
        by_expert = all_counts(counts, self.routes.group)  # [P, E]
        own = self.of // self.ranks
        table = [
            [sum(row[r * own : (r + 1) * own]) for r in range(self.ranks)] for row in by_expert
        ]
        finish = self.routes.launch(rows, table)
        # A rank gets runs by sender and, within each, by expert; products need them by expert.
        runs = [row[self.rank * own : (self.rank + 1) * own] for row in by_expert]
        order = _by_expert(runs).to(rows.device)

        def finished():
            arrived = finish().index_select(0, order)
            computed = self(arrived, [sum(row[e] for row in runs) for e in range(own)])
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            return self.routes.back(computed.index_select(0, back), table)

        return finished


def _by_expert(runs: list[list[int]]) -> Tensor:
    """Return the places of rows, which lie by sender and then expert, in the order of experts."""
    expert = torch.cat(
        [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in runs]
    )
    return torch.argsort(expert, stable=True)


def expert_parallel(
    model: nn.Module, group=None, *, replicas=None, everyone=None, routes=None, decide: str = "all",
    average: bool = True,
) -> nn.Module:  # fmt: skip
    """Spread the experts of a model over a group, in place, and return it.

    Every rank then gives its own samples, computes the mean loss of them and adds `auxiliary_loss`;
    backward averages all gradients over the ranks. With more than one copy of the experts,
    `replicas` is the group of the ranks that hold the same ones, and `everyone` all ranks together.
    `routes` says how rows travel (exchange.py; `Flat` by default). With decide="all", losses and
    capacities are those of the whole batch, as the plain model's are; with "rank" each rank decides
    over its own tokens. Without `average` something else has to average the gradients.

    Raises ValueError, and leaves the model as it is, where the ranks' models differ, where there is
    no layer of experts, for experts that the ranks cannot share equally, and for experts that
    choose their tokens over the whole batch and have a capacity besides.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, MoE)}
    everyone = group if replicas is None else everyone
    _refuse(model, layers, dist.get_world_size(group), decide)
    same_everywhere(model, everyone)
    for tensor in (*model.parameters(), *model.buffers()):
        from_first(tensor, everyone)
    shards: dict[int, nn.Parameter] = {}  # by the number of the whole one: what is tied stays tied
    wholes = [[id(getattr(layer.experts, n)) for n in SHARDED] for layer in layers.values()]
    for layer, whole in zip(layers.values(), wholes):
        layer.experts = ExpertShard(layer.experts, routes or Flat(group))
        for name, number in zip(SHARDED, whole):
            shard = getattr(layer.experts, name)
            setattr(layer.experts, name, shards.setdefault(number, shard))
        if decide == "all":
            layer.batch = layer.gate.batch = OverRanks(everyone)
    if average:
        _average(model, layers, everyone, replicas)
    model.expert_parallel_group = group
    return model


def _average(model, layers, everyone, replicas) -> None:
    own = {id(p) for layer in layers.values() for p in layer.experts.parameters()}
    copies = [] if replicas is None else [replicas]
    for parameter in model.parameters():
        groups = copies if id(parameter) in own else [everyone]
        sum_gradient(parameter, groups, 1 / dist.get_world_size(everyone))


def _refuse(model, layers, ranks: int, decide: str) -> None:
    if decide not in DECIDE:
        raise ValueError(f"decide must be one of {', '.join(DECIDE)}, not {decide!r}.")
    if not layers:
        raise ValueError(
            f"A {type(model).__name__} has no layer of experts. Give a model with `MoE` layers, "
            "such as with_experts(GPT(shape), experts=8, k=2)."
        )
    for name, layer in layers.items():
        if isinstance(layer.experts, ExpertShard):
            raise ValueError(f"{name} is expert parallel already. Apply expert_parallel once.")
        equal_share(
            layer.gate.experts, ranks, f"{name or 'The layer'} has {{}} experts",
            advice="Choose a number of experts that the ranks divide.",
        )  # fmt: skip
        if decide == "all" and isinstance(layer.gate, ExpertChoice) and layer.capacity is not None:
            raise ValueError(
                "Experts that choose their tokens have the same load without a capacity. Leave "
                'capacity out and choose the load by `room`, or give decide="rank".'
            )


# Whole weights.


def _shards(model) -> dict[str, ExpertShard]:
    """Return the shard that each parameter of experts is in, by the parameter's name."""
    return {
        f"{path}.{name}" if path else name: part
        for path, part in model.named_modules()
        if isinstance(part, ExpertShard)
        for name in SHARDED
    }


def _whole(shard: ExpertShard, tensor: Tensor) -> Tensor:
    pieces = [torch.empty_like(tensor) for _ in range(shard.ranks)]
    dist.all_gather(pieces, tensor.contiguous(), shard.routes.group)
    return torch.cat(pieces)


def to_plain(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model, whole on every rank; all ranks come."""
    shards = _shards(model)
    return {
        name: _whole(shards[name], tensor) if name in shards else tensor.detach().clone()
        for name, tensor in model.state_dict().items()
    }


def plain_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Return the gradients of the plain model's parameters, whole on every rank, by name."""
    shards = _shards(model)
    return {
        name: _whole(shards[name], p.grad) if p.grad is not None and name in shards else p.grad
        for name, p in model.named_parameters()
    }


def load_plain(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give an expert-parallel model the weights of a plain model's state dict; nothing is sent.

    Raises ValueError, and leaves the model as it is, where names or shapes are not the plain ones.
    """
    shards, own = _shards(model), model.state_dict()
    if state.keys() != own.keys():
        name = min(state.keys() ^ own.keys())
        what = f"lacks {name}" if name in own else f"has {name}, which the model lacks"
        raise ValueError(f"The state dict does not fit: it {what}. Load the plain model's.")
    found = {}
    for name, tensor in own.items():
        found[name] = shards[name].shard(state[name]) if name in shards else state[name]
        expected = list(tensor.shape)
        if name in shards:
            expected[0] = shards[name].of
        if list(state[name].shape) != expected:
            raise ValueError(
                f"{name} of the state dict has the shape {list(state[name].shape)}, and the plain "
                f"model's is {expected}. Load the state dict of the plain model."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])
