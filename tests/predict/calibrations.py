"""A calibration made of numbers that a test knows, and a folder of its own for what is stored."""

from lib.predict import stored_calibrations as store
from lib.predict.calibration import Calibration, Curve, MeasuredSweep

SIZES = tuple(4**k for k in range(6, 13))  # bytes
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send")


def facts(**other) -> dict:
    """Return the facts of this machine with two ranks on the CPU."""
    return {
        "machine": store.machine(), "gpus": "", "ranks": 2, "device": "cpu", "backend": "gloo",
        "torch": "2.13.0", "threads": 1,
    } | other  # fmt: skip


def swept(
    op="all_reduce", ranks=2, latency=1e-4, bandwidth=1e9, factors=(0.9, 1.0, 1.2)
) -> MeasuredSweep:
    """Return sweeps that are exact lines, each slower than the one before by a known factor."""
    rounds = tuple(tuple(f * (latency + s / bandwidth) for s in SIZES) for f in factors)
    return MeasuredSweep(op, ranks, SIZES, rounds)


def calibration(sweeps=None, **other) -> Calibration:
    """Return a machine of 100 GFLOP/s (twice that in bf16), 10 GB/s, and 10 µs an operation."""
    flop, nbytes = (1e6, 1e9), (1e5, 1e8)
    products = {"fp32": Curve(flop, (1e-5, 1e-2)), "bf16": Curve(flop, (5e-6, 5e-3))}
    sweeps = tuple(map(swept, OPS)) if sweeps is None else tuple(sweeps)
    return Calibration(facts(**other), "2026-11-22 12:00", 9.0, 8e9, 1e-5, products,
                       Curve(nbytes, (1e-5, 1e-2)), 0.25, sweeps)  # fmt: skip
