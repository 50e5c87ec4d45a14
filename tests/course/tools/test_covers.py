"""Covers: each picture that a page shows before any code is written by one folder of the course."""

import pytest
from PIL import Image, ImageChops

from lib.course.tools import covers

DRAWN = [module for modules in covers.covers().values() for module in modules]
PREDICTED = [module for module in DRAWN if module.IMAGE.endswith(".png")]  # others are recorded


def test_each_picture_has_one_folder_that_writes_it():
    """A chapter's picture is in the chapter's own folder, so a new chapter touches no other."""
    images = [module.IMAGE for module in DRAWN]
    assert sorted(images) == sorted(path.name for path in covers.IMAGES.iterdir())


def test_covers_are_written_by_the_names_of_their_folders(tmp_path, capsys):
    assert covers.main(["ranks", "pipeline"], tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"all-reduce.png", "bubble.png"}
    assert covers.main(["rank"], tmp_path) == 2
    assert (
        "No folder with a cover is called 'rank': asynchronous_pipelines,"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("module", PREDICTED, ids=lambda module: module.IMAGE)
def test_a_stored_picture_is_what_is_drawn_today(module, tmp_path):
    """Letters may differ by a hair between versions of a font; lines and colours do not."""
    drawn = tmp_path / module.IMAGE
    module.write(drawn)
    stored, today = (
        Image.open(file).convert("L") for file in (covers.IMAGES / module.IMAGE, drawn)
    )
    assert stored.size == today.size, f"python -m lib.course.tools.covers writes {module.IMAGE}"
    difference = ImageChops.difference(stored, today).resize((64, 64), Image.Resampling.BOX)
    assert difference.getextrema()[1] < 48
