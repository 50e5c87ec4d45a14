"""The exercises of chapter 10: predict, write and repair."""

import math

from lib.course.checks.numbers import Numbers
from lib.course.mixed_precision.sharded_step import Steps
from lib.course.mixed_precision.stochastic import Stochastic
from lib.predict.number_formats import BF16, E5M2, FP16

# --- predict

HALF, TINY = 0b1_10001_1010000000, 0b0_00000_11  # codes of FP16 and E5M2
LARGEST_GRADIENT = 0.3
WEIGHT, UPDATE, UPDATES = 4.0, 0.01, 100


def largest_scale(gradient: float = LARGEST_GRADIENT) -> float:
    """Return the largest power of two that keeps a gradient times it among the numbers of fp16."""
    return 2.0 ** math.floor(math.log2(FP16.largest / gradient))


def updated_weight() -> float:
    """Return what a weight in bf16 has become after updates that are each rounded to nearest."""
    weight = WEIGHT
    for _ in range(UPDATES):
        weight = BF16.value(BF16.code_of(weight + UPDATE))
    return weight


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "half": FP16.value(HALF),
        "tiny": E5M2.value(TINY),
        "scale": largest_scale,
        "weight": updated_weight,
    },  # fmt: skip
    close=1e-4,
    mistakes={
        "half": {
            6.5: "The first bit is 1, so the number is negative.",
            -2.5: "A normal number has a 1 before its mantissa that is not stored.",
            -3.25: "The bias of five exponent bits is 2^4 - 1 = 15.",
            -13.0: "The bias of five exponent bits is 2^4 - 1 = 15.",
        },
        "tiny": {
            1.75 * 2**-15: "Where all exponent bits are 0, no 1 stands before the mantissa.",
            1.75 * 2**-14: "Where all exponent bits are 0, no 1 stands before the mantissa.",
            0.75 * 2**-15: "Subnormal numbers have the exponent of the smallest normal number, "
            "1 - bias, and not 0 - bias.",
        },
        "scale": {
            17: "Give the power of two itself and not its exponent: the scale is 2 to this number.",
            2.0**18: "0.3 times this is 78,643, and fp16's largest number is 65,504.",
            2.0**16: "0.3 times this is 19,661. Twice the scale does not overflow yet.",
            FP16.largest / LARGEST_GRADIENT: "Scales are powers of two: which is the next below?",
        },
        "weight": {
            5.0: "From 4 to 8 numbers of bf16 are 2^-5 = 0.031 apart, and each update is rounded "
            "before the next one comes.",
            4.01: "This is the weight after one update in fp32. From 4 to 8 numbers of bf16 are "
            "2^-5 = 0.031 apart.",
        },
    },
    kinds=dict.fromkeys(("half", "tiny", "scale", "weight"), "value"),
    hints=(
        "A normal number is (-1)^sign · (1 + mantissa / 2^M) · 2^(exponent - bias), with M bits "
        "of mantissa and a bias of 2^(E - 1) - 1 for E bits of exponent. FP16 has 5 and 10 bits, "
        "E5M2 has 5 and 2.",
        "Where all exponent bits are 0 the number is subnormal: (-1)^sign · (mantissa / 2^M) · "
        "2^(1 - bias).",
        "A scaled gradient has to stay below fp16's largest number, 65,504. What is 65,504 / 0.3, "
        "and which power of two is the largest below it?",
        "Numbers of bf16 are 2^-7 apart from 1 to 2, and twice as far apart from each power of two "
        "on. What is half of that distance at 4?",
    ),
)

# --- write

write = Stochastic(
    name="write",
    hints=(
        "A bfloat16 is the upper half of a float32. What do the lower 16 bits say about where x "
        "lies between its two neighbours?",
        "`x.view(torch.int32)` gives the bits as whole numbers. If you add a random whole number "
        "from 0 to 2^16 - 1, how often does the sum carry into the upper half?",
        "Draw with torch.randint(0, 2**16, x.shape, generator=generator, dtype=torch.int32). Clear "
        "the lower half of the sum with `& -(2**16)`, and go back with `.view(torch.float32)`.",
    ),
)

# --- repair

repair = Steps(
    name="repair",
    hints=(
        "Which norm does this program compare with the limit: that of the gradient, or that of "
        "the gradient times the scale?",
        "Divide by the scale first, in float32. Then the norm is that of the gradient.",
        "In step 3 only the last rank has an infinity. Which ranks learn of it, and what do the "
        "others do to their scale?",
        "Make a number of this rank's decision, 1.0 for an overflow and 0.0 for none, and "
        "all-reduce it: the step is skipped everywhere where the sum is above 0.",
    ),
)
