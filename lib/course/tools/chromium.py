"""Finds the browser in which pictures are tested: Debian's Chromium, or another one."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = "install it (Debian, Ubuntu: sudo apt install chromium) or say CHROMIUM=/path/to/it"


def chromium(environ=os.environ) -> str | None:
    """Return the path of the browser that CHROMIUM names, or of the first installed, or None."""
    names = [environ["CHROMIUM"]] if environ.get("CHROMIUM") else NAMES
    return next(filter(None, map(shutil.which, names)), None)
