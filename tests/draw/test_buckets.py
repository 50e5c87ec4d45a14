"""The still of buckets in flight, what its browser side is given, and what real ranks answer."""

import json
import re

import pytest
import torch
from torch import nn

from lib.draw import buckets
from lib.draw.parts import layout, style
from lib.ledger import Ledger, Row
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data.bucket_overlap import fly
from lib.predict.data.buckets import CAP, FIRST
from lib.ranks.state.this_rank import span
from tests import pace
from tests.draw.marks import texts
from tests.every import every

MIB = 2**20
LAYERS = {"nbytes": [MIB] * 8, "seconds": [0.001] * 8}
NET = {"ranks": 2, "alpha": 0.0, "bandwidth": MIB / 0.001}  # a MiB takes 1 ms, as its backward does


def picture(**more):
    return buckets(*LAYERS.values(), **NET, **more)


def boxes(drawn, about):
    return [m for m in drawn.marks if m.kind == "box" and re.fullmatch(about, m.about, re.S)]


def test_backward_runs_from_the_last_layer_to_the_first_in_the_colours_of_the_buckets():
    drawn = picture(bucket_bytes=2 * MIB)
    gradients = boxes(drawn, r"\d: .*")
    assert [m.about[0] for m in sorted(gradients, key=lambda m: m.x)] == list("76543210")
    assert [m.fill for m in gradients] == [style.piece(n // 2) for n in range(8)]
    assert {round(mark.w, 6) for mark in gradients} == {round(gradients[0].w, 6)}


def test_an_all_reduce_begins_where_its_bucket_is_full_and_the_lane_is_free():
    drawn = picture(bucket_bytes=2 * MIB)
    gradients, moving = boxes(drawn, r"\d: .*"), boxes(drawn, r"bucket \d: 2 gradients, .*")
    width = gradients[0].w
    assert [m.fill for m in moving] == [style.piece(n) for n in range(4)]
    for n, bar in enumerate(moving):
        last = gradients[2 * n + 1]
        assert bar.x == pytest.approx(last.x + last.w) and bar.w == pytest.approx(2 * width)
        assert bar.y > last.y + last.h
    (exposed,) = boxes(drawn, "backward is over, .* exposed")
    assert exposed.hatch and exposed.w == pytest.approx(2 * width)
    assert "exposed 2 ms of 8 ms communication (25 %)" in texts(drawn)


def test_a_bucket_rises_while_it_fills_and_the_largest_reaches_the_top():
    drawn = buckets([MIB, 3 * MIB], [0.001, 0.003], bucket_bytes=1, **NET)
    small, large = (m for m in drawn.marks if m.kind == "area")
    small, large = sorted(([y for _, y in m.points] for m in (small, large)), key=min)[::-1]
    assert max(large) - min(large) == pytest.approx(3 * (max(small) - min(small)))


def test_the_default_is_torch_s_rule_and_says_so():
    drawn = buckets([10 * MIB] * 8, 0.1, **NET)
    assert "4 buckets; full at 1 MiB, later ones at 25 MiB" in texts(drawn)
    assert "  bucket 0: 1 gradient, 10,485,760 bytes\n" in drawn.summary
    data = drawn.live[1]
    assert data["stops"][data["start"]["stop"]] == [FIRST, CAP]
    plain = buckets([10 * MIB] * 8, 0.1, bucket_bytes=CAP, **NET)
    assert "3 buckets; full at 25 MiB" in texts(plain)


def test_the_slider_goes_from_one_gradient_a_bucket_to_all_in_one():
    data = buckets([7, 100, 3000], 0.1, **NET).live[1]
    plain = [stop[0] for stop in data["stops"] if len(stop) == 1]
    assert plain[0] == 7 and plain[-1] == 3107 and plain == sorted(set(plain))
    even = [b / a for a, b in zip(plain[60:], plain[61:])]
    assert max(even) - min(even) < 0.01


def test_every_size_that_leaves_least_exposed_is_named_and_marked():
    """The marked best named one size of several that leave as little exposed."""
    drawn = picture(bucket_bytes=8 * MIB)
    assert "exposed 8 ms of 8 ms communication (100 %)" in texts(drawn)
    assert "least exposed, 1 ms: 1 MiB (8 buckets)" in texts(drawn)
    # A last gradient that takes long hides what was sent before it, in buckets of any size.
    seconds, network = [0.003] + [0.001] * 7, {"ranks": 2, "alpha": 5e-4, "bandwidth": 4e9}
    drawn = buckets([MIB] * 8, seconds, **network)
    said = " ".join(texts(drawn)).partition("least exposed")[2]
    assert "1 MiB (8 buckets), 6.04 MiB to 6.87 MiB (2 buckets) 3.1 ms" in said
    data = drawn.live[1]
    plain = [stop for stop in data["stops"] if len(stop) == 1]
    runs = [fly(data["nbytes"], data["seconds"], stop, **network) for stop in plain]
    good = min(run.end for run in runs) * (1 + 1e-9)
    tied = [n for n, run in enumerate(runs) if run.end <= good]
    assert len(tied) > 5
    bands = boxes(drawn, "least exposed")
    gaps = [n for n, (a, b) in enumerate(zip(tied, tied[1:])) if b > a + 1]
    assert len(bands) == len(gaps) + 1 == 2
    assert style.amount(runs[tied[0]].exposed, "s") in said
    place = lambda n: 84 + (plain[n][0] - MIB) / (7 * MIB) * (640 - 84 - 14)  # even steps
    assert bands[0].x == pytest.approx(place(tied[0]), abs=3)
    assert bands[-1].x + bands[-1].w == pytest.approx(place(tied[-1]), abs=3)


def test_sizes_have_one_unit_in_words_and_on_the_axis():
    """Sizes between whole MiB were written in MB, and a narrow axis had one tick, at 5 MB."""
    kind, data = picture(bucket_bytes=3 * MIB + 12_345).live
    for width, least in ((640, 4), (360, 2)):
        words = texts(layout.still(kind, {"summary": ""} | data, width, words=False))
        assert "2 buckets; full at 3.01 MiB" in " ".join(words)
        sizes = [text for text in words if re.fullmatch(r"[\d.]+ [KMG]?i?B", text)]
        assert len(sizes) >= least and set(sizes) <= {f"{n} MiB" for n in (1, 2, 4, 8)}
        assert not re.search(r"\d [kMG]?B\b", " ".join(words))


def test_sizes_that_span_decades_have_a_logarithmic_axis_that_says_so():
    assert "exposed, by bucket size" in texts(picture())
    assert "exposed, by bucket size (logarithmic)" in texts(buckets([1, 30], 1.0, **NET))


def test_the_words_hold_no_times():
    slow = buckets(LAYERS["nbytes"], [9.0] * 8, **NET)
    assert slow.summary == picture().summary and not re.search(r"\d m?s\b", slow.summary)
    many = buckets([10] * 30, 1.0, bucket_bytes=10, **NET)
    assert many.summary.endswith("  and 22 buckets more")
    assert many.summary.startswith("buckets: 30 gradients, 300 bytes, on 2 ranks;")


def test_one_number_of_seconds_is_shared_out_by_bytes():
    data = buckets([100, 300], 4.0, **NET).live[1]
    assert data["seconds"] == [3.0, 1.0] and data["nbytes"] == [300, 100]


def test_names_are_written_where_they_fit():
    drawn = buckets([MIB, 9 * MIB], 0.1, names=["a_long_name_for_little", "head"], **NET)
    assert "head" in texts(drawn) and "a_long_name_for_little" not in texts(drawn)
    assert boxes(drawn, "a_long_name_for_little: .*")


@pytest.mark.parametrize("sizes", [[5], [5, 5], [1, 10**9], [4] * 300])
def test_everything_is_inside_whatever_the_sizes(sizes):
    drawn = buckets(sizes, 1.0)
    for mark in drawn.marks:
        for x, y in mark.points or [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]:
            assert -0.1 <= x <= drawn.width + 4 and -0.1 <= y <= drawn.height + 0.1, mark
    assert len(drawn.png()) < 30_000


def test_a_still_takes_less_than_150_bars_in_matplotlib():
    still = pace.seconds(lambda: buckets([4 * n for n in range(1, 151)], 1.0))
    assert still < 0.75 * pace.seconds(pace.bars)


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        (([], 1.0), {}, "nothing to draw"),
        (([0, 1], 1.0), {}, "nothing to draw"),
        (([1, 2], [1.0]), {}, "2 gradients, 1 time and 0 names"),
        (([1, 2], 1.0), {"names": ["a"]}, "2 gradients, 2 times and 1 name:"),
        (([1, 2], 0.0), {}, "Backward takes time"),
        (([1, 2], [1.0, -1.0]), {}, "Backward takes time"),
        (([1, 2], [1.0, float("nan")]), {}, "Backward takes time"),
        (([1, 2], 1.0), {"bucket_bytes": 0}, "bucket_bytes must be at least 1, not 0"),
        (([1, 2], 1.0), {"ranks": 0}, "0 ranks"),
        (([1, 2], 1.0), {"bandwidth": 0.0}, "0 bytes/s"),
        (([1, 2], 1.0), {"link": "string and tin"}, "No link here is called"),
    ],
)
def test_bad_input_gets_a_sentence(given, more, words):
    with pytest.raises(ValueError, match=words):
        buckets(*given, **more)


