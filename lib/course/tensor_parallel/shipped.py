"""Two mistakes of tensor parallelism that raise no error, each trained beside what is right.

    attention cut through its heads    H·tp softmaxes over K/tp numbers instead of H over K
    a norm of a rank's own gradients   another one on each rank, so replicated weights drift apart

Both train a GPT in 64-bit numbers, so that what is printed is the same everywhere.
"""

import torch
import torch.distributed as dist
from torch import nn

from lib.course.tensor_parallel.lessons import batch_of, forward_backward, gpt
from lib.parallel.tensor import assert_replicated, clip_grad_norm_, tensor_parallel
from lib.predict.shape import GPTShape
from lib.single import GPT
from lib.single.models import Attention, causal

REPEAT = GPTShape(vocabulary=16, sequence=16, width=32, heads=4, layers=1)
STEPS, LAST, SEEDS = 60, 10, (0, 1, 2)


# --- attention cut between heads, and through them


def losses_of_cuts(world, seeds=SEEDS) -> str:
    """Train with heads whole and with heads cut, for each seed; write the losses at the end.

    All ranks of a mistaken program together compute what one device does that cuts its heads. So
    the trainings run on one device, and the first steps on the ranks are compared with them.
    """
    lines, alike = ["loss of the last steps, seeds " + " ".join(map(str, seeds))], True
    for cut in (False, True):
        losses = [trained(seed, cut, world.size) for seed in seeds]
        first = world.run(losses_on_ranks, seeds[0], cut)
        whole = torch.tensor(losses[0][: len(first[0])], dtype=torch.float64)
        alike &= all(torch.allclose(torch.tensor(own).to(whole), whole, rtol=1e-6) for own in first)
        ends = " ".join(f"{sum(one[-LAST:]) / LAST:.3f}" for one in losses)
        lines.append(f"  heads {'cut' if cut else 'whole':<7}{ends}")
    return "\n".join([*lines, f"  first steps as on the ranks: {alike}"])


def trained(seed: int, cut: bool, parts: int, steps: int = STEPS, split=lambda m: m) -> list[float]:
    """Train a GPT to repeat the token before; return the loss of every step.

    With `cut` each head is cut into `parts`, as by a program that still counts all H heads on each
    rank. `split(model)` may divide the model.
    """
    device = torch.get_default_device()
    model = split(GPT(REPEAT, seed).double().to(device))
    for part in model.modules():
        if isinstance(part, Attention) and cut:
            part.core = through_heads(parts)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False), []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(forward_backward(model, *repeated(step, seed, device)))
        optimizer.step()
    return torch.stack(losses).tolist()


def losses_on_ranks(seed: int, cut: bool, steps: int = 5) -> list[float]:
    """Do the first steps of `trained` with a GPT that is split over the ranks."""
    return trained(seed, cut, dist.get_world_size(), steps, tensor_parallel)


def repeated(step: int, seed: int, device=None, samples: int = 16):
    """Return random tokens, and as labels the tokens before them: [samples, 16] each."""
    draw = torch.Generator("cpu").manual_seed(1000 * seed + step)
    sizes = samples, REPEAT.sequence
    tokens = torch.randint(REPEAT.vocabulary, sizes, generator=draw, device="cpu").to(device)
    labels = tokens.roll(1, 1)
    labels[:, 0] = -100  # nothing stands before the first token
    return tokens, labels


def through_heads(parts: int):
    """Return a core of attention that cuts every head of K numbers into `parts` of K/parts."""

    def core(q, k, v, dropout: float = 0.0):
        q, k, v = (t.unflatten(-1, (parts, -1)).transpose(2, 3).flatten(1, 2) for t in (q, k, v))
        y = causal(q, k, v, dropout)
        return y.unflatten(1, (-1, parts)).transpose(2, 3).flatten(3)

    return core


# --- clipping


def norms_when_clipped(world, shape: GPTShape) -> str:
    """Train a step with each way to clip; write the norms by rank, and what is replicated then."""
    ways = ("PyTorch's, own norm", nn.utils.clip_grad_norm_), ("the library's", clip_grad_norm_)
    model = gpt(shape)
    forward_backward(model, *batch_of(shape))
    plain = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    lines = [f"{'plain GPT':<21}{plain:.4f}"]
    for name, clip in ways:
        norms, replicated = zip(*world.run(clipped, shape, clip))
        lines.append(f"{name:<21}" + " ".join(f"{norm:.4f}" for norm in norms))
        lines.append(f"  replicas still equal: {all(replicated)}")
    return "\n".join(lines)


def clipped(shape: GPTShape, clip, max_norm: float = 0.1) -> tuple[float, bool]:
    """Train a step whose gradients `clip` scales; return its norm, and whether replicas are equal.

    `clip(what, max_norm)` gets the model, or for PyTorch's function its parameters.
    """
    model = tensor_parallel(gpt(shape))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forward_backward(model, *batch_of(shape))
    norm = clip(model if clip is clip_grad_norm_ else model.parameters(), max_norm)
    optimizer.step()
    try:
        assert_replicated(model)
    except AssertionError:
        return norm.item(), False
    return norm.item(), True
