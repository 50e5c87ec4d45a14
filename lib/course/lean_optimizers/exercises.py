"""The exercises of chapter 11: predict, write, repair, and the smallest optimizer that learns."""

from math import prod

from lib.course.checks.numbers import Numbers
from lib.course.lean_optimizers.adam_repair import AdamRepair
from lib.course.lean_optimizers.sm3_step import SM3Step
from lib.course.lean_optimizers.smallest import Smallest
from lib.predict.optimizers import state_bytes

# --- predict

MATRIX, VECTOR, KERNEL = (4096, 1024), (4096,), (64, 32, 3, 3)
SHAPES = (MATRIX, VECTOR, KERNEL)
WEIGHTS = sum(map(prod, SHAPES))

predict = Numbers(
    name="predict",
    task="Put a number of bytes in place of each None.",
    answers={
        "adam": state_bytes("adam", SHAPES),
        "adafactor": state_bytes("adafactor", SHAPES),
        "sm3": state_bytes("sm3", SHAPES, momentum=False),
        "sm3_with_momentum": state_bytes("sm3", SHAPES),
    },
    close=1e-3,
    mistakes={
        "adam": {
            4 * WEIGHTS: "Adam keeps two numbers for each weight.",
            12 * WEIGHTS: "The weights themselves are not the optimizer's.",
            2 * WEIGHTS: "These are numbers. Each takes 4 bytes.",
        },
        "adafactor": {
            4 * (4096 + 1024 + 64 * 32 * (3 + 3)): "A vector has no rows and columns: Adafactor "
            "keeps one number for each of its weights.",
            4 * (4096 + 1024 + 4096 + 64 + 32 + 3 + 3): "For more than two dims Adafactor takes "
            "the last two as rows and columns, in each of the 64 · 32 matrices of 3 x 3.",
            4 * (4096 + 1024 + 4096 + 64 + 288): "The kernel is not flattened to 64 x 288: the "
            "last two dims are the rows and columns of 64 · 32 matrices of 3 x 3.",
            4096 + 1024 + 4096 + 64 * 32 * (3 + 3): "These are numbers. Each takes 4 bytes.",
        },
        "sm3": {
            4 * (4096 + 1024 + 4096 + 64 * 32 * (3 + 3)): "SM3 keeps one number for each slice "
            "along each dim: 64 + 32 + 3 + 3 for the kernel.",
            4 * (4096 + 1024 + 64 + 32 + 3 + 3): "A vector's slices along its one dim are single "
            "weights: SM3 keeps one number for each.",
            4096 + 1024 + 4096 + 64 + 32 + 3 + 3: "These are numbers. Each takes 4 bytes.",
        },
        "sm3_with_momentum": {
            4 * WEIGHTS: "This is the momentum alone. The sums of SM3 come on top."
        },
    },
    kinds={"adam": "bytes", "adafactor": "bytes", "sm3": "bytes", "sm3_with_momentum": "bytes"},
    hints=(
        "Adam keeps two numbers of 4 bytes for each weight. How many weights are there?",
        "Adafactor keeps one number for each row and one for each column of a matrix, and one for "
        "each weight of a vector. A kernel of [64, 32, 3, 3] is 64 · 32 matrices of 3 x 3.",
        "SM3 keeps one number for each slice along each dim: n + m for a matrix, 64 + 32 + 3 + 3 "
        "for the kernel. With momentum there is one more number for each weight.",
    ),
)

# --- write

write = SM3Step(
    name="write",
    hints=(
        "`rows[i]` and `columns[j]` are both upper bounds of what entry (i, j) has gathered. Which "
        "of the two is nearer to it?",
        "nu is the smaller of both bounds plus the square of the gradient. `rows[:, None]` and "
        "`columns[None]` have shapes that go together: torch.minimum gives [n, m].",
        "The new bound of a row is the largest nu in it: nu.amax(1). That of a column is "
        "nu.amax(0).",
    ),
)

# --- repair

repair = AdamRepair(
    name="repair",
    hints=(
        "In the first step m is (1 - b1) g, a tenth of the gradient. What do you divide it by, so "
        "that it is g?",
        "After t gradients the weights of the moving average add up to 1 - b1^t. Divide m by it, "
        "and v by 1 - b2^t.",
        "`late` has its first gradient in the third call of `step`. What is its t there? Keep t "
        "beside m and v in self.state[p], and add 1 only where p has a gradient.",
    ),
)

# --- going further

smallest = Smallest(
    name="smallest",
    hints=(
        "Try what keeps nothing: divide each gradient by its root mean square, "
        "g / g.square().mean().sqrt(). It learns better than Adam here, and not as well as par.",
        "Large matrices need larger steps than small ones: multiply the step by the root mean "
        "square of the weights, but by at least 1e-3, as Adafactor does.",
        "Keep the mean square of each row and of each column in a moving average that forgets "
        "1 - t^-0.8, and divide the gradient by the root of their product over the rows' mean.",
    ),
)
