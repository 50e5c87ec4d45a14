"""The experiment with Gist's encodings: lossless ones lose nothing, and bytes are predicted."""

import pytest
import torch

from lib.course.recomputation.gist import ENCODINGS, compared, images, table
from lib.predict.recompute.encodings import vgg
from tests.every import every

NAMES = ("plain", "lossless", "fp8", "all, fp8")


@pytest.fixture(scope="module")
def results():
    """Short trainings from two seeds."""
    return compared(NAMES, seeds=(0, 1), steps=12)


def test_lossless_encodings_give_the_plain_losses(results):
    plain, lossless = results["plain"], results["lossless"]
    pairs = list(zip(plain, lossless, strict=True))
    assert every(a.losses == b.losses and a.accuracy == b.accuracy for a, b in pairs)
    assert every(len(run.losses) == 12 and run.loss < run.losses[0] for run in plain)
    assert plain[0].losses != plain[1].losses


def test_lossy_ones_begin_like_the_plain_one_and_then_differ(results):
    for name in NAMES[2:]:
        for plain, run in zip(results["plain"], results[name], strict=True):
            assert run.losses[0] == plain.losses[0] and run.losses[1:] != plain.losses[1:]


def test_bytes_are_the_predicted_ones(results):
    runs = [run for name in NAMES for run in results[name]]
    assert every(run.kept == run.predicted and 0 < run.zeros < 1 for run in runs)
    kept = [results[name][0].kept for name in NAMES]
    assert kept[0] == sum(one.plain for one in vgg(16)) and kept[3] < min(kept[:3])


def test_it_is_the_same_again_whatever_the_threads(results):
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    try:
        again = compared(("all, fp8",), seeds=(1,), steps=12)["all, fp8"]
        assert torch.get_num_threads() == 3 - min(threads, 2)
    finally:
        torch.set_num_threads(threads)
    assert again == results["all, fp8"][1:]


def test_the_table_has_a_row_for_each(results):
    head, *rows = table(results).splitlines()
    assert head.split() == ["kept", "fewer", "loss", "by", "seed"]
    assert [row[:9].strip() for row in rows] == list(NAMES)
    losses = [f"{one.loss:.3f}" for one in results["plain"]]
    kept = f"{results['plain'][0].kept / 1e3:,.0f}"
    assert rows[0].split()[1:] == [kept, "kB", "1.0x", *losses]
    assert rows[1].split()[-2:] == losses, "lossless: to the last digit"
    mean = sum(one.loss for one in results["fp8"]) / 2
    assert rows[2].endswith(f"others, mean {mean:.1f}")


def test_images():
    x, classes = images(200, 0)
    assert x.shape == (200, 3, 16, 16) and set(classes.tolist()) == set(range(10))
    again, other = images(200, 0), images(200, 1)
    assert torch.equal(x, again[0]) and torch.equal(classes, again[1])
    assert not torch.equal(x, other[0])


def test_each_encoding_has_a_row():
    assert list(ENCODINGS)[0] == "plain" and ENCODINGS["plain"] == {}
    assert every(set(one) >= {"binarise", "sparse"} for one in list(ENCODINGS.values())[1:])
