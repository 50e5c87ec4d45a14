"""The cover of chapter 10: a number that fp16 rounds to zero and bf16 does not."""

from lib.course.narrow import narrow, save
from lib.draw import bits
from lib.draw.parts.picture import Picture

IMAGE = "mixed-precision.png"


def picture() -> Picture:
    """Draw 1e-8 in fp16 and in bf16."""
    return bits(1e-8, "fp16", "bf16")


def write(path) -> None:
    """Write the picture."""
    save(narrow(picture()), path)
