"""The exercises of chapter 8: predict, write, repair, and a rule that keeps the load even."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import mean

import torch

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.course.mixture_of_experts.regions import Result, library_rule, trained
from lib.course.mixture_of_experts.training import SEEDS
from lib.predict.expert.traffic import even_rows
from lib.single.experts import MoE

# --- predict

RANKS, TOKENS, WIDTH, K = 8, 4096, 4096, 2
BUSY, OTHERS, FACTOR = 2048, 7, 1.25  # rows of one expert of 8, and what a capacity leaves
ROWS = 8192
CAPACITY = ceil(FACTOR * ROWS / 8)

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "dispatch": round(even_rows(TOKENS, K, RANKS) * WIDTH * 2 / 1e6, 1),
        "capacity": CAPACITY,
        "dropped": round(100 * (BUSY - CAPACITY) / ROWS, 2),
    },
    kinds={"dispatch": "sent MB", "dropped": "%"},
    ranks=RANKS,
    hints=(
        "Count the rows of one rank before you count bytes. With an even load, which share of them "
        "stays on the rank?",
        "Each token makes 2 rows, of 8 rows 7 leave their rank, and a row has 4,096 numbers. The "
        "capacity is 1.25 times an expert's mean load.",
        "Only the busy expert has more rows than the capacity, because the others share the rest.",
    ),
)


# --- write


def _rows(ranks: int, size: int) -> list[tuple]:
    """Return for each rank rows [n, 3], the rank that each goes to [n], and the rank's factor."""
    inputs = []
    for rank in range(ranks):
        draw = torch.Generator("cpu").manual_seed(10 * size + rank)
        rows = torch.randn(size, 3, generator=draw, dtype=torch.float64, device="cpu")
        to = torch.randint(ranks, (size,), generator=draw, device="cpu")
        if size > 4:
            to[to == ranks - 1] = 0  # the last rank gets no row
        factor = 2 + torch.rand((), generator=draw, device="cpu").item()  # no other rank knows it
        inputs.append((rows, to, factor))
    return inputs


def _returned(inputs) -> list:
    factors = torch.tensor([factor for *_, factor in inputs], dtype=torch.float64)
    return [rows * factors[to][:, None] for rows, to, _ in inputs]


write = Exercise(
    name="write",
    task="Fill in the body of `my_layer`: return each row as the rank in `to` has computed it.",
    inputs=_rows,
    reference=_returned,
    sizes=(4, 12),
    words="{} rows on each rank",
    hints=(
        "`order = to.argsort(stable=True)` puts the rows in the order of their ranks, and "
        "`torch.bincount(to, minlength=P)` counts them.",
        "A rank must know how many rows come from each other: send the counts first, with "
        "`collectives.all_to_all(counts)`.",
        "`collectives.all_to_all(rows, sent=..., received=...)` takes lists of numbers. On the way "
        "back the two change places.",
        "Put the rows back into their places: `y[order] = back`.",
    ),
)


# --- repair


