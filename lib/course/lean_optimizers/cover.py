"""The cover of chapter 11: what is kept of Llama 3 70B with each optimizer."""

from lib.course.narrow import narrow, save
from lib.draw import optimizers

IMAGE, MODEL = "lean-optimizers.png", "Llama 3 70B"


def write(path) -> None:
    """Write the picture."""
    save(narrow(optimizers(MODEL)), path)
