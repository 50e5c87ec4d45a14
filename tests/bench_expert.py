"""Measure layers of experts against the usual ways to write them, in turns in the same processes.

    python tests/bench_expert.py [--repeats 20] [--launches 3] [--only layers,steps,routes,clock]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import functools
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib import World
from lib.course.mixture_of_experts.wall_clock import compared as by_clock
from lib.parallel.expert import expert_parallel
from lib.ranks.calibrate import calibrate
from lib.ranks.gradients import sum_gradient
from lib.single import mean_squares
from lib.single.experts import MoE
from lib.single.experts.routing import capacity_of, within
from tests.bench_data import Figure, compared, measure_all
from tests.parallel.expert import test_exchange_time as slow
from tests.slow_steps import least_late

WIDTH, HIDDEN, K, BATCH, SEQUENCE = 256, 512, 2, 4, 256
LIMITS = {("masks", 8): 0.40, ("masks", 64): 0.15, ("indices", 8): 0.85, ("indices", 64): 0.6}


class Loop(nn.Module):
    """The usual layer on one device: a loop over experts, each with two matrices of its own."""

    def __init__(self, layer, way):
        super().__init__()
        self.gate, self.way = layer.gate, way
        self.ups, self.downs = (
            nn.ParameterList(full.detach().clone().unbind())
            for full in (layer.experts.up, layer.experts.down)
        )

    def forward(self, x):
        rows = x.flatten(0, 1)
        decision = self.gate(rows)
        y = torch.zeros_like(rows)
        for expert, (up, down) in enumerate(zip(self.ups, self.downs)):
            if self.way == "masks":  # every expert computes all tokens, most times a weight of 0
                y = y + decision.gates[:, expert, None] * (gelu(rows @ up) @ down)
                continue
            token, chosen, weight, _ = decision.assignments
            at = torch.where(chosen == expert)[0]
            out = gelu(rows[token[at]] @ up) @ down
            y = y.index_add(0, token[at], weight[at, None] * out)
        return y.view(x.shape)


class Padded(nn.Module):
    """The usual expert parallelism: each expert has C places on every rank, full or not.

    places [E, C, D] -> all_to_all of equal pieces -> [E/P, P·C, D] -> batched products -> back
    """

    def __init__(self, layer, factor=1.25):
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        self.gate, self.factor, self.ranks = layer.gate, factor, ranks
        own = lambda full: nn.Parameter(full.detach().chunk(ranks)[rank].clone())
        self.up, self.down = own(layer.experts.up), own(layer.experts.down)
        for parameter in self.gate.parameters():
            sum_gradient(parameter, [None], 1 / ranks)
        for parameter in (self.up, self.down):
            sum_gradient(parameter, [], 1 / ranks)

    def forward(self, x):
        rows = x.flatten(0, 1)
        assignments = self.gate(rows).assignments
        experts = assignments.experts
        capacity = capacity_of(self.factor, len(assignments.token), experts)
        kept = assignments.only(within(assignments, capacity)).by_expert()
        first = kept.counts.cumsum(0) - kept.counts
        place = torch.arange(len(kept.token)) - first[kept.expert] + kept.expert * capacity
        padded = rows.new_zeros(experts * capacity, rows.shape[1])
        padded = padded.index_copy(0, place, rows.index_select(0, kept.token))
        arrived = swapped(padded).view(self.ranks, -1, capacity, rows.shape[1]).transpose(0, 1)
        hidden = gelu(arrived.flatten(1, 2) @ self.up)
        out = (hidden @ self.down).unflatten(1, (self.ranks, capacity)).transpose(0, 1)
        back = swapped(out.flatten(0, 2)).index_select(0, place)
        return (
            torch.zeros_like(rows)
            .index_add(0, kept.token, kept.weight[:, None] * back)
            .view(x.shape)
        )


class Swap(torch.autograd.Function):
    """An all_to_all of equal pieces, which is its own backward."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Swap.forward(ctx, gradient)


swapped = Swap.apply


def layer(kind, experts, way):
    """Make a layer, ours or one of the usual ones: model, optimizer, batch, loss."""
    torch.manual_seed(1)
    model = MoE(WIDTH, HIDDEN, experts, K)
    if kind != "ours":
        model = Padded(model) if way == "padded" else Loop(model, way)
    elif way == "padded":
        model = expert_parallel(model)
    torch.manual_seed(dist.get_rank())
    x, target = torch.randn(2, BATCH, SEQUENCE, WIDTH)
    # Inside a model the gradient goes on to the layers before this one.
    batch = x.clone().requires_grad_(), target
    return model, torch.optim.SGD(model.parameters(), 0.1), batch, mean_squares


def layers(options):
    """The layer on one device, without drops, against two loops over the experts."""
    for (way, experts), limit in LIMITS.items():
        make = functools.partial(layer, experts=experts, way=way)
        yield from compared(
            f"layer of {experts} experts", make, 1, options, f"ours / loop with {way}", limit
        )


def steps(options):
    """A step of expert parallelism against equal pieces with a capacity of 1.25."""
    for ranks in (2, 4):
        make = functools.partial(layer, experts=8, way="padded")
        yield from compared("layer of 8 experts", make, ranks, options, "ours / padded", 0.9)


def routes(options):
    """Rows flat and in two hops in slow motion, 8 ranks on 2 nodes, against the prediction."""
    with World(8, device="cpu") as world:
        for each in (1, 200):
            recorded = {}
            for way, nodes in (("flat", 0), ("two hops", 2)):
                world.run(slow.prepared, nodes, each)
                runs = [
                    least_late(world, slow.SPEEDS, slow.travel) for _ in range(options.launches)
                ]
                recorded[way] = statistics.median(run.makespan for run in runs)
                formula = slow.predicted(way, each)
                ratio = recorded[way] / formula
                title = f"{each} rows for each of 8 ranks, {way}, slow motion, recorded / predicted"
                yield Figure(title, 1e6 * recorded[way], 1e6 * formula, ratio, "within 5 %",
                             abs(ratio - 1) <= 0.05, "µs")  # fmt: skip
            found = recorded["two hops"] / recorded["flat"]
            expected = slow.predicted("two hops", each) / slow.predicted("flat", each)
            title = f"{each} rows for each of 8 ranks, two hops ÷ flat, recorded / predicted"
            yield Figure(title, found, expected, found / expected, "within 5 %",
                         abs(found / expected - 1) <= 0.05, "  ")  # fmt: skip


def clock(options):
    """A layer on two ranks by the wall clock, against the prediction of the calibrated machine."""
    with World(2, device="cpu") as world:
        machine = calibrate(world, again=True, quiet=True)
        runs = [by_clock(world, machine, options.repeats)[-1] for _ in range(options.launches)]
    _, predicted, _ = runs[0]
    measured = statistics.median(seconds for *_, seconds in runs)
    error = f"{predicted / measured - 1:+.0%}"
    title = f"wall clock, 2 ranks, layer of 8 experts: predicted, measured, error {error}"
    yield Figure(title, 1e3 * predicted, 1e3 * measured, predicted / measured, "printed only", True)


def main():
    """Measure what the options ask for."""
    measure_all((layers, steps, routes, clock), __doc__, repeats=20)


if __name__ == "__main__":
    main()
