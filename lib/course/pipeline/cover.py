"""The cover of chapter 6: GPipe's schedule with four stages and four microbatches."""

from lib.course.narrow import narrow, save
from lib.draw import schedule

IMAGE = "bubble.png"


def write(path) -> None:
    """Write the picture."""
    save(narrow(schedule("gpipe", stages=4, microbatches=4)), path)
