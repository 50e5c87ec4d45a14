"""The exercises of chapter 10: predict, write and repair."""

from lib.course.checks.numbers import Numbers
from lib.course.mixed_precision.sharded_step import Steps
from lib.course.mixed_precision.stochastic import Stochastic
from lib.predict.number_formats import E4M3, E5M2, FP16

# --- predict

CODES = {
    "half": (FP16, 0b1_10001_1010000000),
    "tiny": (E5M2, 0b0_00000_11),
    "high": (E4M3, 0b1_1111_010),
}

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={name: number_format.value(code) for name, (number_format, code) in CODES.items()},
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
        "high": {
            320.0: "The first bit is 1, so the number is negative.",
            -64.0: "A normal number has a 1 before its mantissa that is not stored.",
            -160.0: "The bias of four exponent bits is 2^3 - 1 = 7.",
            -640.0: "The bias of four exponent bits is 2^3 - 1 = 7.",
        },
    },
    kinds={"half": "value", "tiny": "value", "high": "value"},
    hints=(
        "A normal number is (-1)^sign · (1 + mantissa / 2^M) · 2^(exponent - bias), with M bits "
        "of mantissa and a bias of 2^(E - 1) - 1 for E bits of exponent.",
        "Where all exponent bits are 0 the number is subnormal: (-1)^sign · (mantissa / 2^M) · "
        "2^(1 - bias).",
        "FP16 has 5 and 10 bits, E5M2 has 5 and 2, E4M3 has 4 and 3. In E4M3 only the code whose "
        "exponent and mantissa are all ones is NaN; all others are numbers.",
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
