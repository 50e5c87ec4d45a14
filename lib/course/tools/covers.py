"""Writes the covers, the pictures that a page shows before any code.

`python -m lib.course.tools.covers` writes all of them into chapters/images, and
`python -m lib.course.tools.covers pipeline ranks` only those of these folders. A cover.py in a
folder of lib/course has `IMAGE`, the name of the file, and `write(path)`, which writes it.
"""

import importlib
import sys
from pathlib import Path

COURSE = Path(__file__).parents[1]
IMAGES = COURSE.parents[1] / "chapters" / "images"


def covers() -> dict:
    """Return the module of each cover by the name of its folder."""
    folders = sorted(path.parent.name for path in COURSE.glob("*/cover.py"))
    return {name: importlib.import_module(f"lib.course.{name}.cover") for name in folders}


def main(names: list[str], images: Path = IMAGES) -> int:
    """Write the covers of the folders called `names`, or all; return the exit status."""
    known = covers()
    if unknown := [name for name in names if name not in known]:
        print(f"No folder with a cover is called {unknown[0]!r}: {', '.join(known)}.")
        return 2
    for name in names or known:
        known[name].write(images / known[name].IMAGE)
        print(f"{name:<16} {known[name].IMAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
