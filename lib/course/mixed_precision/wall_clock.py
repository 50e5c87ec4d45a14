"""An experiment by the wall clock: a step in bf16 and in fp32, beside the prediction for each."""

from collections.abc import Callable

import torch

from lib.course.stopwatch import fastest_in_turns
from lib.predict.shape import GPTShape
from lib.predict.step import backward, forward, update
from lib.ranks.calibrate import calibrate
from lib.single import GPT, Batches, next_token_loss

SHAPE = GPTShape(width=128, heads=4, layers=8, sequence=128)
SAMPLES = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def trainer(name: str) -> Callable[[], None]:
    """Return a function that makes a training step with weights and activations in a format."""
    model = GPT(SHAPE).to(DTYPES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)
    inputs, targets = Batches(SAMPLES, sequence=SHAPE.sequence)[0]

    def step():
        optimizer.zero_grad()
        next_token_loss(model(inputs).float(), targets).backward()
        optimizer.step()

    return step


def steps(repeats: int = 20) -> dict[str, float]:
    """Return the seconds of the fastest step in each format on this rank, in turns."""
    return fastest_in_turns({name: trainer(name) for name in DTYPES}, repeats)


def predicted(machine) -> dict[str, float]:
    """Return the seconds of the same steps on a calibrated machine, by the rates of each format."""
    seconds = {}
    for name, dtype in DTYPES.items():
        size = SHAPE, SAMPLES, None, dtype.itemsize
        operations = [*forward(*size), *backward(*size), *update(SHAPE, dtype.itemsize)]
        seconds[name] = sum(machine.compute(op.flop, op.bytes, name) for op in operations)
    return seconds


def disturbed(rows: dict[str, float], measured: dict[str, float]) -> bool:
    """Return whether a prediction is off by more than a factor of three from its measurement."""
    return any(not 1 / 3 < rows[name] / measured[name] < 3 for name in measured)


def step_on(world) -> str:
    """Calibrate this machine, and write predicted and measured times of both steps.

    Where they differ more than threefold the text says so in place of times.
    """
    by_rank = world.run(steps)
    measured = {name: max(rank[name] for rank in by_rank) for name in DTYPES}
    rows = predicted(calibrate(world, quiet=True))
    if disturbed(rows, measured):
        return (
            "Prediction and measurement differ more than\n"
            "threefold, so this machine is busy, or it was\n"
            "when it was calibrated. Later call\n"
            "calibrate(one, again=True), and try again."
        )
    lines = [f"{'ms of a step':<14}{'predicted':>10}{'measured':>10}{'error':>7}"]
    for name in DTYPES:
        error = f"{rows[name] / measured[name] - 1:+.0%}"
        lines.append(f"{name:<14}{1e3 * rows[name]:>10.1f}{1e3 * measured[name]:>10.1f}{error:>7}")
    ratios = [times["fp32"] / times["bf16"] for times in (rows, measured)]
    lines.append(f"{'fp32 / bf16':<14}{ratios[0]:>9.2f}x{ratios[1]:>9.2f}x")
    return "\n".join(lines)
