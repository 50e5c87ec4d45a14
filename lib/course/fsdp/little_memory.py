"""Chapter 3's ways to live with little memory: GeePS's cache, fused buffers and an arena."""

import copy

import torch
from torch import nn

from lib.course.fsdp.lessons import FEW, LARGE, ROWS, SMALL, memory_of_rank_0
from lib.ledger import Ledger
from lib.ledger.lives import lives
from lib.predict.allocator.replay import LONG_LIVED, replay
from lib.predict.shape import GPTShape
from lib.predict.sharded.offload import host_speeds, resident_units
from lib.predict.sharded.offload_step import cached_step
from lib.predict.sharded.zero_step import fused_buffer_bytes
from lib.ranks.memory import Memory
from lib.single import MLP
from lib.single.offload import OffloadedOptimizer
from lib.single.parameter_cache import ParameterCache


def tables(speeds, run: Ledger) -> str:
    """Write tables 2, 3 and 4: the chain in a cache, ZeRO-2's buffers, and the holes of a `run`."""
    each = "2. A cache of weights", "3. Buffers of constant size", "4. Fewer holes"
    tables = cached(speeds), fused_buffers(), holes(run)
    return "\n\n".join(map("\n".join, zip(each, tables))) + "\n"


def cached(speeds) -> str:
    """Write what the chain does with room for 2, 4 and 8 of its layers' weights on the device.

    Weights are compared and bytes counted where the small chain runs; the time of a step is
    predicted for the large one on an H100, whose layers have 4,096 times the bytes.
    """
    lines = [f"{'room':<10}{'stay':>6}{'held':>10}{'same weights':>14}{'step':>10}"]
    for layers in (2, 4, 8):
        sizes = [SMALL.nbytes() // 8] * 8
        stay = len(resident_units(sizes, layers * sizes[0]))
        same, held = trained_in_cache(layers * sizes[0])
        seconds = seconds_of_step(layers * LARGE.nbytes() // 8, speeds)
        row = f"{layers} layers", stay, f"{held:,}", f"{same}", f"{1e3 * seconds:.1f} ms"
        lines.append("{:<10}{:>6}{:>10}{:>14}{:>10}".format(*row))
    return "\n".join(lines)


def trained_in_cache(device_bytes: int) -> tuple[bool, int]:
    """Train the small chain three steps through a cache of so many bytes, and without one.

    Return whether the weights are equal, and the most bytes of weights on the device.
    """
    model = MLP(SMALL).cpu()
    plain = copy.deepcopy(model)
    train(plain, torch.optim.SGD(plain.parameters(), 0.1))
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    cache = ParameterCache(model, list(model.blocks.values()), optimizer, device_bytes)
    with Memory(model, optimizer) as memory:
        train(model, optimizer)
    with cache.whole():
        same = all(map(torch.equal, model.parameters(), plain.parameters()))
    return same, max(row.bytes for row in memory.rows if row.op == "parameters")


def train(model: nn.Module, optimizer) -> None:
    """Take three steps on one batch."""
    x = torch.ones(FEW, SMALL.widths[0], device="cpu")
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def seconds_of_step(device_bytes: int, speeds) -> float:
    """Predict a step of the large chain through a cache, after a first one that fills it."""
    first, both = (
        cached_step(LARGE, ROWS, speeds, host_speeds("H100"), device_bytes, steps=steps).makespan
        for steps in (1, 2)
    )
    return both - first


def fused_buffers(ranks: int = 4) -> str:
    """Write the bytes of GPTs of three depths, and of the whole gradients that ZeRO-2 holds."""
    lines = [f"{'layers':<8}{'weights':>10}{'whole gradients in ZeRO-2':>28}"]
    for layers in (8, 16, 32):
        shape = GPTShape(width=1024, heads=16, layers=layers, vocabulary=50_257, sequence=1024)
        most = fused_buffer_bytes(shape, ranks)
        lines.append(f"{layers:<8}{shape.nbytes() / 1e6:>7,.0f} MB{most / 1e6:>25,.0f} MB")
    return "\n".join(lines)


def holes(ledger: Ledger) -> str:
    """Write the most free bytes outside the largest free block, without and with an arena.

    What is free inside the arena is not among them.
    """
    storages = lives(memory_of_rank_0(ledger))
    lines = [f"{'':<12}{'free, but scattered':>20}{'reserved':>12}"]
    for name, kinds in (("no arena", ()), ("an arena", LONG_LIVED)):
        run = replay(storages, arena=kinds)
        worst = run.states[run.most_scattered()]
        apart = worst.free - worst.largest_free
        lines.append(f"{name:<12}{apart:>20,}{run.peak_reserved:>12,}")
    return "\n".join(lines)
