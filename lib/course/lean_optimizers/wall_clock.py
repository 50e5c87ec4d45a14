"""An experiment by the wall clock: steps of optimizers beside the time to move their bytes."""

import torch

from lib.course.stopwatch import fastest_in_turns
from lib.predict.operations import Operation
from lib.predict.shape import GPTShape
from lib.predict.step import seconds
from lib.ranks.calibrate import calibrate
from lib.single import GPT, Batches, next_token_loss
from lib.single.optimizers import Adafactor, Adam8bit, AdamW

SHAPE = GPTShape(width=256, heads=4, sequence=128)
# optimizer -> how it is made, and the bytes that a step must move for each weight
OPTIMIZERS = {
    "AdamW": (AdamW, 28),  # reads w, g, m, v; writes w, m, v
    "PyTorch's AdamW": (lambda p: torch.optim.AdamW(p, foreach=True), 28),
    "Adafactor": (Adafactor, 24),  # reads g three times, w twice; writes w
    "8-bit Adam": (Adam8bit, 16),  # reads w, g and two codes; writes w and two codes
}


def stepper(name: str):
    """Return a function that makes a step of an optimizer, with the gradients of a batch."""
    model = GPT(SHAPE)
    inputs, targets = Batches(2, SHAPE.sequence)[0]
    next_token_loss(model(inputs), targets).backward()
    return OPTIMIZERS[name][0](model.parameters()).step


def steps(repeats: int = 20) -> dict[str, float]:
    """Return the seconds of the fastest step of each optimizer on this rank, in turns."""
    return fastest_in_turns({name: stepper(name) for name in OPTIMIZERS}, repeats)


def predicted(name: str, machine) -> float:
    """Return the seconds in which this machine moves the bytes of a step of an optimizer."""
    return seconds([Operation("add", 0, OPTIMIZERS[name][1] * SHAPE.numel)], machine)


def steps_on(world, repeats: int = 20) -> str:
    """Calibrate this machine, and write the predicted and measured milliseconds of each step."""
    machine = calibrate(world, quiet=True)
    by_rank = world.run(steps, repeats)
    lines = [f"{'ms of a step':<17}{'bytes':>6}{'predicted':>11}{'measured':>10}"]
    for name, (_, nbytes) in OPTIMIZERS.items():
        ms = 1e3 * predicted(name, machine), 1e3 * max(rank[name] for rank in by_rank)
        lines.append(f"{name:<17}{nbytes:>6}{ms[0]:>11.2f}{ms[1]:>10.2f}")
    return "\n".join(lines)
