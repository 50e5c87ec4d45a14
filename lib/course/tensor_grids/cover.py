"""The cover of chapter 5: SUMMA on four ranks, after its first two broadcasts."""

from lib.course.narrow import narrow, save
from lib.draw import shards

IMAGE = "grids.png"
NAMES = "x [M, K] · W [K, N] -> y [M, N]"
STEP = 2  # both broadcasts of the first step have arrived


def write(path) -> None:
    """Write the picture."""
    save(narrow(shards("2d", step=STEP, names=NAMES)), path)
