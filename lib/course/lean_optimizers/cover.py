"""The cover of chapter 11: what a device keeps of Llama 3 8B with each optimizer."""

from lib.course.lean_optimizers.lessons import LLAMA
from lib.course.narrow import narrow, save
from lib.draw import optimizers

IMAGE = "lean-optimizers.png"


def write(path) -> None:
    """Write the picture."""
    save(narrow(optimizers(LLAMA)), path)
