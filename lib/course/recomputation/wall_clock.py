"""An experiment by the wall clock: a step with every block computed again, beside a prediction."""

import torch

from lib.course.stopwatch import fastest_in_turns
from lib.predict.shape import GPTShape
from lib.predict.step import backward, forward, seconds, update
from lib.ranks.calibrate import calibrate
from lib.single import GPT, Batches, next_token_loss
from lib.single.recompute import recompute

SHAPE = GPTShape(width=128, heads=4, layers=8, sequence=128)
SAMPLES = 4


POLICIES = ("none", "all")


def trainer(policy: str):
    """Return a function that makes a training step by a policy, with plain SGD."""
    model = recompute(GPT(SHAPE), policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)
    inputs, targets = Batches(SAMPLES, sequence=SHAPE.sequence)[0]

    def step():
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def steps(repeats: int = 20) -> dict[str, float]:
    """Return the seconds of the fastest step by each policy on this rank, in turns."""
    return fastest_in_turns({name: trainer(name) for name in POLICIES}, repeats)


def compared(world, machine, repeats: int = 20) -> dict[str, tuple[float, float]]:
    """Return policy -> (predicted, measured) seconds of a step on the slowest rank."""
    once = [*forward(SHAPE, SAMPLES), *backward(SHAPE, SAMPLES), *update(SHAPE)]
    again = [*once, *forward(SHAPE, SAMPLES)]
    predicted = {"none": seconds(once, machine), "all": seconds(again, machine)}
    by_rank = world.run(steps, repeats)
    return {
        policy: (predicted[policy], max(rank[policy] for rank in by_rank)) for policy in POLICIES
    }


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
