"""What the cells of chapter 10 call: errors of gradients and of sums, bytes, and tables."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.course.data_parallel.lessons import after_barrier
from lib.course.mixed_precision.networks import SMALL_GPT, Network, text
from lib.course.mixed_precision.training import RECIPES, SEEDS, final_loss, losses
from lib.draw import curve
from lib.ledger import Ledger
from lib.predict.collectives.formulas import collective
from lib.predict.precision.published import bert_large
from lib.single import GPT, next_token_loss, share
from lib.single.formats import BF16, FP16, FP32, FloatFormat
from lib.single.precision import LossScaler, MasterWeights, RoundedWeights
from lib.single.precision.accumulate import matmul_in, relative_error
from lib.single.precision.summing_order import all_reduced
from lib.single.recompute import kept_bytes

OVERFLOWS = (50, 51, 120, 121, 122)  # steps of which a gradient is made infinite

# --- gradients that are lost


def scales(scaler, overflows: Sequence[int] = OVERFLOWS) -> list[float]:
    """Run 200 steps, with an infinite gradient in some, and return the scale after each."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    values = []
    for step in range(200):
        optimizer.zero_grad()
        slope = math.inf if step in overflows else 1.0
        scaler.scale((weight * slope).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        values.append(scaler.factor if isinstance(scaler, LossScaler) else scaler.get_scale())
    return values


def draw_losses(**runs: Sequence[float]):
    """Draw the losses of runs by step, each the mean over ten steps."""
    lines = {
        name: (range(10, len(values) + 1, 10),
               [sum(values[n : n + 10]) / 10 for n in range(0, len(values), 10)])
        for name, values in runs.items()
    }  # fmt: skip
    return curve(
        predicted=lines, x=("step", ""), y=("loss", ""), lines_are="measured",
        caption="Measured: the detector's loss, seed 0, each point the mean of ten steps up to it.",
    )  # fmt: skip


def draw_errors(measured, predicted):
    """Draw errors of sums by number of ranks, in percent: {name: (ranks, errors)} twice."""
    percent = lambda lines: {
        name: (ranks, [100 * error for error in errors]) for name, (ranks, errors) in lines.items()
    }
    return curve(
        percent(measured), percent(predicted), x=("ranks", ""), y=("error in percent", ""),
        caption="Points: measured, gradients after 300 steps. Lines: predicted.",
    )  # fmt: skip


# --- small updates


def compare(network: Network, recipes: Sequence[str], steps: int | None = None) -> str:
    """Train a network by recipes from three seeds; write its losses as multiples of fp32's."""
    finals = {
        name: [final_loss(losses(network, RECIPES[name], seed, steps)) for seed in SEEDS]
        for name in ("fp32", *recipes)
    }
    lines = ["loss / fp32's".ljust(20) + "".join(f"seed {seed}".rjust(9) for seed in SEEDS)]
    for name in recipes:
        ratios = [a / b for a, b in zip(finals[name], finals["fp32"], strict=True)]
        lines.append(f"{name:<20}" + "".join(f"{ratio:9.2f}" for ratio in ratios))
    return "\n".join(lines)


# --- sums


def products(terms: int) -> str:
    """Write the errors of a product of bf16 matrices, 16 by 16 sums, by format of partial sums."""
    draw = torch.Generator("cpu").manual_seed(0)
    a, b = (torch.randn(16, terms, generator=draw, device="cpu") for _ in range(2))
    a, b = BF16.round(a), BF16.round(b).T
    fourteen = FloatFormat(8, 13)
    ways = {
        "fp32": (FP32, None), "fp16": (FP16, None), "bf16": (BF16, None),
        "14 bits, blocks": (fourteen, 128), "14 bits": (fourteen, None),
    }  # fmt: skip
    lines = ["partial sums in       error"]
    for name, (accumulator, block) in ways.items():
        error = relative_error(matmul_in(accumulator, a, b, block), a, b)
        lines.append(f"{name:<16}{100 * error:>9.4f} %")
    blocks = zip(a.split(128, dim=1), b.split(128), strict=True)
    for name, product in (
        ("cut off", cut_off(a, b, 14)),
        ("cut off, blocks", sum(cut_off(*pair, 14) for pair in blocks)),
    ):
        lines.append(f"{name:<16}{100 * relative_error(product, a, b):>9.4f} %")
    return "\n".join(lines)


def cut_off(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """Return a [M, K] · b [K, N] whose partial sums are cut off to so many bits, towards zero."""
    total = torch.zeros(len(a), b.shape[1], dtype=torch.float64, device=a.device)
    for column, row in zip(a.double().T, b.double()):
        mantissa, exponent = torch.frexp(total + torch.outer(column, row))
        total = torch.ldexp((mantissa * 2**bits).trunc(), exponent - bits)
    return total


def reduced(ranks: Sequence[int], size: int = 256) -> str:
    """Write the error of an all_reduce in bf16, round a ring and along a tree, by ranks."""
    lines = ["ranks      ring      tree"]
    for n in ranks:
        draw = torch.Generator("cpu").manual_seed(n)
        x = torch.randn(n, size, generator=draw, device="cpu")
        exact = x.double().sum(0)
        errors = [
            float((all_reduced(x.bfloat16(), way).double() - exact).norm() / exact.norm())
            for way in ("ring", "tree")
        ]
        lines.append(f"{n:<5}" + "".join(f"{100 * error:8.2f} %" for error in errors))
    return "\n".join(lines)


# --- bytes


def kept() -> dict[str, tuple[float, ...]]:
    """Train a small GPT for a step in four ways: bytes of weights, gradients, master weights and
    Adam's states, each by parameter, and the bytes kept for backward."""
    return {
        "fp32": _kept(torch.float32, masters=False),
        "bf16, masters": _kept(torch.bfloat16, masters=True),
        "autocast": _kept(torch.float32, masters=False, autocast=True),
        "bf16, no copy": _kept(torch.bfloat16, masters=False),
    }


def _kept(dtype: torch.dtype, masters: bool, autocast: bool = False) -> tuple[float, ...]:
    model, (inputs, targets) = GPT(SMALL_GPT).to(dtype), text(0, 0)
    optimizer = torch.optim.Adam(model.parameters())
    if masters:
        optimizer = MasterWeights(optimizer)
    elif dtype != torch.float32:
        optimizer = RoundedWeights(optimizer, "stochastic")
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=autocast):
        saved = kept_bytes(model, inputs)
        loss = next_token_loss(model(inputs).float(), targets)
    loss.backward()
    weights = sum(p.nbytes for p in model.parameters())
    grads = sum(p.grad.nbytes for p in model.parameters())
    optimizer.step()
    states = sum(
        value.nbytes for state in optimizer.state.values() for value in state.values()
        if isinstance(value, Tensor) and value.dim()
    )  # fmt: skip
    copies = optimizer.kept_bytes if masters else 0
    numel = sum(p.numel() for p in model.parameters())
    return (*(nbytes / numel for nbytes in (weights, grads, copies, states)), saved)


def bytes_each(way: Sequence[float]) -> float:
    """Return the bytes that a way keeps for each parameter: the first four entries of `kept`."""
    return sum(way[:4])


def kept_table(ways: dict[str, tuple[float, ...]]) -> str:
    """Write what `kept` returns, a way in each line."""
    lines = ["               w  grad  copy  Adam  sum  backward"]
    for name, way in ways.items():
        parts = "".join(f"{nbytes:6.0f}" for nbytes in way[1:4])
        lines.append(f"{name:<14}{way[0]:>2.0f}{parts}{bytes_each(way):>5.0f}{way[4]:>10,}")
    return "\n".join(lines)


def forward_and_backward(model: nn.Module) -> None:
    """Run a small GPT forward and backward on this rank's part of the batch."""
    inputs, targets = share(text(0, 0), dist.get_rank(), dist.get_world_size())
    dist.barrier()  # what comes after it is the step
    next_token_loss(model(inputs).float(), targets).backward()


def sent_table(runs: dict[str, Ledger]) -> str:
    """Write what rank 0 sends in recorded steps of FSDP, by rings, and its sum beside the first."""
    lines, first = ["sent bytes   all_gather  reduce_scatter"], 0
    for name, run in runs.items():
        rows = list(after_barrier(run.where(rank=0, lane="comm")))
        sent = [
            sum(int(collective(op, len(r.members), r.bytes).bytes) for r in rows if r.op == op)
            for op in ("all_gather", "reduce_scatter")
        ]
        first = first or sum(sent)
        lines.append(f"{name:<13}{sent[0]:>10,}{sent[1]:>16,}{sum(sent) / first:>7.0%}")
    return "\n".join(lines)


def published_table() -> str:
    """Write NVIDIA's speed-ups of BERT-Large in mixed precision beside the predicted ones."""
    lines = ["GPU   tokens  formats       published  predicted"]
    for row in bert_large():
        measured, predicted = row.ratios
        formats = f"{row.formats[1]}/{row.formats[0]}"
        lines.append(
            f"{row.gpu:<6}{row.sequence:>6}  {formats:<12}{measured:>9.2f} x{predicted:>9.2f} x"
        )
    return "\n".join(lines)
