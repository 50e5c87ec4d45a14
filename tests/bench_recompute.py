"""Measure recomputation against PyTorch's, in turns in the same processes.

    python tests/bench_recompute.py [--repeats 20] [--launches 3] [--only checkpoints,budget]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import dataclasses
import functools
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, gelu
from torch.utils.checkpoint import checkpoint as pytorchs
from torch.utils.checkpoint import create_selective_checkpoint_contexts

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib import World
from lib.course.recomputation.wall_clock import compared as by_clock
from lib.predict.recompute import BlockCost, best, none, smallest_peak, square_root, use_of
from lib.predict.recompute.encodings import encoded_bytes, vgg
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.calibrate import calibrate
from lib.single import GPT, MLP, mean_squares, next_token_loss
from lib.single.convnet import VGG
from lib.single.encode import gist, nonzeros
from lib.single.recompute import block_costs, kept_bytes, only, recompute
from tests.bench_data import Figure, compared, measure_all

SHAPE = GPTShape(layers=12, width=256, heads=4, sequence=128)
PRODUCTS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
CONVOLUTIONS = {"groups": ((16, 16), (32, 32)), "hidden": (64,), "size": 32}
IMAGES = 16
NEITHER = {"binarise": False, "sparse": False}
ENCODINGS = {
    "signs": {"sparse": False},
    "sparse rows": {"binarise": False},
    "lossless": {},
    "fp16": {**NEITHER, "delayed": "fp16"},
    "fp10": {**NEITHER, "delayed": "fp10"},
    "fp8": {**NEITHER, "delayed": "fp8"},
    "all with fp8": {"delayed": "fp8"},
}
UNEQUAL = MLPShape((256, 1024, 256, 2048, 256, 512, 4096, 256, 1024, 256, 2048, 512, 256))


class TheirCheckpoints(GPT):
    """A GPT each of whose blocks is in a checkpoint of PyTorch's."""

    selective = False

    def forward(self, x):
        options = {"use_reentrant": False}
        if self.selective:
            options["context_fn"] = lambda: create_selective_checkpoint_contexts(PRODUCTS)
        for block in self.blocks.values():
            x = pytorchs(block, x, **options)
        return x


class KernelsAlone(GPT):
    """A GPT that keeps all, and repeats what a selective second run must: no less is possible."""

    def __init__(self, shape):
        super().__init__(shape)
        rows = 2, shape.sequence
        self.qkv, self.up = torch.randn(*rows, shape.qkv_width), torch.randn(*rows, shape.hidden)

    def forward(self, x):
        for block in self.blocks.values():
            if hasattr(block, "attention"):
                with torch.no_grad():
                    self.again(block, x)
            x = block(x)
        return x

    def again(self, block, x):
        """Run a block without its matrix products, whose results would be kept."""
        block.norm1(x)
        parts = self.qkv.unflatten(-1, (SHAPE.heads, 3, -1)).unbind(3)
        q, k, v = (part.contiguous().transpose(1, 2) for part in parts)
        y = block.attention.core(q, k, v).transpose(1, 2).flatten(2)
        block.norm2(x + y)
        gelu(self.up)


def gpt(kind, selective):
    """Make the model, ours or theirs: model, optimizer, batch, loss."""
    if kind == "ours" and selective == "kernels":
        model = KernelsAlone(SHAPE)
    elif kind == "ours":
        model = recompute(GPT(SHAPE), "all", only(*PRODUCTS) if selective else None)
    else:
        model = TheirCheckpoints(SHAPE)
        model.selective = bool(selective)
    tokens = torch.randint(256, (2, SHAPE.sequence + 1))
    batch = tokens[:, :-1], tokens[:, 1:]
    return model, torch.optim.SGD(model.parameters(), 0.1), batch, next_token_loss


def checkpoints(options):
    """A GPT of 12 layers, every block forgotten, against PyTorch's non-reentrant checkpoint."""
    make = functools.partial(gpt, selective=False)
    yield from compared("GPT of 12 layers", make, 1, options, "ours / PyTorch's checkpoint", 1.03)


def selective(options):
    """The same with the results of matrix products kept, against PyTorch's selective policy.

    Beside it, how little time any selective checkpoint may take: a step that keeps all, and runs
    the repeated kernels without hooks, modes and a second graph.
    """
    make = functools.partial(gpt, selective=True)
    yield from compared("GPT of 12 layers", make, 1, options, "ours / PyTorch's selective", 0.9)
    make = functools.partial(gpt, selective="kernels")
    rivals = "repeated kernels alone / PyTorch's selective"
    for figure in compared("GPT of 12 layers", make, 1, options, rivals, 0):
        yield dataclasses.replace(figure, must="printed only", reached=True)


