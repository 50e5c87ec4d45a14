"""Tables of chapter 8, predicted and published: models, small batches, two hops, links."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import mean

from lib.ledger import Ledger
from lib.predict import hardware
from lib.predict.expert.load import batch_of_an_expert, dropped, nodes_reached
from lib.predict.expert.models import MODELS
from lib.predict.expert.seconds import exchange, hidden_size_that_covers
from lib.predict.expert.step import expert_step
from lib.predict.roofline import speeds

COMPARED = ("Switch-C", "Mixtral 8x7B", "DeepSeek-V3")  # of the published models
# One layer of DeepSeek-V3 (arXiv 2412.19437, section 4.2): width, hidden size, experts, k.
WIDTH, HIDDEN, EXPERTS, K = 7168, 2048, 256, 8
TOKENS = 4096  # of a GPU
# Published by DeepSeek-AI for H800 GPUs with one 400 Gbit/s card each: nodes of 8 GPUs, then
# GB/s of dispatch and of combine. "Logical": rows that stay in their node count too.
# Source: README of github.com/deepseek-ai/DeepEP, section Performance, commit 0297fc8.
DEEP_EP = {2: (90, 81), 4: (61, 61)}
# The same by the number of GPUs, 128 tokens each, kernels that send each row straight to its GPU:
# seconds of a combine with 2 bytes a number. Source: docs/legacy.md there, the same commit.
DEEP_EP_STRAIGHT = {16: 195e-6, 32: 273e-6, 64: 314e-6, 128: 369e-6, 256: 360e-6}


def published_models() -> str:
    """Write three models' parameters, all and active, as printed and as their shapes give them."""
    lines = [f"{'10⁹ parameters':<14}{'all':>14}{'for a token':>17}",
             f"{'':<14}{'printed':>9}{'ours':>8}{'printed':>9}{'ours':>8}"]  # fmt: skip
    for model in (model for model in MODELS if model.name in COMPARED):
        printed = [f"{value / 1e9:,.1f}" if value else "" for value in model.published]
        ours = f"{model.total / 1e9:,.1f}", f"{model.active / 1e9:,.1f}"
        cells = [cell for pair in zip(printed, ours) for cell in pair]
        lines.append(
            f"{model.name:<14}" + "".join(f"{c:>{w}}" for c, w in zip(cells, (9, 8, 9, 8)))
        )
    return "\n".join(lines)


def active(name: str) -> float:
    """Return the parameters that work on one token of a published model, in 10⁹."""
    (model,) = (model for model in MODELS if model.name == name)
    return model.active / 1e9


def drops(tokens=(64, 256, 1024, 4096), experts: int = 8) -> str:
    """Write what share of its tokens an even gate loses, by tokens and capacity factor."""
    factors = (1.0, 1.25, 2.0)
    lines = ["predicted share of dropped rows"]
    lines.append("tokens " + "".join(f"{f'factor {f:g}':>13}" for f in factors))
    for n in tokens:
        lines.append(f"{n:>6,} " + "".join(f"{dropped(n, experts, 1, f):>13.2%}" for f in factors))
    return "\n".join(lines)


def step_with(shares: Sequence[float], ranks: int = 4) -> Ledger:
    """Predict a step of one layer with Mixtral's sizes on H100s, with these shares of 8 experts.

    Each of the ranks has 4,096 tokens, each token one expert, and each expert two matrices.
    """
    tokens, each = 4096, len(shares) // ranks
    rows = [round(sum(shares[r * each : (r + 1) * each]) * ranks * tokens) for r in range(ranks)]
    rows[0] += ranks * tokens - sum(rows)
    return expert_step(4096, 14_336, len(shares), 1, tokens, ranks, speeds("H100"), itemsize=2,
                       arriving=rows)  # fmt: skip


def who_waits(runs: dict) -> str:
    """Write how long such a step takes: even, by chance, and as in a run's last steps.

    `runs` are {way: Run}; a line has the mean, the shortest and the longest step. By chance, each
    of 256 tokens, as in a step of the runs, or of 16,384, as in the step that is predicted,
    chooses one of the 8 experts at random, 40 times.
    """
    lines = ["predicted (H100, NVLink 4)", f"{'':<16}   mean  shortest  longest"]
    even = 1e3 * step_with([1 / 8] * 8).makespan
    lines.append(f"{'even load':<16}{even:>5.1f}ms")
    steps = {f"{n:,} by chance": shares_by_chance(n) for n in (16_384, 256)}
    steps |= {name: run.shares() for name, run in runs.items()}
    for name, of_step in steps.items():
        times = [1e3 * step_with(shares).makespan for shares in of_step]
        figures = f"{mean(times):>5.1f}ms{min(times):>8.1f}ms{max(times):>7.1f}ms"
        lines.append(f"{name:<16}{figures}")
    return "\n".join(lines)


def shares_by_chance(tokens: int, experts: int = 8, draws: int = 40) -> list[list[float]]:
    """Draw the shares of experts of which each token chooses one at random: [draws, E]."""
    draw, shares = Random(0), []
    for _ in range(draws):
        chosen = Counter(draw.choices(range(experts), k=tokens))
        shares.append([chosen[expert] / tokens for expert in range(experts)])
    return shares


