"""Writes the covers, the pictures that a page shows before any code, and others beside its text.

`python -m lib.course.tools.covers` writes all of them into chapters/images, and
`python -m lib.course.tools.covers pipeline ranks` only those of these folders. A cover.py or a
file whose name ends in _picture.py in a folder of lib/course has `IMAGE`, the name of the file, and
`write(path)`, which writes it.
"""

import importlib
import sys
from pathlib import Path

COURSE = Path(__file__).parents[1]
IMAGES = COURSE.parents[1] / "chapters" / "images"


def covers() -> dict[str, list]:
    """Return the modules of the pictures by the name of their folder, the cover first."""
    found: dict[str, list] = {}
    files = [*sorted(COURSE.glob("*/cover.py")), *sorted(COURSE.glob("*/*_picture.py"))]
    for file in sorted(files, key=lambda file: file.parent.name):
        folder = file.parent.name
        module = importlib.import_module(f"lib.course.{folder}.{file.stem}")
        found.setdefault(folder, []).append(module)
    return found


def main(names: list[str], images: Path = IMAGES) -> int:
    """Write the pictures of the folders called `names`, or all; return the exit status."""
    known = covers()
    if unknown := [name for name in names if name not in known]:
        print(f"No folder with a cover is called {unknown[0]!r}: {', '.join(known)}.")
        return 2
    for name in names or known:
        for module in known[name]:
            module.write(images / module.IMAGE)
            print(f"{name:<16} {module.IMAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