def _layers(many: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores [L, N, 4] and chosen experts [L, N] of so many layers.

    Each layer has a favourite of its own, so that all layers together look even.
    """
    draw = torch.Generator("cpu").manual_seed(100 * many)
    logits = torch.randn(many, 16, 4, generator=draw, dtype=torch.float64, device="cpu")
    logits += 3 * torch.eye(4, dtype=torch.float64, device="cpu")[torch.arange(many) % 4, None]
    scores = logits.softmax(-1)
    return scores, scores.argmax(-1)


def _balance(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the balance loss of one layer, from scores [N, 4] and chosen experts [N]."""
    share = torch.bincount(chosen, minlength=4) / len(chosen)
    return 4 * (share * scores.mean(0)).sum()


@dataclass
class _OfLayers(Hints):
    """Compares a loss of several layers with the mean of the layers' own balance losses."""

    task: str = "Repair `my_loss`: return the mean over layers of each layer's balance loss."

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` on one layer and on four, each with another favourite."""
        for many, said in ((1, "one layer"), (4, "four layers")):
            scores, chosen = _layers(many)
            losses = [_balance(*layer) for layer in zip(scores, chosen)]
            try:
                loss = attempt(scores.clone(), chosen.clone())
            except Exception as error:  # the reader's code may raise anything
                return self._not_yet(f"With {said} it failed: {type(error).__name__}: {error}")
            if is_missing(loss):
                return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
            expected = torch.stack(losses).mean()
            wrong = difference(loss, expected, "the loss")
            if wrong:
                right = "With one layer it is right. " if many > 1 else ""
                alone = ", ".join(f"{own:.2f}" for own in losses)
                own = f" The layers alone have {alone}." if many > 1 else ""
                summed = many > 1 and not difference(loss, many * expected, "the loss")
                sum_of = f" That is {many} times the mean." if summed else ""
                return self._not_yet(f"{right}With {said} {wrong}.{sum_of}{own}")
        return Verdict(True, "Solved. Right for one layer and for four.")


repair = _OfLayers(
    name="repair",
    hints=(
        "Which numbers can still be told apart after `scores.flatten(0, 1)`: those of different "
        "tokens, of different layers, or both?",
        "A sum of products is not the product of sums. Which of f, m and f·m may you average over "
        "layers?",
        "`balance` takes the scores and the choices of one layer. Call it once for each layer; "
        "`torch.stack` makes a tensor of a list of losses.",
    ),
)


# --- going further: a rule that keeps the load even


@cache
def _with_bias(seed: int) -> Result:
    """Train with the library's bias, once in a process."""
    return trained(library_rule, seed)


class _MoreThanTheBias(Exception):
    """Says what a rule changed that it must leave."""


def _left_alone(layer: MoE) -> dict:
    """Return what a rule must leave: weights and buffers without the bias, and options."""
    weights = {name: value.clone() for name, value in layer.state_dict().items()}
    bias = weights.pop("gate.bias")
    options = {
        "the shape of the layer's `gate.bias`": tuple(bias.shape),
        "the layer's `gate`": id(layer.gate),
        "the layer's `gate.k`": layer.gate.k,
        "the layer's `capacity`": layer.capacity,
        "the layer's `loss_weights`": dict(layer.loss_weights),
        "which of the layer's parameters are trained": [
            p.requires_grad for p in layer.parameters()
        ],
    }
    return {f"the layer's `{name}`": value for name, value in weights.items()} | options


def _applied(rule: Callable, layer: MoE, counts: torch.Tensor) -> None:
    """Call the rule; raise _MoreThanTheBias where it changes anything but the gate's bias."""
    before = _left_alone(layer)
    rule(layer, counts)
    after = _left_alone(layer)
    for name in before | after:
        old, new = before.get(name), after.get(name)
        equal = torch.equal if isinstance(old, torch.Tensor) else lambda a, b: a == b
        if (old is None) != (new is None) or not equal(old, new):
            raise _MoreThanTheBias(
                f"The rule changes {name}. It may change the values of "
                "`layer.gate.bias` and nothing else."
            )


@dataclass
class Rule(Hints):
    """Judges a rule by drops and loss, as means over three seeds, against the library's bias."""

    task: str = "Fill in the body of `my_rule`: change `layer.gate.bias` by the counts."

    def check(self, rule: Callable | None = None) -> Verdict:
        """Train with the rule and with the bias, and compare what is dropped and the losses."""
        if rule is None:
            return self._open("no rule is there", self.task)
        moved = []

        def watched(layer, counts):
            _applied(rule, layer, counts)
            moved.append(bool(layer.gate.bias.any()))

        try:
            own = []
            for seed in SEEDS:
                own.append(trained(watched, seed))
                if not any(moved):
                    return self._open("the bias is still 0", self.task)
        except _MoreThanTheBias as change:
            return self._not_yet(str(change))
        except Exception as error:
            return self._not_yet(f"The rule failed: {type(error).__name__}: {error}")
        par = [_with_bias(seed) for seed in SEEDS]
        own, par = (Result(*map(mean, zip(*runs))) for runs in (own, par))
        words = (
            f"{own.dropped:.1%} of the points are dropped and the loss is {own.loss:.3f}; with the "
            f"library's bias {par.dropped:.1%} are dropped and it is {par.loss:.3f}."
        )
        better = own.dropped < par.dropped and own.loss < par.loss
        return Verdict(True, f"Solved. {words}") if better else self._not_yet(words)


invent = Rule(
    name="invent",
    hints=(
        "`counts` [E] are the points of each expert in this step. An expert with too many needs a "
        "lower bias.",
        "The library adds the same amount whatever the difference is. What if the step is larger "
        "where the load is further from the mean?",
        "Divide the distance from the mean by the number of all points, so that your rate does not "
        "depend on it. Then try a few rates between 0.01 and 1.",
    ),
)
