"""Covers: each picture that a page shows before any code is written by one folder of the course."""

from lib.course.tools import covers


def test_each_picture_has_one_folder_that_writes_it():
    """A chapter's picture is in the chapter's own folder, so a new chapter touches no other."""
    images = [cover.IMAGE for cover in covers.covers().values()]
    assert sorted(images) == sorted(path.name for path in covers.IMAGES.iterdir())


def test_covers_are_written_by_the_names_of_their_folders(tmp_path, capsys):
    assert covers.main(["ranks", "pipeline"], tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"all-reduce.png", "bubble.png"}
    assert covers.main(["rank"], tmp_path) == 2
    assert (
        "No folder with a cover is called 'rank': asynchronous_pipelines,"
        in capsys.readouterr().out
    )
