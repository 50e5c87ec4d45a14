"""A plan says for each module of a model how it is split; a name pattern chooses the modules.

    {"*.up": "column", "*.down": "row", "embed": "vocabulary", "*.attn.heads": "divide"}

    column             nn.Linear                  outputs are split: [.., D] -> [.., F/tp]
    gathered column    nn.Linear                  and joined again: [.., D] -> [.., F]
    row                nn.Linear                  inputs are split: [.., F/tp] -> [.., D]
    split row          nn.Linear                  inputs are whole, and split here: [.., F] -> [.., D]
    vocabulary         nn.Embedding, nn.Linear    rows are split and padded; logits stay split
    gathered vocabulary  nn.Linear                and logits are joined: [.., V]
    dropout            nn.Dropout                 acts on numbers that are split: [.., F/tp]
    attention, mlp     those of lib.single.models
    replicate          any module                 stays whole on every rank, as what no pattern names
    summed             any module                 stays whole, and its gradients are summed
    divide             an attribute               a whole number of a module, divided by the ranks

The first pattern that fits decides. "summed" is for parameters that work on split numbers, such as a
norm over each head: each rank's gradient comes from its own heads, so backward has to sum them.
"divide" is for modules that know a number of heads, as most models' attention does.
"""  # noqa: E501

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import nn

from lib.parallel.tensor.blocks import TensorParallelAttention, TensorParallelMLP
from lib.parallel.tensor.dropout import SplitDropout
from lib.parallel.tensor.linear import ColumnLinear, RowLinear
from lib.parallel.tensor.vocabulary import VocabParallelEmbedding, VocabParallelLinear
from lib.single.models import Attention, Embedding, FeedForward, Head


def _vocabulary(full, group, seed):
    kind = VocabParallelEmbedding if isinstance(full, nn.Embedding) else VocabParallelLinear
    return kind(full, group)


# kind -> the modules that it splits, and what makes the split one
MAKERS = {
    "column": (nn.Linear, lambda full, group, seed: ColumnLinear(full, group)),
    "gathered column": (nn.Linear, lambda full, group, seed: ColumnLinear(full, group, True)),
    "row": (nn.Linear, lambda full, group, seed: RowLinear(full, group)),
    "split row": (nn.Linear, lambda full, group, seed: RowLinear(full, group, False)),
    "vocabulary": ((nn.Embedding, nn.Linear), _vocabulary),
    "gathered vocabulary": (
        nn.Linear, lambda full, group, seed: VocabParallelLinear(full, group, True)
    ),
    "dropout": (nn.Dropout, lambda full, group, seed: SplitDropout(full, group, seed=seed)),
    "attention": (Attention, TensorParallelAttention),
    "mlp": (FeedForward, lambda full, group, seed: TensorParallelMLP(full, group)),
}  # fmt: skip
KINDS = (*MAKERS, "replicate", "summed", "divide")


def plan_of(model: nn.Module) -> dict[str, str]:
    """Return the plan of a plain GPT: attention, MLP, the embedding of tokens, and the head.

    Raises ValueError for a model that has none of these.
    """
    kinds = {Attention: "attention", FeedForward: "mlp"}
    plan = {}
    for name, module in model.named_modules():
        if type(module) in kinds:
            plan[name] = kinds[type(module)]
        elif isinstance(module, Embedding):
            plan[f"{name}.tokens"] = "vocabulary"
        elif isinstance(module, Head):
            plan[f"{name}.linear"] = "vocabulary"
    if not plan:
        raise ValueError(
            f"A {type(model).__name__} has no parts that tensor_parallel knows by itself. Give it "
            'a plan, such as plan={"*.up": "column", "*.down": "row"}.'
        )
    return plan


def assignments(model: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Return the kind of every module and attribute that a plan names, by name.

    Raises ValueError for a kind that is not known, a pattern that matches nothing, a module that
    cannot be split in this way, and a module inside another one of the plan.
    """
    chosen: dict[str, str] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    modules.pop("", None)
    numbers = {
        f"{name}.{key}".lstrip("."): None
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if type(value) is int and not key.startswith("_")
    }
    for pattern, kind in plan.items():
        if kind not in KINDS:
            raise ValueError(
                f"The plan wants {pattern!r} to be {kind!r}, which is not known. Choose one of "
                f"{', '.join(KINDS)}."
            )
        names = numbers if kind == "divide" else modules
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            what = "whole number in a module" if kind == "divide" else "module"
            raise ValueError(
                f"The plan's pattern {pattern!r} matches no {what}. The model has, for example, "
                f"{', '.join(list(names)[-3:]) or 'none'}."
            )
        for name in matches:
            chosen.setdefault(name, kind)
    for name, kind in chosen.items():
        _check(name, kind, modules, chosen)
    return chosen


def _check(name: str, kind: str, modules, chosen) -> None:
    """Refuse a module of another class, and one inside a module that is replaced."""
    if kind in MAKERS and not isinstance(modules[name], MAKERS[kind][0]):
        raise ValueError(
            f"The plan wants {name} to be {kind!r}, but it is a {type(modules[name]).__name__}, "
            f"which cannot be split in this way."
        )
    parts = name.split(".")
    for end in range(1, len(parts)):
        outer = ".".join(parts[:end])
        if chosen.get(outer) in ("attention", "mlp") and kind != "divide":
            raise ValueError(
                f"The plan names {name} and {outer}, which holds it and is split as a whole. Name "
                "only one of them."
            )
