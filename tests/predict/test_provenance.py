"""The device and link behind a time, as plain data."""

import json

from lib.predict import hardware
from lib.predict.provenance import link_of, speeds_of
from lib.ranks.slow_motion import SlowMotion

NVLINK = hardware.link("NVLink4")


def test_a_link_of_the_table_is_named_with_its_figures():
    told = speeds_of(SlowMotion("H100", factor=200.0))
    assert told == {
        "gpu": "H100", "dtype": "bf16", "link": "NVLink4", "factor": 200.0,
        "alpha": float(NVLINK.alpha), "bandwidth": float(NVLINK.bandwidth),
    }  # fmt: skip


def test_a_link_with_another_latency_or_bandwidth_is_invented():
    real = [float(NVLINK.alpha), float(NVLINK.bandwidth)]
    for more in ({"alpha": 1e-7}, {"bandwidth": 1.3e12}):
        told = speeds_of(SlowMotion("H100", link="nvlink 4", **more))
        assert told["invented"] and told["real"] == real and told["link"] == "NVLink4"
    assert "invented" not in link_of("NVLink4", *real)


def test_a_link_that_the_table_does_not_know_was_measured():
    assert link_of("this machine", 1e-5, 1e9) == {
        "link": "this machine", "alpha": 1e-5, "bandwidth": 1e9,
    }  # fmt: skip
    assert link_of(None, 1e-5, None) == {"alpha": 1e-5}


def test_it_survives_as_json():
    told = speeds_of(SlowMotion("H100", alpha=1e-7))
    assert json.loads(json.dumps(told)) == told