def shrinking_batch(gpus=(1, 8, 64)) -> str:
    """Write the rows of an expert of DeepSeek-V3, by the GPUs whose tokens it gets, and its rate.

    The rate is that of a product of these rows by one matrix of the expert: a share of the peak of
    an H100, by its roofline in bf16.
    """
    device = speeds("H100")
    lines = ["1: predicted rate of a product (H100, bf16)"]
    lines.append("GPUs  rows of an expert  FLOP/byte  at most")
    for ranks in gpus:
        rows = batch_of_an_expert(TOKENS, EXPERTS, K, ranks)
        flop = 2 * rows * WIDTH * HIDDEN
        nbytes = 2 * (rows * WIDTH + WIDTH * HIDDEN + rows * HIDDEN)
        share = flop / device.peak / device.compute(flop, nbytes)
        lines.append(f"{ranks:>4}{rows:>19,.0f}{flop / nbytes:>11.0f}{share:>9.0%}")
    return "\n".join(lines)


def hops(tokens=(1, 128, 1024, 4096), gpus: int = 64) -> str:
    """Write how long one all_to_all takes by tokens of a GPU: flat and in two hops.

    The last column has two hops of which that between nodes sends each token once to a node.
    """
    lines = ["1: predicted time of one all_to_all"]
    lines.append(f"{'':<6}{'':>9}{'two hops,':>15}{'two hops, a':>17}")
    lines.append(f"{'tokens':<6}{'flat':>9}{'row by row':>15}{'token only once':>17}")
    for n in tokens:
        times = (1e6 * seconds for seconds in journeys(n, gpus))
        cells = "".join(f"{f'{t:,.0f}µs':>{w}}" for t, w in zip(times, (9, 15, 17)))
        lines.append(f"{n:>6,}{cells}")
    return "\n".join(lines)


def journeys(tokens: int, gpus: int = 64) -> tuple[float, float, float]:
    """Return the seconds of an all_to_all: flat, in two hops, and with tokens sent once to a node.

    In the third, fewer bytes travel between nodes, and as many as in the second inside them.
    """
    device, nbytes = _nodes_of_8(), tokens * K * WIDTH * 2
    flat, two = (exchange(way, gpus, nbytes, device) for way in ("flat", "two hops"))
    nodes = gpus // 8
    between = lambda size: device.moving("all_to_all", nodes, size, range(gpus)[::8])
    once = nbytes * nodes_reached(EXPERTS, K, nodes) / K
    return flat, two, two - between(nbytes) + between(once)


def together(tokens: int, gpus: int = 64) -> tuple[float, float]:
    """Return the seconds of an all_to_all whose messages all start together: flat and in two hops.

    One latency counts for each hop, and then the bytes on the slowest link.
    """
    nbytes = tokens * K * WIDTH * 2
    inside, between = hardware.link("NVLink4"), hardware.link("InfiniBand NDR")
    hop = lambda link, share: float(link.alpha.value) + nbytes * share / float(link.bandwidth)
    out = hop(between, 1 - 8 / gpus)
    return out, out + hop(inside, 7 / 8)


def _nodes_of_8():
    """Return the speeds of H100s in nodes of 8: NVLink 4 inside, InfiniBand NDR between."""
    return speeds("H100", "NVLink4", node=8, between="InfiniBand NDR")


def hidden_sizes() -> str:
    """Write the hidden size at which an expert computes as long as its rows travel, by link."""
    lines = ["2: predicted hidden size needed (H100, bf16)"]
    for link in ("NVLink4", "InfiniBand NDR"):
        peak = float(hardware.gpu("H100").peak["bf16"].value)
        bandwidth = float(hardware.link(link).bandwidth)
        lines.append(f"{link:<18}{hidden_size_that_covers(peak, bandwidth, matrices=3):>12,.0f}")
    return "\n".join(lines)


def deep_ep() -> str:
    """Write the rates that DeepEP publishes for exchanges between nodes, and ours by the link.

    With n nodes (n - 1)/n of evenly spread rows leave their node, so that a link of b bytes/s
    carries b·n/(n - 1), counting those that stay.
    """
    link = float(hardware.link("InfiniBand NDR").bandwidth) / 1e9
    lines = ["3: published rates beside the link's"]
    lines.append("GB/s    the link  dispatch  error  combine  error")
    for nodes, (there, back) in DEEP_EP.items():
        ours = link * nodes / (nodes - 1)
        errors = f"{ours / there - 1:+.0%}", f"{ours / back - 1:+.0%}"
        lines.append(f"8 × {nodes:<2}{ours:>10.0f}{there:>10}{errors[0]:>7}{back:>9}{errors[1]:>7}")
    return "\n".join(lines)


def straight() -> str:
    """Write what DeepEP prints for few rows, sent straight, and ours: all at once, one by one."""
    link = hardware.link("InfiniBand NDR")
    lines = ["2: time of one combine, 128 tokens", "GPUs   published  at once    error"]
    for gpus, published in DEEP_EP_STRAIGHT.items():
        nbytes = 128 * K * WIDTH * 2 * (gpus - 8) / gpus  # NVLink carries the rest
        at_once = float(link.alpha.value) + nbytes / float(link.bandwidth)
        error = at_once / published - 1
        lines.append(f"{gpus:>4}{1e6 * published:>10.0f}µs{1e6 * at_once:>7.0f}µs{error:>+9.0%}")
    return "\n".join([*lines, f"one by one, 64 GPUs {1e6 * journeys(128)[0]:>6,.0f}µs"])


def reached(nodes=(2, 4, 8)) -> str:
    """Write to how many nodes a token of DeepSeek-V3 goes, if each goes once to a node."""
    lines = ["1: of a token's 8 rows leave their node"]
    lines.append("nodes  a row for each expert  one for each node")
    for n in nodes:
        leave = (n - 1) / n
        once = nodes_reached(EXPERTS, K, n)
        lines.append(f"{n:>5}{K * leave:>22.1f}{once * leave:>19.1f}")
    return "\n".join(lines)
