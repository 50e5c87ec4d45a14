"""An experiment by the wall clock: a step with every block computed again, beside a prediction."""

from statistics import median

import torch

from lib.course.stopwatch import seconds_of
from lib.predict.shape import GPTShape
from lib.predict.step import backward, forward, seconds, update
from lib.ranks.calibrate import calibrate
from lib.single import GPT, Batches, next_token_loss
from lib.single.recompute import recompute

SHAPE = GPTShape(width=128, heads=4, layers=8, sequence=128)
SAMPLES = 4


def steps(policy: str, repeats: int = 10) -> list[float]:
    """Return the seconds of training steps by a policy on this rank, with plain SGD."""
    model = recompute(GPT(SHAPE), policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)
    inputs, targets = Batches(SAMPLES, sequence=SHAPE.sequence)[0]

    def step():
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()

    return seconds_of(step, repeats, uncounted=2)


def compared(world, machine, repeats: int = 10) -> dict[str, tuple[float, float]]:
    """Return policy -> (predicted, measured) seconds of a step, each rank doing the same."""
    found = {}
    for policy in ("none", "all"):
        operations = [*forward(SHAPE, SAMPLES), *backward(SHAPE, SAMPLES), *update(SHAPE)]
        if policy == "all":
            operations += forward(SHAPE, SAMPLES)
        by_rank = world.run(steps, policy, repeats)
        measured = median(map(max, zip(*by_rank)))
        found[policy] = seconds(operations, machine), measured
    return found


def step_on(world) -> str:
    """Calibrate this machine, and write what `compared` gives for both policies."""
    found = compared(world, calibrate(world, quiet=True))
    lines = [f"{'ms of a step':<14}{'predicted':>10}{'measured':>10}{'error':>7}"]
    for policy, (predicted, measured) in found.items():
        error = f"{predicted / measured - 1:+.0%}"
        lines.append(f"{policy:<14}{1e3 * predicted:>10.1f}{1e3 * measured:>10.1f}{error:>7}")
    longer = [found["all"][n] / found["none"][n] - 1 for n in (0, 1)]
    lines.append(f"{'longer by':<14}{longer[0]:>10.0%}{longer[1]:>10.0%}")
    return "\n".join(lines)
