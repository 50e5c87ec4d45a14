"""A calibration in the reader's folder: read as written, found by name, stale for each reason."""

import os
import pickle

import pytest
import yaml

from lib.predict import hardware
from lib.predict import stored_calibrations as store
from lib.predict.collectives.formulas import time_of
from tests.predict.calibrations import calibration, facts, swept


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Let what is stored and found here be apart from the reader's own."""
    monkeypatch.setattr(store, "FOLDER", tmp_path / "my-chapters")
    monkeypatch.setattr(store, "_measured", [])
    return store.FOLDER


def test_the_file_lies_beside_the_readers_copies(monkeypatch):
    monkeypatch.undo()
    assert store.path(2).parts[-2:] == ("my-chapters", "this-machine-2-ranks.yaml")
    assert store.path(1).name == "this-machine-1-rank.yaml"
    assert store.path(8, "cuda").name == "this-machine-8-ranks-cuda.yaml"


def test_what_is_read_is_what_was_written():
    this = calibration()
    store.write(this, store.path(2))
    again = store.read(store.path(2))
    assert again == this and again is not this
    assert str(again) == str(this)
    assert [file.name for file in store.FOLDER.iterdir()] == ["this-machine-2-ranks.yaml"]


def test_a_reader_can_read_the_file():
    store.write(calibration(), store.path(2))
    text = store.path(2).read_text(encoding="utf-8")
    assert text.startswith("# What this machine can do")
    assert yaml.safe_load(text)["facts"]["ranks"] == 2
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize(
    "text", ["", "[1, 2", "facts: {ranks: 2}", "a list", "- 1", "\x00", "facts: 3\nproducts: {}"]
)
def test_a_file_that_holds_none_is_refused_in_a_sentence(text, folder):
    folder.mkdir()
    store.path(2).write_text(text)
    with pytest.raises(ValueError, match="holds no calibration that can be read") as refusal:
        store.read(store.path(2))
    assert str(refusal.value).endswith(".")


def test_a_file_with_a_part_missing_is_refused():
    store.write(calibration(), store.path(2))
    whole = yaml.safe_load(store.path(2).read_text())
    assert len(whole) == 9
    for part in whole:
        store.path(2).write_text(yaml.safe_dump({k: v for k, v in whole.items() if k != part}))
        with pytest.raises(ValueError, match="holds no calibration"):
            store.read(store.path(2))


@pytest.mark.parametrize(
    ("fact", "now", "sentence"),
    [
        ("machine", "Abacus, 1 core", "It was measured on another machine, .*; this is Abacus"),
        ("gpus", "NVIDIA H100", "It was measured on other GPUs"),
        ("ranks", 4, "It was measured with 2 ranks; this World has 4."),
        ("device", "cuda", "It was measured on cpu; these ranks run on cuda."),
        ("backend", "nccl", "It was measured over gloo; these ranks use nccl."),
        ("torch", "2.14.0", "It was measured with torch 2.13.0; this is torch 2.14.0."),
        ("threads", 8, "It was measured with 1 threads on each rank; now each has 8."),
    ],
)
def test_it_is_stale_for_each_reason_and_says_it(fact, now, sentence):
    import re

    this = calibration()
    assert store.stale(this, facts()) == []
    (reason,) = store.stale(this, facts(**{fact: now}))
    assert re.match(sentence, reason) and reason.endswith(".")


def test_every_fact_can_make_it_stale():
    other = {name: f"other {name}" for name in facts()}
    assert len(store.stale(calibration(), other)) == len(facts())


# --- by name


@pytest.mark.parametrize("name", ["this machine", "This Machine", "this machine, 2 ranks"])
def test_it_is_found_by_its_name(name):
    this = calibration()
    store.write(this, store.path(2))
    card, wire = hardware.gpu(name), hardware.link(name)
    assert card.name == wire.name == card.link == "this machine, 2 ranks"
    assert hardware.calibrated(name) == this
    assert hardware.calibrated("H100") is None


def test_it_is_a_device_with_figures_that_say_what_they_are():
    store.remember(calibration())
    card, wire = hardware.gpu("this machine"), hardware.link("this machine")
    assert card.peak == {"fp32": 1e11, "bf16": 2e11} and card.memory_bandwidth == 1e10
    assert card.memory_bytes == 8e9 and card.matmul_efficiency is None
    for figure in (card.peak["fp32"], card.memory_bandwidth, wire.alpha, wire.bandwidth):
        assert "calibrate" in figure.source and figure.date == "2026-11-22" and figure.unit
    assert "all_reduce of 2 ranks, off by at most 0%" in wire.note
    assert pickle.loads(pickle.dumps((card, wire))) == (card, wire)


def test_a_ring_over_the_link_takes_what_was_measured():
    this = calibration()
    store.remember(this)
    wire = hardware.link("this machine")
    ring = time_of("all_reduce", 2, 10**6, alpha=wire.alpha, beta=wire.beta)
    assert ring == pytest.approx(this.moving("all_reduce", 2, 10**6))
    wire = hardware.link_of(this, "all_gather")
    ring = time_of("all_gather", 2, 10**6, alpha=wire.alpha, beta=wire.beta)
    assert ring == pytest.approx(this.moving("all_gather", 2, 10**6))


def test_the_newest_counts_unless_a_number_of_ranks_is_named():
    for age, ranks in enumerate((4, 2)):
        this = calibration([swept(ranks=ranks)], ranks=ranks)
        store.write(this, store.path(ranks))
        os.utime(store.path(ranks), (1e9 - 1000 * age,) * 2)
    assert store.find().facts["ranks"] == 4
    assert store.find("this machine, 2 ranks").facts["ranks"] == 2
    store.remember(calibration())
    assert store.find().facts["ranks"] == 2, "what this process has measured is newer"


def test_without_one_the_sentence_says_how_to_measure():
    for look in (hardware.gpu, hardware.link):
        with pytest.raises(ValueError, match="No calibration of 'this machine, 2 ranks'.*"):
            look("this machine, 2 ranks")


def test_another_machines_is_not_taken_for_this_ones():
    store.write(calibration(machine="Abacus, 1 core"), store.path(2))
    with pytest.raises(ValueError, match="is stale. It was measured on another machine, Abacus"):
        hardware.gpu("this machine")


def test_it_is_not_among_the_names_of_the_table():
    store.remember(calibration())
    assert not [name for name in (*hardware.gpus(), *hardware.links()) if store.is_name(name)]
