"""Functions that chapter 2 uses repeatedly: small trainings, rounds of gossip, words."""

import re
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from lib.course.checks.sent_bytes import sent
from lib.parallel.data import DistributedDataParallel, LocalSGD
from lib.parallel.data.gossip import mixed
from lib.predict.data import compression, gossip
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share
from lib.single.batches import COURSE

SMALL_GPT = GPTShape(width=32, layers=1, heads=2, sequence=16)
GPT_SHAPES = [parameter.shape for parameter in SMALL_GPT.parameters]
NETWORK, ROWS = MLPShape((6, 24, 24, 24, 3)), 8
SEEDS = (0, 1, 2)
D = 64  # columns of the table of word vectors


# --- a task that is learned in a second


def samples(number: int, worker: int, seed: int):
    """Draw a batch: inputs x [8, 6] and targets y [8, 3], with another one for each worker."""
    generator = torch.Generator("cpu").manual_seed(1_000_000 * seed + 1000 * number + worker)
    x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64, device="cpu")
    x = x.to(torch.get_default_device())  # drawn on the CPU, for equal numbers on every device
    return x, torch.sin(x[:, :3]) + x[:, 3:]


def network(seed: int) -> MLP:
    """Build the network that learns the task, with equal weights on every rank."""
    return MLP(NETWORK, seed).double()


def loss(model, worker: int, number: int, seed: int):
    """Return the loss of a worker's batch of that number."""
    x, y = samples(number, worker, seed)
    return mean_squares(model(x), y)


def test_loss(model, seed: int) -> float:
    """Return the loss on 240 samples that are not trained on."""
    x, y = (torch.cat(parts) for parts in zip(*(samples(n, 7, seed) for n in range(900, 930))))
    with torch.no_grad():
        return mean_squares(model(x), y).item()


def spread(values) -> str:
    """Write the mean of several runs, with the smallest and the largest: 0.36 (0.34 to 0.38)."""
    values = list(values)
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def plain(workers: int, seed: int, momentum: float = 0.0) -> float:
    """Train on one device with the mean of all workers' gradients; return the test loss."""
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum)
    for number in range(64):
        optimizer.zero_grad()
        losses = [loss(model, worker, number, seed) for worker in range(workers)]
        (sum(losses) / workers).backward()
        optimizer.step()
    return test_loss(model, seed)


def learn(make, seed: int) -> float:
    """Train on each rank with `make(model, optimizer)`, which steps and communicates."""
    model = network(seed)
    method = make(model, torch.optim.SGD(model.parameters(), 0.05))
    for number in range(64):
        method.optimizer.zero_grad()
        loss(model, dist.get_rank(), number, seed).backward()
        method.step()
    return test_loss(model, seed)


def repeat(method, gradient, steps: int):
    """Exchange the same gradient in each step by `method(gradient, residual, k)`, with k = 1.

    Return what all steps sent, and what is kept.
    """
    total, residual = torch.zeros_like(gradient), torch.zeros_like(gradient)
    for _ in range(steps):
        mean, residual = method(gradient, residual, 1)
        total += mean
    return total.tolist(), residual.tolist()


def averaged(model, optimizer, every: int, outer_momentum: float | None) -> LocalSGD:
    """Build local SGD; with a number for `outer_momentum`, it has an outer optimizer as DiLoCo's.

    DiLoCo's is SGD with rate 0.7 and Nesterov momentum 0.9; with 0 it has no momentum.
    """
    if outer_momentum is None:
        return LocalSGD(model, optimizer, every)
    outer = torch.optim.SGD(
        model.parameters(), 0.7, momentum=outer_momentum, nesterov=outer_momentum > 0
    )
    return LocalSGD(model, optimizer, every, outer=outer)


def averaging_every(every: int, world, outer_momentum=None) -> tuple[list[float], int]:
    """Train with local SGD from each seed; return the losses, and the bytes that rank 0 sent.

    Raises AssertionError where these are not the predicted ones.
    """
    make = partial(averaged, every=every, outer_momentum=outer_momentum)
    runs = [world.record(learn, make, seed) for seed in SEEDS]
    nbytes = sent(runs[0].where(op="all_reduce"))[0]
    shapes = [parameter.shape for parameter in NETWORK.parameters]
    calls = compression.local_sgd(shapes, 64, every, itemsize=8)
    assert nbytes == compression.sent(calls, len(world))
    return [run.results[0] for run in runs], nbytes


# --- gossip


def rounds_of_gossip(kind: str, rounds: int, draws: int) -> torch.Tensor:
    """Mix 100 random numbers for some rounds, for several draws of pairs: [draws, rounds, 100].

    The entry of a round is what this rank held before it.
    """
    generator, by_draw = torch.Generator("cpu").manual_seed(dist.get_rank()), []
    for seed in range(draws):
        x, seen = torch.randn(100, generator=generator, dtype=torch.float64, device="cpu"), []
        for number in range(rounds):
            seen.append(x)
            x = mixed(x, kind, number, seed=seed)
        by_draw.append(torch.stack(seen))
    return torch.stack(by_draw)


