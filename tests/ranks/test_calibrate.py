"""calibrate(world): measures once, keeps it, measures again when it is stale, and is believed."""

import itertools
import pickle
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.predict import hardware
from lib.predict import stored_calibrations as store
from lib.ranks import calibrate as module
from lib.ranks.calibrate import calibrate
from lib.ranks.slow_motion import SlowMotion
from tests.every import every
from tests.predict.calibrations import OPS, calibration


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep what is measured here apart from the reader's own, and measure little."""
    monkeypatch.setattr(store, "FOLDER", tmp_path / "my-chapters")
    monkeypatch.setattr(store, "_measured", [])
    monkeypatch.setattr(module, "ROUNDS", (2, 2))
    return store.FOLDER


@pytest.fixture
def small(worlds, monkeypatch):
    """A World of two ranks, with small tensors to measure."""
    measure_little(monkeypatch)
    return worlds(2)


@pytest.fixture
def pair(worlds, monkeypatch):
    """A World of two ranks that are told to have been measured: what is tried is all the rest."""
    numbers = itertools.count()

    def measured(world, facts, say):
        return replace(calibration(), facts=facts, took=float(next(numbers)))

    monkeypatch.setattr(module, "_measured", measured)
    return worlds(2)


def measure_little(monkeypatch):
    monkeypatch.setattr(module, "PRODUCTS", (64, 128))
    monkeypatch.setattr(module, "NUMELS", (4**4, 4**6))
    monkeypatch.setattr(module, "SIZES", (2**12, 2**14, 2**16))


def test_everything_is_measured_and_kept(small, capsys):
    this = calibrate(small)
    assert {sweep.op for sweep in this.sweeps} == set(OPS)
    assert every(sweep.ranks == 2 and len(sweep.rounds) == 2 for sweep in this.sweeps)
    assert every(time > 0 for sweep in this.sweeps for time in sweep.seconds)
    assert set(this.products) == {"fp32", "bf16"} and this.overhead > 0
    assert 0 <= this.hidden <= 1 and this.memory_bytes > 1e8
    assert this.facts["torch"] == torch.__version__ and this.facts["ranks"] == 2
    assert store.read(store.path(2, small.device)) == this
    said = capsys.readouterr().out
    assert "No calibration of 2 ranks is stored here yet." in said
    assert "This takes up to" in said and "Measured in" in said and "my-chapters" in said


def test_what_is_stored_is_read_and_not_measured(pair, capsys, monkeypatch):
    first = calibrate(pair, quiet=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(module, "_measured", None)
    assert calibrate(pair) == first
    assert f"measured {first.date} and read from" in capsys.readouterr().out


@pytest.mark.parametrize("fact", ["machine", "torch", "threads"])
def test_a_stale_one_is_measured_again_and_says_why(pair, capsys, fact):
    this = calibrate(pair, quiet=True)
    this.facts[fact] = "another"
    store.write(this, store.path(2, pair.device))
    again = calibrate(pair)
    said = capsys.readouterr().out
    assert "The stored calibration is stale." in said and "another" in said
    assert "It is measured again." in said
    assert again.facts[fact] != "another" and store.read(store.path(2, pair.device)) == again


def test_a_file_that_cannot_be_read_is_measured_again(pair, capsys, folder):
    folder.mkdir()
    store.path(2, pair.device).write_text("nonsense")
    calibrate(pair)
    assert "holds no calibration that can be read" in capsys.readouterr().out
    store.read(store.path(2, pair.device))


def test_it_is_measured_again_when_asked(pair):
    first = calibrate(pair, quiet=True)
    assert calibrate(pair, again=True, quiet=True) != first


def test_a_folder_that_cannot_be_written_is_told_and_the_result_is_still_found(
    pair, capsys, folder
):
    folder.parent.joinpath("my-chapters").write_text("a file where the folder should be")
    this = calibrate(pair)
    assert "It is not kept, since" in capsys.readouterr().out
    assert hardware.calibrated("this machine") is this


def test_one_rank_has_no_collectives(small, worlds):
    this = calibrate(worlds(1), quiet=True)
    assert this.sweeps == () and this.compute(1e6, 1e3) > 0 and "no collectives" in repr(this)
    assert this.moving("all_reduce", 1, 1000) == 0


def test_four_ranks_are_measured_in_pairs_too(small, worlds, monkeypatch, capsys):
    monkeypatch.setattr(module, "BUDGET", 0.0)
    store.write(calibration(), store.path(2))  # another number of ranks does not stand for this one
    this = calibrate(worlds(4))
    said = capsys.readouterr().out
    assert "No calibration of 4 ranks is stored here yet, only this-machine-2-ranks.yaml." in said
    assert {sweep.ranks for sweep in this.sweeps} == {2, 4}
    assert this.sweep("all_reduce").ranks == 4 and this.sweep("all_reduce", 2).ranks == 2
    assert worlds(4).run(dist.get_world_size) == [4] * 4  # the ranks go on


# --- slow motion


def test_slow_motion_takes_a_measured_machine():
    this = calibration()
    store.remember(this)
    speeds = SlowMotion("this machine", dtype="fp32", factor=10)
    for flop, nbytes in ((1e9, 1e3), (0, 1e8), (0, 4), (0, 0)):
        assert speeds.compute(flop, nbytes) == this.compute(flop, nbytes)
    assert speeds.moving("all_gather", 2, 10**6) == this.moving("all_gather", 2, 10**6)
    assert speeds.seconds(torch.ones(100, 100).mm, torch.ones(100, 100)) == pytest.approx(
        this.compute(2e6, 3 * 40_000)
    )
    assert "invented" not in speeds.describe() and "this machine" in speeds.describe()
    there = pickle.loads(pickle.dumps(speeds))  # as a rank gets it, which has no file
    store._measured.clear()
    assert there == speeds and there.compute(1e9, 1) == this.compute(1e9, 1)


def test_a_device_or_a_link_may_be_another_one():
    this = calibration()
    store.remember(this)
    plain = SlowMotion("H100", link="NVLink4")
    wire = SlowMotion("H100", link="this machine")
    assert wire.compute(1e12, 0) == plain.compute(1e12, 0)
    assert wire.moving("send", 2, 10**6) == this.moving("send", 2, 10**6)
    device = SlowMotion("this machine", link="NVLink4", dtype="fp32")
    assert device.compute(1e9, 0) == this.compute(1e9, 0)
    assert device.moving("send", 2, 10**6) == plain.moving("send", 2, 10**6)
    replaced = SlowMotion("this machine", alpha=1.0, bandwidth=1.0)
    assert replaced.moving("send", 2, 3) == 4.0


# --- refused


def test_what_cannot_be_measured_is_refused_in_a_sentence(worlds):
    with pytest.raises(ValueError, match="calibrate measures the ranks of a World, not 4."):
        calibrate(4)


def test_slow_motion_cannot_be_calibrated(worlds):
    world = worlds(2, device="cpu")
    world.slow_motion = SlowMotion("H100", factor=10)
    try:
        with pytest.raises(ValueError, match="runs in slow motion, so its times are not") as said:
            calibrate(world)
    finally:
        world.slow_motion = None
    assert str(said.value).endswith(".")


def test_a_machine_that_was_never_measured_is_no_hardware():
    with pytest.raises(ValueError, match="No calibration of 'this machine' is stored"):
        SlowMotion("this machine")


@pytest.mark.quiet
def test_a_calibration_takes_under_half_a_minute(worlds, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(store, "remember", lambda this: None)
    monkeypatch.setattr(store, "write", lambda this, file: None)
    assert calibrate(worlds(2), again=True, quiet=True).took < 30