def chain(kind):
    """Make an MLP of unequal layers with the best plan, or with that of √n."""
    model, x = MLP(UNEQUAL), torch.randn(256, UNEQUAL.widths[0])
    blocks = len(model)
    costs = block_costs(model, x, [i * o / 1e9 for i, o in zip(UNEQUAL.widths, UNEQUAL.widths[1:])])
    rule = square_root(blocks)
    plan = best(costs, use_of(rule, costs).peak) if kind == "ours" else rule
    recompute(model, plan)
    batch = x, torch.randn(256, UNEQUAL.widths[-1])
    return model, torch.optim.SGD(model.parameters(), 0.1), batch, mean_squares


def budget(options):
    """A chain of unequal blocks: the best plan within the bytes of √n, against √n."""
    yield from compared("MLP of 12 unequal layers", chain, 1, options, "best plan / √n", 1.0)
    costs = block_costs(MLP(UNEQUAL), torch.randn(256, 256), [1.0] * 12)
    rule = use_of(square_root(12), costs)
    found = use_of(best(costs, rule.peak), costs)
    yield Figure("bytes at the peak, best plan / √n", found.peak / 1e6, rule.peak / 1e6,
                 found.peak / rule.peak, "at most 1", found.peak <= rule.peak, "MB")  # fmt: skip


def convolutions(kind, encodings):
    """Make a VGG that keeps its feature maps encoded, or the plain one, and a batch of images."""
    torch.manual_seed(1)
    model = VGG(**CONVOLUTIONS)
    if kind == "ours":
        gist(model, **encodings)
    batch = (
        torch.randn(IMAGES, 3, CONVOLUTIONS["size"], CONVOLUTIONS["size"]),
        torch.arange(IMAGES) % 10,
    )
    return model, torch.optim.SGD(model.parameters(), 0.01), batch, cross_entropy


def encoded(options):
    """Feature maps kept encoded (Gist) against plain: bytes by the formula, and the step's time.

    The publication says 1.8 times fewer bytes in the whole of five networks, and 4 % more time on
    GPUs; here the bytes are those of the feature maps, from the initial weights, and the CPU packs.
    """
    for name, encodings in ENCODINGS.items():
        model, _, (x, _), _ = convolutions("ours", encodings)
        plain, kept = kept_bytes(convolutions("plain", None)[0], x), kept_bytes(model, x)
        maps = vgg(IMAGES, **CONVOLUTIONS)
        good = kept == encoded_bytes(maps, nonzeros(model, x), **encodings)
        title = f"bytes kept by a VGG, {name} ({plain / kept:.1f} times fewer) / plain"
        yield Figure(title, kept / 1e6, plain / 1e6, kept / plain, "the formula", good, "MB")
    for name, encodings in ENCODINGS.items():
        make = functools.partial(convolutions, encodings=encodings)
        for figure in compared("VGG", make, 1, options, f"{name} / plain", 0):
            yield dataclasses.replace(figure, must="printed only", reached=True)


def slowly(options):
    """A chain of unequal blocks in slow motion, by the best plan and by √n, as predicted."""
    from lib.predict.recompute.played import play_plan
    from tests.ranks import test_recomputed_steps as slow

    with World(1, device="cpu") as world:
        for name in ("√n", "best"):
            plan = slow.plans()[name]
            recorded = slow.recorded(world, plan).makespan
            predicted = max(bar.end for bar in play_plan(plan, *slow.costs()).bars)
            ratio = recorded / predicted
            yield Figure(f"slow motion, 12 unequal layers, {name}: recorded / predicted",
                         1e6 * recorded, 1e6 * predicted, ratio, "within 5 %",
                         abs(ratio - 1) <= 0.05, "µs")  # fmt: skip


def planned(options):
    """The seconds in which a plan is found for blocks that differ, at half of their bytes."""
    for blocks, limit in ((100, 2.0), (1000, 60.0)):
        draw = random.Random(0)
        chain = [
            BlockCost(draw.randint(1, 5) * 10**6, draw.randint(1, 60) * 10**6, draw.random())
            for _ in range(blocks)
        ]
        half = (smallest_peak(chain) + use_of(none(blocks), chain).peak) / 2
        began = time.perf_counter()
        best(chain, half)
        taken = time.perf_counter() - began
        title = f"best plan of {blocks:,} blocks, found in / limit"
        must = f"under {limit:.0f} s"
        yield Figure(title, taken, limit, taken / limit, must, taken < limit, "s")


def clock(options):
    """A step by the wall clock, each block computed again, against the calibrated prediction."""
    with World(1, device="cpu") as world:
        machine = calibrate(world, again=True, quiet=True)
        runs = [by_clock(world, machine, options.repeats) for _ in range(options.launches)]
    for policy, (predicted, _) in runs[0].items():
        measured = statistics.median(run[policy][1] for run in runs)
        error = f"{predicted / measured - 1:+.0%}"
        title = f"wall clock, 1 rank, GPT of 8 layers, {policy}: predicted, measured, error {error}"
        yield Figure(title, 1e3 * predicted, 1e3 * measured, predicted / measured,
                     "printed only", True)  # fmt: skip


def main():
    """Measure what the options ask for."""
    whole = (checkpoints, selective, budget, slowly, planned, encoded, clock)
    measure_all(whole, __doc__, repeats=20)


if __name__ == "__main__":
    main()
