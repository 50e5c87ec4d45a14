"""What chapter 11 runs and prints: real moments of a small GPT, and tables of what represents them.

`moments` and `gradients` come from trainings of the GPT of training.py, on the CPU with one thread,
so that their digits do not depend on the device.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.course.lean_optimizers.training import MAKERS, RATES, SEEDS, SHAPE, final, trained
from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.predict.sharded.models import model as model_shape
from lib.ranks.memory import Memory
from lib.single import GPT, Batches, next_token_loss
from lib.single.optimizers import SM3, Adafactor, AdamW, Muon, split_parameters
from lib.single.optimizers.code_maps import code_map

RECORDED = GPTShape(sequence=64, width=128, heads=4, layers=4)
LLAMA = "Llama 3 8B"
MOMENT_STEPS = 100
MATRICES = {
    "tokens": "blocks.0.tokens.weight",
    "qkv": "blocks.1.attention.qkv.weight",
    "up": "blocks.1.mlp.up.weight",
    "down": "blocks.1.mlp.down.weight",
}


# --- what Adam keeps


def llama_gb(optimizer: str = "adamw", **options) -> float:
    """Return the GB that an optimizer keeps for Llama 3 8B in fp32 states; for options, `state_bytes`."""
    return state_bytes(optimizer, model_shape(LLAMA), **options) / 1e9


def with_memory() -> int:
    """Run two steps of a GPT with AdamW on this rank under `Memory`, and return the peak in bytes."""
    model = GPT(RECORDED)
    optimizer = AdamW(model.parameters())
    batches = Batches(1, RECORDED.sequence)
    with Memory(model, optimizer) as memory:
        for step in range(2):
            inputs, targets = batches[step]
            model.zero_grad()
            next_token_loss(model(inputs), targets).backward()
            optimizer.step()
    return memory.peak


# --- real moments and gradients


class Moments(NamedTuple):
    """Holds Adam's two moments of a parameter: averages of its gradients and of their squares."""

    m: Tensor
    v: Tensor


@cache
def moments() -> dict[str, Moments]:
    """Return Adam's moments of the matrices of a small GPT after 100 steps, by their short names."""
    model, optimizer = _kept(AdamW)
    named = dict(model.named_parameters())
    states = {name: optimizer.state[named[full]] for name, full in MATRICES.items()}
    return {name: Moments(state["exp_avg"], state["exp_avg_sq"]) for name, state in states.items()}


@cache
def gradients(name: str = "up", steps: int = 20) -> list[Tensor]:
    """Return the gradients of a matrix in the first steps of a training with AdamW."""
    found = []

    class Keeping(AdamW):
        def step(self, closure=None):
            (own,) = [p for p in parameters if p[0] == MATRICES[name]]
            found.append(own[1].grad.clone())
            return super().step(closure)

    parameters = []  # of the model, by name

    def make(model, rate):
        parameters.extend(model.named_parameters())
        return [Keeping(model.parameters(), lr=rate)]

    trained(make, 0, RATES["adamw"], steps)
    return found


def _kept(optimizer: type) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train the small GPT for 100 steps; return it and its optimizer with all that it keeps."""
    kept = []

    def make(model, rate):
        kept.append((model, optimizer(model.parameters(), lr=rate)))
        return [kept[0][1]]

    trained(make, 0, RATES["adamw"], MOMENT_STEPS)
    return kept[0]


# --- factors, covers, blocks


def factor_table(rank_one) -> str:
    """Write how far steps by `rank_one(v)` are from steps by v, for the matrices of `moments`.

    A step is g/√v. The percentiles are those of √(v/rank_one(v)) over the weights with v > 0: how
    many times as long a step becomes.
    """
    lines = [f"{'matrix':<8}{'numbers':>8}{'kept':>6}  times as long: 5, 50, 95 %"]
    for name, (_, v) in moments().items():
        used = v > 0
        longer = (v[used] / rank_one(v)[used]).sqrt()
        low, middle, high = percentiles(longer)
        cells = f"{low:>7.2f}{middle:>6.2f}{high:>6.2f}"
        lines.append(f"{name:<8}{v.numel():>8,}{sum(v.shape):>6}{cells:>26}")
    return "\n".join(lines)


def percentiles(numbers: Tensor, shares=(0.05, 0.5, 0.95)) -> list[float]:
    """Return the numbers below which these shares of all numbers lie."""
    ordered = numbers.flatten().sort().values
    return [ordered[round(share * (len(ordered) - 1))].item() for share in shares]


def bounds_table() -> str:
    """Write how far the bounds of SM3-I and SM3-II lie above Adagrad's sums of real squares."""
    lines = ["steps   SM3-I: 5, 50, 95 %   SM3-II: 5, 50, 95 %"]
    squares = [gradient.square() for gradient in gradients()]
    total = torch.zeros_like(squares[0])
    first = second = (total.new_zeros(len(total), 1), total.new_zeros(1, total.shape[1]))
    for step, square in enumerate(squares, 1):
        total = total + square
        first = tuple(old + square.amax(dim, True) for old, dim in zip(first, (1, 0)))
        nu = torch.minimum(*second) + square
        second = nu.amax(1, True), nu.amax(0, True)
        if step in (1, 5, 20):
            ratios = [(bound / total).sqrt() for bound in (torch.minimum(*first), nu)]
            cells = ["".join(f"{p:>6.1f}" for p in percentiles(ratio)) for ratio in ratios]
            lines.append(f"{step:>5}{cells[0]:>21}{cells[1]:>23}")
    return "\n".join(lines)