def disagreement(by_rank) -> list[float]:
    """Return √(Σ_r |x_r - mean|²) before each round, the root mean square over the draws.

    `by_rank` holds a tensor [draws, rounds, N] of each rank. The first round counts as 1.
    """
    x = torch.stack(list(by_rank))
    left = (x - x.mean(0)).square().sum(-1).sum(0).mean(0).sqrt()
    return (left / left[0]).tolist()


def agreement(world, rounds: int) -> tuple[dict, dict]:
    """Return the disagreement by round: recorded on `world`, and predicted, there and on 32."""
    numbers, points, lines = range(1, rounds + 1), {}, {}
    for kind, draws in (("ring", 1), ("pairs", 20)):
        left = disagreement(world.run(rounds_of_gossip, kind, rounds + 1, draws))
        points[f"{kind}, {world.size} ranks"] = numbers, left[1:]
        for ranks in (world.size, 32):
            shrinks = gossip.shrinks_by(kind, ranks)
            lines[f"{kind}, {ranks} ranks"] = numbers, [shrinks**t for t in numbers]
    return points, lines


# --- words


def course_words() -> tuple[torch.Tensor, int]:
    """Return the course's text as numbers of words, and how many different words there are."""
    words = re.findall(r"\w+|[^\w\s]", COURSE.read_text(encoding="utf-8").lower())
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return torch.tensor([numbers[word] for word in words], device="cpu"), len(numbers)


def word_shares(ranks: int, tokens: int) -> tuple[list[torch.Tensor], int]:
    """Return the first words of the text, `tokens` for each rank, and the number of all words."""
    words, count = course_words()
    return list(words[: ranks * tokens].split(tokens)), count


def word_gradient(words, rows: int, is_sparse=False, wrap=lambda model: model) -> torch.Tensor:
    """Return the gradient of a table of word vectors [rows, 64] for a share of the words."""
    model = nn.Sequential(nn.Embedding(rows, D, sparse=is_sparse), nn.Linear(D, 1))
    for p in model.parameters():
        p.data.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    wrap(model)(words).square().mean().backward()
    return model[0].weight.grad.to_dense()


def word_gradient_on_rank(shares, rows: int) -> torch.Tensor:
    """Return the mean over ranks of the same gradient, which travels as indices and values."""
    return word_gradient(shares[dist.get_rank()], rows, True, DistributedDataParallel)


# --- matrices


def matrix_and_start() -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a matrix [64, 64] whose columns shrink by 0.7 from one to the next, and a Q [64, 2]."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = [torch.randn(64, k, generator=generator, device="cpu") for k in (64, 2)]
    return drawn[0] * 0.7 ** torch.arange(64.0, device="cpu"), drawn[1]


def best_error(matrix, rank: int) -> float:
    """Return the relative error of the best product of that rank, from the singular values."""
    values = torch.linalg.svdvals(matrix)
    return (values[rank:].norm() / values.norm()).item()


# --- a small GPT


def small_gpt(seed: int = 0) -> GPT:
    """Build the GPT on which compressors are tried."""
    return GPT(SMALL_GPT, seed)


def gpt_loss(ddp, number: int, seed: int = 0) -> torch.Tensor:
    """Return the loss of this rank's share of batch `number`, 16 samples of the course's text."""
    batch = Batches(16, sequence=16, seed=seed)[number]
    tokens, targets = share(batch, dist.get_rank(), dist.get_world_size())
    return next_token_loss(ddp(tokens), targets)


def train_gpt(hook, seed: int, steps: int = 30, sgd_rate: float | None = None) -> float:
    """Train the GPT with `hook`, by AdamW or by SGD; return the mean loss of its last five steps.

    The hook must be new: what it keeps belongs to one model. `sgd_rate` is the rate of plain SGD.
    """
    ddp = DistributedDataParallel(small_gpt(seed), hook=hook)
    if sgd_rate is None:
        optimizer = torch.optim.AdamW(ddp.parameters(), 3e-3)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), sgd_rate)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        value = gpt_loss(ddp, number, seed)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    last = torch.stack(losses[-5:]).mean()
    dist.all_reduce(last)
    return last.item() / dist.get_world_size()


def won_back(losses: dict) -> float:
    """Return the share of the loss added by top-k that error feedback wins back.

    `losses` holds the losses of each seed by the names "plain", "no feedback" and "top 1 %".
    """
    plain, alone, fed_back = (sum(losses[name]) for name in ("plain", "no feedback", "top 1 %"))
    return (alone - fed_back) / (alone - plain)


def last_step(ledger, calls: int) -> list[tuple[str, int]]:
    """Return (operation, bytes) of rank 0's last `calls` collectives before the mean of losses."""
    rows = list(ledger.where(rank=0, lane="comm"))[-1 - calls : -1]
    return [(row.op, row.bytes) for row in rows]


def four_steps(ddp) -> None:
    """Run forward and backward four times, without an optimizer."""
    for number in range(4):
        gpt_loss(ddp, number).backward()


def in_words(rows) -> str:
    """Write rows or calls as "all_reduce 1,024 bytes, all_gather 64 bytes"."""
    return ", ".join(f"{row.op} {row.bytes:,} bytes" for row in rows)
