"""The cover of chapter 12: the blocks of a zigzag ring on four ranks."""

from lib.course.narrow import narrow, save
from lib.draw import attention_blocks

IMAGE = "sequence.png"


def write(path) -> None:
    """Write the picture."""
    save(narrow(attention_blocks("zigzag")), path)