def sm3_weights(steps: int = 5) -> Tensor:
    """Return a matrix of zeros after steps of the library's SM3-I, without momentum, at rate 0.1."""
    weight = nn.Parameter(torch.zeros_like(gradients()[0]))
    optimizer = SM3([weight], lr=0.1, momentum=0.0, version="I")
    for gradient in gradients()[:steps]:
        weight.grad = gradient
        optimizer.step()
    return weight.detach()


def code_table() -> str:
    """Write what 8 bits make of real second moments: which become 0, and how far others are off."""
    lines = ["map      a maximum for   become 0   median error"]
    v = moments()["tokens"].v.flatten()
    v = v[: v.numel() // 256 * 256]
    for kind in ("linear", "dynamic"):
        for block, words in ((v.numel(), "all"), (256, "each 256")):
            codes = code_map(kind, signed=False).to(v.device)
            again = codes.decode(*codes.encode(v, block), block)
            used = v > 0
            lost = ((again == 0) & used).sum() / used.sum()
            kept = again > 0
            off = percentiles((again[kept] / v[kept] - 1).abs(), (0.5,))[0]
            lines.append(f"{kind:<9}{words:<13}{lost:>11.1%}{off:>15.1%}")
    return "\n".join(lines)


# --- PyTorch's own


def pytorchs_table(steps: int = 5) -> str:
    """Write how far our optimizers are from PyTorch's after steps of the small GPT."""
    pairs = {
        "AdamW": (AdamW, torch.optim.AdamW, {"foreach": True}),
        "AdamW, fused": (AdamW, torch.optim.AdamW, {"fused": True}),
        "Adafactor": (Adafactor, torch.optim.Adafactor, {}),
        "Muon": (Muon, torch.optim.Muon, {}),
    }
    lines = [f"{'':<16}{'largest difference':>20}"]
    for name, (ours, theirs, options) in pairs.items():
        far = _apart(_stepped(ours, {}, steps), _stepped(theirs, options, steps))
        lines.append(f"{name:<16}{difference(far):>20}")
    return "\n".join(lines)


def difference(far: float) -> str:
    """Write a relative difference; one that rounding explains is called so."""
    return "none" if far == 0 else "rounding" if far < 1e-5 else f"{far:.0e}"


def _stepped(make, options: dict, steps: int) -> list[Tensor]:
    """Return the weights that an optimizer has trained for a few steps."""
    found = []

    def maker(model, rate):
        names = {name for name, _ in model.named_parameters() if not name.endswith("qkv.bias")}
        trained_ones = [p for name, p in model.named_parameters() if name in names]
        if make in (Muon, torch.optim.Muon):
            trained_ones, _ = split_parameters(model)
        found.extend(trained_ones)
        return [make(trained_ones, lr=rate, **options)]

    trained(maker, 0, 1e-2, steps)
    return [weight.detach() for weight in found]


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest distance of two weights, each divided by the root of its mean square."""
    return max(
        ((a - b).abs().max() / b.square().mean().sqrt().clamp(min=1e-8)).item()
        for a, b in zip(ours, theirs, strict=True)
    )


def kept(name: str) -> int:
    """Return the bytes of all that an optimizer of `MAKERS` keeps after a step of the small GPT."""
    made = []

    def make(model, rate):
        made.extend(MAKERS[name](model, rate))
        return made

    trained(make, 0, RATES[name], 1)
    states = [state for one in made for state in one.state.values()]
    return sum(value.nbytes for state in states for value in state.values())


# --- break it


def uncorrected(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return an AdamW that corrects no bias: its counters begin where 1 − βᵗ is 1."""
    optimizer = AdamW(model.parameters(), lr=rate)
    for parameter in model.parameters():
        zeros = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        optimizer.state[parameter] = {"step": torch.tensor(1e6), **zeros}
    return [optimizer]


def without_correction(steps: int = 30) -> str:
    """Write losses with and without the correction of bias at two rates, means of three seeds."""
    places = (2, 5, 10, 20, steps)
    lines = ["rate   loss of step" + "".join(f"{place:>6}" for place in places)]
    for rate in (RATES["adamw"], 10 * RATES["adamw"]):
        for name, optimizer in (("corrected", "adamw"), ("forgotten", uncorrected)):
            losses = [trained(optimizer, seed, rate, steps) for seed in SEEDS]
            means = [sum(own[place - 1] for own in losses) / len(losses) for place in places]
            cells = "".join(f"{mean:>6.2f}" for mean in means)
            lines.append(f"{rate:<7}{name:<12}{cells}")
    return "\n".join(lines)


def longer_without_correction(t: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    """Return how many times as long Adam's step t is without the correction, for equal gradients."""
    return (1 - beta1**t) / math.sqrt(1 - beta2**t)


def ends(runs: dict[int, list[float]]) -> str:
    """Write the loss at the end of each seed's training."""
    return ", ".join(f"seed {seed}: {final(losses):.2f}" for seed, losses in runs.items())
