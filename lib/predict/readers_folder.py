"""Where the reader's own files are: in the clone, or outside of one that cannot be written.

The copies of the chapters, the calibrations and what is remembered of the reader lie in the folder
`my-chapters`. A clone that a class shares is read-only; then that folder is in `~/many-ranks`, with
links to the clone beside it: `../data` and `../lib` mean the same in both.
"""

import os
from pathlib import Path

CLONE = Path(__file__).parents[2]
FOLDER = "my-chapters"  # git ignores it
LINKED = ("chapters", "data", "lib", "README.md", "book.yml")


def course() -> Path:
    """Return the folder that holds `my-chapters` and `chapters`: the clone, or the reader's own.

    RANKS_HOME in the environment names another folder.
    """
    if named := os.environ.get("RANKS_HOME"):
        return Path(named).expanduser().absolute()
    mine = CLONE / FOLDER
    writable = os.access(mine if mine.exists() else CLONE, os.W_OK)
    return CLONE if writable else Path.home() / "many-ranks"


def folder() -> Path:
    """Return the folder of what is the reader's own, which may not exist yet."""
    return course() / FOLDER


def link(home: Path) -> None:
    """Make the folder `home`, with links to the clone for all that the reader does not write.

    Raises OSError where it cannot be written, or has other things under these names.
    """
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        place, target = home / name, CLONE / name
        if place.is_symlink():
            if place.readlink() == target:
                continue
            place.unlink()  # the clone has moved
        elif place.exists():
            raise FileExistsError(17, f"{name} is there already, and no link to {target}")
        place.symlink_to(target)
