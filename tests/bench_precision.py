"""Measure numbers of few bits against PyTorch's own, in turns in this process.

    python tests/bench_precision.py [--repeats 20] [--launches 3] [--only formats,bf16]

A figure of `formats` is the median of at most five calls, each of which takes a tenth of a second.
One of `bf16` is the median of `launches` new worlds, in which the two step in turns.
"""

import dataclasses
import functools
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss
from lib.single import formats as small
from lib.single.formats import FloatFormat
from lib.single.precision import mixed
from tests.bench_data import Figure, compared, measure_all

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
SHAPE = GPTShape(width=256, heads=4, sequence=128)
SAMPLES = 2
UNITS = ("amx_bf16", "avx512_bf16", "avx_bf16", "svebf16", "bf16")  # as Linux names them


def seconds(call, repeats, clock=time.perf_counter):
    """The median of the seconds of a call, after one that is not counted."""
    call()
    taken = []
    for _ in range(min(repeats, 5)):
        began = clock()
        call()
        taken.append(clock() - began)
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


def gpt(kind, whole):
    """Make a GPT, its optimizer, a batch and the loss: "ours" computes in bf16, "theirs" in fp32.

    With `whole` its weights, gradients and optimizer are in bf16 too; else only products are.
    """
    model = GPT(SHAPE)
    if kind == "ours":
        model = model.bfloat16() if whole else mixed(model)
    tokens = torch.randint(256, (SAMPLES, SHAPE.sequence + 1))
    batch = tokens[:, :-1], tokens[:, 1:]
    return model, torch.optim.AdamW(model.parameters(), 1e-4), batch, next_token_loss


def bf16_units():
    """The instructions of this processor for products of bf16 numbers, as Linux names them."""
    file = Path("/proc/cpuinfo")
    flags = set(file.read_text().split()) if file.exists() else set()
    known = " and ".join(unit for unit in UNITS if unit in flags)
    if known:
        return f"units: {known}"
    return "no units: products are made in fp32, with conversions" if flags else "units unknown"


def bf16(options):
    """A step of a GPT in bf16 against fp32 on a CPU, and the parts that say why.

    A product gains where the processor has units for bf16: avx512_bf16 multiplies two pairs where
    fp32 multiplies one. The rest of a mixed step gains nothing: norms, softmax, loss and optimizer
    stay in fp32, and each product's inputs are converted first.
    """
    for name, whole in (("products in bf16", False), ("all in bf16", True)):
        title = f"{name} / all in fp32 ({bf16_units()})"
        for figure in compared("GPT", functools.partial(gpt, whole=whole), 1, options, title, 0):
            yield dataclasses.replace(figure, must="printed only", reached=True)
    yield from parts(options)


def parts(options):
    """The products of a feed-forward layer in bf16 against fp32, and against its conversions."""
    w = torch.randn(4 * SHAPE.width, SHAPE.width)
    rows = SAMPLES * SHAPE.sequence
    x, y = torch.randn(rows, SHAPE.width), torch.randn(rows, 4 * SHAPE.width)
    low = [t.bfloat16() for t in (w, x, y)]

    def products(w, x, y):
        return x @ w.T, y @ w, y.T @ x  # forward, and backward to the input and to the weight

    def conversions():
        return w.bfloat16(), x.bfloat16(), low[0].float(), low[1].float()

    measured = functools.partial(seconds, repeats=options.repeats, clock=time.process_time)
    high = measured(lambda: products(w, x, y))
    for name, call in (("products in bf16", lambda: products(*low)), ("conversions", conversions)):
        taken = measured(call)
        title = (
            f"CPU time of a layer of {SHAPE.width} x {4 * SHAPE.width}, {name} / products in fp32"
        )
        yield Figure(title, 1e3 * taken, 1e3 * high, taken / high, "printed only", True)


def main():
    """Measure what the options ask for."""
    measure_all((formats, bf16), __doc__, repeats=20)


if __name__ == "__main__":
    main()