# --- the answer of real ranks


def test_where_nobody_can_be_asked_there_is_no_button():
    assert picture().ask is None and not picture().live[1]["asks"]
    assert picture(ask=print).live[1]["asks"]


def test_what_was_measured_is_told_from_the_start_of_backward():
    asked = []
    what = {"group": "world", "members": (0, 1), "bytes": 8}

    def run(size):
        asked.append(size)
        return Ledger(
            [
                Row(0, "compute", "forward", 0.0, 5.0),
                Row(0, "compute", "backward", 5.0, 6.0),
                Row(0, "compute", "backward", 6.0, 7.0),
                Row(0, "comm", "all_reduce", 6.0, 9.0, arrived=6.5, number=0, **what),
                Row(0, "comm", "all_reduce", 7.0, 10.0, arrived=7.0, number=1, **what),
                Row(1, "comm", "all_reduce", 6.5, 9.0, arrived=6.5, number=0, **what),
            ]
        )

    drawn = picture(ask=run)
    usual = drawn.live[1]["start"]["stop"]
    for stop in (usual, 5):
        new = drawn.ask("run", {"stop": stop})
        told = "measured: wall clock of 2 ranks on this machine"
        assert new["measured"] == {
            "source": "measured", "caption": told, "stop": stop, "ranks": 2, "backward": 2.0,
            "bars": [[1.5, 4.0], [4.0, 5.0]], "delay": "",
        }  # fmt: skip
        assert new["summary"] == drawn.summary and new["nbytes"] == drawn.live[1]["nbytes"]
    assert asked == [None, drawn.live[1]["stops"][5][0]]


