"""Measure this machine as data/hardware.yaml describes others, and keep what was measured.

    from lib.ranks.calibrate import calibrate

    machine = calibrate(world)          # about 10 s for 2 ranks; the next time it reads the file
    print(machine)                      # a table of rates, latencies and bandwidths
    curve(machine.points(), machine.fits())

The result is a device and a link: pass it wherever a prediction asks for `speeds`, or name it,
`SlowMotion("this machine", dtype="fp32")`, `hardware.gpu("this machine")` and
`hardware.link("this machine")`. What is measured, and how, is said in lib/predict/calibration.py;
where it is kept, in lib/predict/stored_calibrations.py.
"""

import os
import time
from functools import partial
from statistics import median

import torch

from lib.predict import stored_calibrations as store
from lib.predict.calibration import Calibration, Curve, MeasuredSweep, counted
from lib.ranks import _stopwatch as stopwatch
from lib.ranks.gpus import devices
from lib.ranks.world import World

PRODUCTS = tuple(2**k for k in range(6, 11))  # n of an n × n matrix product
NUMELS = tuple(4**k for k in range(6, 12))  # elements of 4 bytes, for memory traffic
SIZES = tuple(4**k for k in range(6, 13))  # bytes of a collective's buffer: 4 KiB to 16 MiB
ROUNDS, BUDGET = (3, 9), 5.0  # sweeps of a collective; s after which no further sweep begins


def calibrate(world: World, *, again: bool = False, quiet: bool = False) -> Calibration:
    """Measure this machine with the ranks of `world`, or read what was measured before.

    Measuring takes under 30 s. The result is kept in the folder my-chapters. A stored calibration
    is stale if the machine, the number of ranks, their device, backend or threads, or the version
    of torch is another one; then it is measured again, as with `again`. What is done, why, and how
    long it takes, is printed unless `quiet`. Raises ValueError for what is no World, and for a
    World in slow motion.
    """
    if not isinstance(world, World):
        raise ValueError(f"calibrate measures the ranks of a World, not {world!r}.")
    if world.slow_motion:
        raise ValueError(
            "This World runs in slow motion, so its times are not this machine's. Set "
            "world.slow_motion = None, or give calibrate another World."
        )
    say = (lambda text: None) if quiet else print
    facts, file = _facts(world), store.path(world.size, world.device)
    stored = None if again else _stored(file, facts, say)
    if stored is None:
        stored = _measured(world, facts, say)
        try:
            store.write(stored, file)
            say(f"It is kept in {file}.")
        except OSError as error:
            say(f"It is not kept, since {file} cannot be written ({error.strerror}).")
    store.remember(stored)
    return stored


def _facts(world: World) -> dict:
    """Return what the figures depend on."""
    models = {gpu.model for gpu in devices.visible(world.device)} if world.device != "cpu" else {}
    return {
        "machine": store.machine(),
        "gpus": " and ".join(sorted(filter(None, models))),
        "ranks": world.size,
        "device": world.device,
        "backend": world.backend,
        "torch": str(torch.__version__),
        "threads": world.run(torch.get_num_threads)[0],
    }


def _stored(file, facts: dict, say) -> Calibration | None:
    """Return the stored calibration if it still holds; else say why it is measured."""
    if not file.exists():
        others = sorted(other.name for other in file.parent.glob("this-machine-*.yaml"))
        only = f", only {', '.join(others)}" if others else ""
        say(f"No calibration of {counted(facts['ranks'])} is stored here yet{only}.")
        return None
    try:
        stored = store.read(file)
    except ValueError as error:
        say(f"{error} It is measured again.")
        return None
    if reasons := store.stale(stored, facts):
        say(" ".join(["The stored calibration is stale.", *reasons, "It is measured again."]))
        return None
    say(f"This calibration was measured {stored.date} and read from {file}.")
    return stored


def _measured(world: World, facts: dict, say) -> Calibration:
    """Measure everything; return the calibration."""
    began = time.perf_counter()
    groups = sorted({2**k for k in range(1, 20) if 2**k < world.size} | {world.size} - {1})
    most = round(6 + (2 + BUDGET) * len(groups))
    say(f"Measuring with {counted(world.size)}. This takes up to {most} s.")
    # 1. Measure the ranks' computing before, between and after their collectives, since other
    # programs may disturb one of these moments.
    measure = partial(world.run, stopwatch.compute, PRODUCTS, NUMELS)
    answers, sweeps = measure(), []
    for ranks in groups:
        sweeps += _sweeps(world, ranks)
        answers += measure()
    answers += measure()
    hidden = median(world.run(stopwatch.hidden)) if groups else 0.0
    # 2. Take the median of these moments and of all ranks.
    flop, nbytes = [2 * n**3 for n in PRODUCTS], [12 * n for n in NUMELS]
    products = {
        dtype: _curve([answer["products"][dtype] for answer in answers], flop)
        for dtype in answers[0]["products"]
    }
    traffic = _curve([answer["traffic"] for answer in answers], nbytes)
    overhead = stopwatch.rounded(median(answer["overhead"] for answer in answers))
    took = time.perf_counter() - began
    say(f"Measured in {took:.0f} s.")
    date = time.strftime("%Y-%m-%d %H:%M")
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Calibration(
        facts, date, round(took, 1), memory, overhead, products, traffic, hidden, tuple(sweeps)
    )


def _curve(answers: list[list[float]], sizes: list[int]) -> Curve:
    """Return the median at each size that all answers have reached."""
    seconds = [stopwatch.rounded(median(times)) for times in zip(*answers)]
    return Curve(tuple(float(size) for size in sizes[: len(seconds)]), tuple(seconds))


def _sweeps(world: World, ranks: int) -> list[MeasuredSweep]:
    """Sweep all collectives among the first `ranks`, again and again within the budget."""
    sizes = tuple(4 * ranks * max(1, round(size / 4 / ranks)) for size in SIZES)  # equal shares
    world.run(stopwatch.collectives, ranks, sizes)  # connects the ranks, and is not counted
    rounds, began = [], time.perf_counter()
    while len(rounds) < ROUNDS[0] or (
        len(rounds) < ROUNDS[1] and time.perf_counter() - began < BUDGET
    ):
        answers = [answer for answer in world.run(stopwatch.collectives, ranks, sizes) if answer]
        rounds.append({op: _slowest([a[op] for a in answers]) for op in stopwatch.OPS})
    return [MeasuredSweep(op, ranks, sizes, tuple(r[op] for r in rounds)) for op in stopwatch.OPS]


def _slowest(by_rank: list[list[float]]) -> tuple[float, ...]:
    """Return the time of the slowest rank at each size: a collective ends with its last rank."""
    return tuple(map(max, zip(*by_rank)))
