"""The cover of chapter 10: a number, and gradients, that fp16 rounds to zero."""

from lib.course.mixed_precision.gradients import gradients, powers
from lib.course.mixed_precision.networks import DETECTOR
from lib.course.narrow import narrow, save
from lib.draw import bits
from lib.draw.parts.picture import Picture

IMAGE = "mixed-precision.png"


def picture() -> Picture:
    """Draw 1e-8 in fp16, over the gradients of the detector's first step."""
    counts, zeros = powers(gradients(DETECTOR).all)
    return bits(1e-8, "fp16", None, exponents=counts, zeros=zeros, what="gradients")


def write(path) -> None:
    """Write the picture."""
    save(narrow(picture()), path)