def test_a_run_that_a_busy_machine_delayed_says_so():
    what = {"group": "world", "members": (0, 1), "bytes": 8, "number": 0}
    rows = [
        Row(0, "compute", "forward", 1.0, 5.0, note="slipped 900 ms"),  # before backward
        Row(0, "compute", "backward", 5.0, 6.0, note="slipped 400 ms"),
        Row(0, "comm", "all_reduce", 6.0, 9.0, arrived=6.5, **what),
    ]
    drawn = picture(ask=lambda size: Ledger(rows, source="slow motion"))
    delay = drawn.ask("run", {"stop": 5})["measured"]["delay"]
    assert delay == "Delays of up to 400 ms come from this machine, which was busy."


def test_a_run_without_a_backward_is_refused():
    ledger = Ledger([Row(0, "compute", "forward", 0.0, 1.0)])
    with pytest.raises(ValueError, match="Rank 0 recorded 0 backwards and 0 all-reduces"):
        picture(ask=lambda size: ledger).ask("run", {"stop": 0})


def train(size):
    """Two steps of DDP on this rank: the second has the buckets that were asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    ddp = DistributedDataParallel(model, bucket_bytes=size)
    ddp(torch.ones(2, 32)).sum().backward()
    loss = ddp(torch.ones(2, 32)).sum()
    with span("backward"):
        loss.backward()


def test_real_ranks_answer_with_as_many_all_reduces_as_there_are_buckets(worlds):
    world = worlds(2)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    nbytes = [p.nbytes for p in model.parameters()]
    drawn = buckets(nbytes, 0.01, ranks=2, ask=lambda size: world.record(train, size))
    stops = drawn.live[1]["stops"]
    stop = next(n for n, stop in enumerate(stops) if stop[0] >= 4000)
    new = drawn.ask("run", {"stop": stop})
    bars = new["measured"]["bars"]  # those of the first step, in one bucket, are not among them
    assert len(bars) == 4 and new["measured"]["ranks"] == 2
    assert bars[0][0] > 0 and new["measured"]["backward"] > 0
    assert every(a[0] <= a[1] <= b[0] for a, b in zip(bars, bars[1:]))
    json.dumps(new, allow_nan=False)
