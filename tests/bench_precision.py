"""Measure numbers of few bits against PyTorch's own, in turns in this process.

    python tests/bench_precision.py [--repeats 20] [--only formats]

Each figure is the median of at most five calls, each of which takes a tenth of a second.
"""

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.single import formats as small
from lib.single.formats import FloatFormat
from tests.bench_data import Figure, measure_all

NUMBERS = 10_000_000
LIMIT = 1.0  # s
CASTS = {
    small.BF16: torch.bfloat16,
    small.FP16: torch.float16,
    small.E5M2: torch.float8_e5m2,
    small.E4M3: torch.float8_e4m3fn,
    small.E8M0: torch.float8_e8m0fnu,
}
WITHOUT = (small.TF32, small.E3M2, small.E2M3, small.E2M1, FloatFormat(6, 9))
BLOCKS = (small.MXFP8, small.MXFP4, small.NVFP4)


def seconds(call, repeats):
    """The median of the seconds of a call, after one that is not counted."""
    call()
    taken = []
    for _ in range(min(repeats, 5)):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def formats(options):
    """Encode and decode of 10 million numbers against PyTorch's cast, and within a second."""
    x = torch.randn(NUMBERS)
    for form in (*CASTS, *WITHOUT, *BLOCKS):
        for name, ours, theirs in calls(form, x):
            a = seconds(ours, options.repeats)
            b = seconds(theirs, options.repeats) if theirs else LIMIT
            rival = "PyTorch's cast" if theirs else "the limit"
            title = f"{form.name}, {name} of 10 million numbers / {rival}"
            yield Figure(title, a, b, a / b, f"under {LIMIT:.0f} s", a < LIMIT, "s")


def calls(form, x):
    """Give the rows of a format: name, our call, and PyTorch's or None."""
    codes = form.encode(x)
    dtype = CASTS.get(form) if isinstance(form, FloatFormat) else None
    cast = None if dtype is None else x.to(dtype)
    yield "encode", lambda: form.encode(x), dtype and (lambda: x.to(dtype))
    yield "decode", lambda: form.decode(codes), dtype and (lambda: cast.float())
    yield "encode by chance", lambda: form.encode(x, "stochastic"), None


def main():
    """Measure what the options ask for."""
    measure_all((formats,), __doc__, repeats=20)


if __name__ == "__main__":
    main()
