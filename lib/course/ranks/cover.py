"""The cover of chapter 0: what each rank holds before and after an all-reduce."""

from lib.course.narrow import narrow, save
from lib.draw import collective

IMAGE = "all-reduce.png"


def write(path) -> None:
    """Write the picture."""
    save(narrow(collective("all_reduce")), path)
