"""Measure our optimizers against PyTorch's, in turns in the same processes.

    python tests/bench_optimizers.py [--repeats 30] [--launches 3] [--only adam,adafactor]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
A step is the optimizer's alone: the gradients of a GPT of 4 layers are there.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import lib.single.optimizers.adam_8bit as eight_bits
from lib import World
from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.optimizers import SM3, Adafactor, Adam, Adam8bit, Muon, split_parameters
from tests.bench_data import Figure, keep_what_is_freed, measure_all

SHAPE = GPTShape(width=256, heads=4, sequence=128)
WARM = 3  # steps that are not counted: the first makes the states


def of_all(make: Callable, model):
    """Make an optimizer of all parameters."""
    return make(model.parameters())


def of_matrices(make: Callable, model):
    """Make an optimizer of the matrices of hidden layers, which are Muon's."""
    return make(split_parameters(model)[0])


def with_gradients(make: Callable, parameters: Callable = of_all):
    """Make an optimizer of a GPT that has the gradients of a batch."""
    model = GPT(SHAPE)
    inputs, targets = Batches(2, SHAPE.sequence)[0]
    next_token_loss(model(inputs), targets).backward()
    return parameters(make, model)


def steps_in_turns(
    makers: dict[str, Callable], repeats: int, parameters: Callable = of_all
) -> dict[str, tuple[float, float]]:
    """Step these optimizers in turns: the medians of (clock, CPU) seconds of each."""
    keep_what_is_freed()
    optimizers = {name: with_gradients(make, parameters) for name, make in makers.items()}
    taken: dict[str, list] = {name: [] for name in makers}
    for turn in range(repeats + WARM):
        names = list(makers)
        for name in names if turn % 2 else names[::-1]:  # nobody is always first
            began, worked = time.perf_counter(), time.process_time()
            optimizers[name].step()
            if turn >= WARM:
                both = time.perf_counter() - began, time.process_time() - worked
                taken[name].append(both)
    return {
        name: tuple(statistics.median(times) for times in zip(*each))
        for name, each in taken.items()
    }


def compared(
    options, ours: tuple[str, Callable], theirs: tuple[str, Callable], limit: float | None,
    parameters: Callable = of_all,
):  # fmt: skip
    """Yield two figures, by the clock and in CPU time; without a limit they are printed only."""
    ratios: dict[str, list] = {"step": [], "CPU time of a step": []}
    for _ in range(options.launches):
        with World(1, device="cpu") as world:
            makers = dict([ours, theirs])
            found = world.run(steps_in_turns, makers, options.repeats, parameters)[0]
        for what, a, b in zip(ratios, found[ours[0]], found[theirs[0]]):
            ratios[what].append((a / b, 1e3 * a, 1e3 * b))
    for what, launches in ratios.items():
        ratio, a, b = statistics.median_low(launches)
        title = f"{what} of a GPT of 4 layers, {ours[0]} / {theirs[0]}"
        must = f"at most {limit} times" if limit else "printed only"
        yield Figure(title, a, b, ratio, must, not limit or ratio <= limit)


def adam(options):
    """Our Adam against torch.optim.Adam(foreach=True)."""
    theirs = partial(torch.optim.Adam, foreach=True)
    yield from compared(options, ("our Adam", Adam), ("PyTorch's foreach", theirs), 1.05)


def adafactor(options):
    """Our Adafactor against PyTorch's, as it is by default and with foreach=True."""
    for name, foreach in (("PyTorch's", None), ("PyTorch's foreach", True)):
        theirs = partial(torch.optim.Adafactor, foreach=foreach)
        yield from compared(options, ("our Adafactor", Adafactor), (name, theirs), 0.9)


def sm3(options):
    """Our SM3 against our Adam; there is none in PyTorch."""
    yield from compared(options, ("our SM3", SM3), ("our Adam", Adam), None)


def fused_(w, g, m, v, group, step, room):
    """Do Adam's step in one pass by PyTorch's kernel, in the place of `adam_`, for float32."""
    betas = dict(zip(("beta1", "beta2"), group["betas"]))
    torch._fused_adamw_(
        [w], [g], [m], [v], [], [torch.tensor(step)], lr=group["lr"], **betas, eps=group["eps"],
        weight_decay=group["weight_decay"], amsgrad=False, maximize=False,
    )  # fmt: skip


class Fused8bit(Adam8bit):
    """Adam8bit whose update is PyTorch's fused one; the last bits of weights differ."""

    def update(self, group, parameters):
        with mock.patch.object(eight_bits, "adam_", fused_):
            super().update(group, parameters)


class LookUps(Adam8bit):
    """The four look-ups a number of Adam8bit, and nothing else of its step."""

    def update(self, group, parameters):
        for numel in (p.numel() for p in parameters if p.numel() >= group["smallest"]):
            index = torch.zeros(numel, dtype=torch.int32)
            for signed in (True, False):
                codes = eight_bits.code_map(group["kind"], signed)
                codes.values.view(torch.int32).index_select(0, index)
                codes.words.index_select(0, index)


def adam_8bit(options):
    """Our 8-bit Adam against our fp32 Adam, and what limits it against the same.

    On a CPU we know no way to 2.5 in PyTorch's operations that keeps every code the nearest and
    every weight the same on any number of ranks. In nanoseconds a number, of chunks in the cache of
    a Zen 5 with one thread, the 31 passes take: decoding 0.9, of which look-ups 0.7; Adam's seven
    0.8; encoding 1.7, of which look-ups 0.7. That is 3.4, and our whole Adam takes 1.6 to 1.9. To
    it come weights and gradients from main memory, and 90 us for the calls of each chunk, 0.5.

    Measured in CPU time beside many other programs: 3.0 to 3.4, where it was 3.4 to 3.9 before.
    The second row has PyTorch's fused kernel for the update, one pass in the place of seven: 2.7.
    But it rounds the last numbers of a run otherwise, where they fill no vector of the processor,
    so a parameter that ranks have in parts would get other codes. A table of all pairs of codes
    halves the look-ups of decoding, and made them slower: its 512 KiB push out all else.
    """
    adam = "our Adam", Adam
    yield from compared(options, ("our 8-bit Adam", Adam8bit), adam, 2.5)
    yield from compared(options, ("8-bit Adam with PyTorch's fused update", Fused8bit), adam, None)
    yield from compared(options, ("four look-ups a number alone", LookUps), adam, None)


def muon(options):
    """Our Muon against PyTorch's, on the matrices of hidden layers."""
    rivals = ("our Muon", Muon), ("PyTorch's Muon", torch.optim.Muon)
    yield from compared(options, *rivals, None, of_matrices)


def kept(options):
    """Bytes of states, measured, against the formula, and how many times fewer than Adam's."""
    whole = state_bytes("adam", SHAPE)
    makers = {"adam": Adam, "adafactor": Adafactor, "sm3": SM3, "adam8bit": Adam8bit}
    for name, make in makers.items():
        optimizer = with_gradients(make)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        found, predicted = sum(value.nbytes for value in states), state_bytes(name, SHAPE)
        title = f"bytes of the states of {name} ({whole / found:.1f} times fewer than Adam's)"
        yield Figure(title, found / 1e6, predicted / 1e6, found / predicted, "the formula",
                     found == predicted, "MB")  # fmt: skip


def main():
    """Measure what the options ask for."""
    measure_all((adam, adafactor, sm3, adam_8bit, muon, kept), __doc__, repeats=30)


if __name__ == "__main__":
    main()
