"""Pictures: rows in, geometry and words out; the same bytes every time; bad input in a sentence."""

import io
import itertools
import re
import xml.etree.ElementTree as ElementTree
from math import nan

import numpy as np
import pytest
import torch
from PIL import Image

from lib.draw import collective, curve, guess, timeline, traffic
from lib.draw.parts import collective_grids, layout, style
from lib.ledger import Ledger, Row
from lib.predict.collectives.formulas import fit
from tests.draw.marks import bar, box, boxes, swatch, texts

WORLD = {"group": "world", "members": (0, 1), "number": 0}


def two_ranks():
    """Rank 1 computes 1 s longer; an all_reduce of 8 bytes moves for 1 s when both are there."""
    return Ledger(
        [
            Row(0, "compute", "forward", 0.0, 1.0),
            Row(1, "compute", "forward", 0.0, 2.0),
            Row(0, "comm", "all_reduce", 1.0, 3.0, arrived=2.0, bytes=8, **WORLD),
            Row(0, "wait", "all_reduce", 1.0, 3.0, **WORLD),
            Row(1, "comm", "all_reduce", 2.0, 3.0, arrived=2.0, bytes=8, **WORLD),
            Row(0, "memory", "parameters", 0.0, 0.0, bytes=5),
        ]
    )


# --- timelines


def test_time_runs_right_and_rank_0_is_on_top():
    picture = timeline(two_ranks())
    first, second = (bar(picture, rank, "forward") for rank in (0, 1))
    assert first.x == second.x and second.w == pytest.approx(2 * first.w)
    assert first.y < second.y


def test_waiting_is_hatched_and_moving_is_filled_from_where_it_ends():
    picture = timeline(two_ranks())
    (wait, move) = boxes(picture, "rank 0: all_reduce")
    assert wait.hatch and wait.fill is None
    assert move.fill == style.colour("all_reduce") and not move.hatch
    assert wait.x + wait.w == pytest.approx(move.x) and wait.w == pytest.approx(move.w)
    other = box(picture, "rank 1: all_reduce")  # it came last and does not wait
    assert not other.hatch and other.x == pytest.approx(move.x)


def test_idle_is_paper_and_memory_is_another_picture():
    picture = timeline(two_ranks())
    rank_0 = [m for m in picture.marks if m.kind == "box" and m.about.startswith("rank 0: ")]
    assert len(rank_0) == 3  # forward, waiting, moving: nothing for the wait row or the memory


def test_communication_lies_below_computation_of_its_rank():
    picture = timeline(two_ranks())
    for rank in (0, 1):
        compute, comm = (bar(picture, rank, op) for op in ("forward", "all_reduce"))
        assert compute.y + compute.h <= comm.y
    assert comm.y > bar(picture, 1, "forward").y


def test_another_run_lies_over_it_on_the_same_scale():
    ledger = two_ranks()
    slower = Ledger([Row(0, "compute", "forward", 5.0, 11.0)], source="predicted")
    picture = timeline(ledger, over=slower)
    outline = box(picture, "predicted: rank 0: forward")
    solid = bar(picture, 0, "forward")
    assert outline.dash and outline.fill is None
    assert outline.x == pytest.approx(solid.x)  # both from their first start
    assert outline.w == pytest.approx(6 * solid.w)
    assert picture.summary.endswith("dashed: predicted")
    assert swatch(picture, "predicted").dash and swatch(picture, "waiting for others").hatch


@pytest.mark.parametrize("span", [0.045, 0.0101, 1.0, 3e-6])
def test_a_narrow_time_axis_has_two_ticks_and_a_unit(span):
    """On a phone the axis had the tick 0 alone."""
    ledger = Ledger([Row(0, "compute", "forward", 0.0, span)])
    still = layout.still("timeline", timeline(ledger).live[1], 328, words=False)
    bottom = max(m.y for m in still.marks if m.kind == "text" and m.text == "0")
    ticks = [m.text for m in still.marks if m.kind == "text" and m.y == bottom]
    assert ticks[0] == "0" and len(ticks) >= 2 and ticks[1].endswith("s")


def test_a_narrow_axis_in_powers_of_ten_names_each_that_has_room():
    ranks = [2**k for k in range(1, 11)]
    drawn = curve(None, {"a": (ranks, ranks)}, x=("ranks", ""))
    still = layout.still("curves", drawn.live[1] | {"summary": ""}, 328, words=False)
    assert {"1", "10", "100", "1,000", "10,000"} <= {m.text for m in still.marks}


def test_the_words_of_a_timeline_hold_no_times():
    ledger = two_ranks()
    late = Ledger(
        [Row(**{f: getattr(r, f) for f in r.__slots__} | {"end": r.end + 7}) for r in ledger]
    )
    assert repr(timeline(ledger)) == repr(timeline(late))
    assert "ranks 0, 1: forward, all_reduce × 1: 8 bytes" in repr(timeline(ledger))


def test_everything_drawn_is_inside_the_picture(picture):
    for mark in picture.marks:
        ends = mark.points or [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]
        for x, y in ends:
            assert -0.1 <= x <= picture.width + 0.1 and -0.1 <= y <= picture.height + 0.1, mark


# --- who sent to whom


def test_messages_are_counted_by_sender_and_receiver():
    pair = {"lane": "comm", "start": 0.0, "end": 1.0, "members": (0, 2)}
    rows = [Row(0, op="send", peer=2, bytes=100, number=n, **pair) for n in (0, 1)]
    rows += [Row(2, op="recv", peer=0, bytes=100, number=n, **pair) for n in (0, 1)]
    picture = traffic(Ledger(rows))
    assert box(picture, "rank 0 to rank 2: 200 bytes in 2 messages").fill == style.COMM["message"]
    assert box(picture, "rank 2 to rank 0: 0 bytes").fill == style.PAPER
    assert "rank 0" in picture.summary and "200" in picture.summary
    assert "ring" not in picture.summary


def test_a_collective_inside_the_backend_is_drawn_as_a_ring_and_said_so():
    picture = traffic(two_ranks())
    assert boxes(picture, "rank 0 to rank 1: 8 bytes")  # 2(n-1)/n · 8 bytes
    assert picture.summary.endswith("all_reduce: as a ring would move it")


# --- what a collective does


@pytest.mark.parametrize("op", collective_grids.OPS)
def test_labels_say_what_torch_does(op, worlds):
    world, given = worlds(4), collective_grids.grids((op,), 4)[0]
    after = collective_grids.grids((op,), 4)[1]
    found = world.map(_collective, [(op, [[_number(label) for label in held] for held in given], r)
                                    for r in range(4)])  # fmt: skip
    for rank, held in enumerate(after):
        wanted = [_number(label) for label in held]
        assert not wanted or found[rank] == wanted, f"rank {rank}"


def _number(label):
    """A0 is 1, B1 is 20, C2 is 300: a digit a rank, so that sums show who is in them."""
    digits = [10 ** (ord(letter) - 65) for letter in label if letter in "ABCD"] or [
        1,
        10,
        100,
        1000,
    ]
    return float(sum(digits) * (int(label[-1]) + 1 if label[-1].isdigit() else 1))


def _collective(given):
    import torch.distributed as dist

    op, held, rank = given
    x = torch.tensor(held[rank] or [0.0] * len(held[0]))
    if op == "all_reduce":
        dist.all_reduce(x)
    elif op == "reduce":
        dist.reduce(x, 0)
    elif op == "broadcast":
        dist.broadcast(x, 0)
    elif op == "reduce_scatter":
        x = dist.reduce_scatter_single(out := torch.empty(1), x) or out
    elif op == "all_gather":
        x = dist.all_gather_single(out := torch.empty(4), x) or out
    elif op == "all_to_all":
        x = dist.all_to_all_single(out := torch.empty(4), x) or out
    elif op == "gather":
        out = [torch.empty(1) for _ in range(4)] if rank == 0 else None
        dist.gather(x, out)
        x = torch.cat(out) if rank == 0 else x
    elif op == "scatter":
        dist.scatter(out := torch.empty(1), list(x.split(1)) if rank == 0 else None)
        x = out
    return x.tolist()


def test_two_halves_make_an_all_reduce():
    assert (
        collective_grids.grids(("reduce_scatter", "all_gather"), 4)[-1]
        == collective_grids.grids(("all_reduce",), 4)[1]
    )


# --- curves


def measured(picture):
    """The measured points of a curve that is called a."""
    found = [mark for mark in boxes(picture, "size ") if "\na: measured" in mark.about]
    assert found
    return found


def test_a_power_law_is_a_straight_line():
    sizes = [1e3, 1e4, 1e5]
    picture = curve({"a": (sizes, [s * 1e-9 for s in sizes])})
    points = sorted((m.x, m.y) for m in measured(picture))
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1) and y1 - y0 == pytest.approx(y2 - y1)
    assert y2 < y0  # more time is higher up


def test_an_axis_is_logarithmic_where_values_span_decades_and_says_so():
    """Losses from 2 to 3 stood on an axis from 1 to 10, in powers of ten."""
    far, near = [1.0, 40.0], [2.0, 3.0]
    for xs, ys, words in ((far, far, ("time (logarithmic)", "size (logarithmic)")),
                          (near, far, ("time (logarithmic)", "size")),
                          (near, near, ("time", "size"))):  # fmt: skip
        assert set(words) <= set(texts(curve({"a": (xs, ys)})))
    even = texts(curve({"a": ([1, 9], near)}, x=("n", ""), y=("loss", "")))
    steps = ["0", "2", "4", "6", "8", "10"], ["2", "2.2", "2.4", "2.6", "2.8", "3"]
    assert even == ["loss", *steps[0], *steps[1], "n", "a"]
    zero = texts(curve({"a": ([0.0, 40.0], [-1.0, 1.0])}, x=("n", ""), y=("d", "")))
    assert zero[:1] == ["d"] and {"0", "40", "-1", "1"} <= set(zero)


def test_on_even_axes_a_straight_line_is_straight():
    points = measured(curve({"a": ([1, 2, 3], [5, 6, 7])}))
    (x0, y0), (x1, y1), (x2, y2) = sorted((m.x, m.y) for m in points)
    assert x1 - x0 == pytest.approx(x2 - x1) and y1 - y0 == pytest.approx(y2 - y1)


def test_lines_are_called_what_they_are():
    drawn = {"a": ([1, 2, 3], [5, 6, 7])}
    for kind in ("predicted", "measured"):
        picture = curve(None, drawn, x=("n", ""), y=("loss", ""), lines_are=kind)
        (line,) = [m for m in picture.marks if m.about.startswith("a: ")]
        assert line.about == f"a: {kind}" and f"a {kind} line" in picture.summary


def test_lines_that_coincide_are_both_seen():
    """The upper of two equal lines hid the other one."""
    same, other = ([1, 2, 4], [3.0, 2.5, 2.0]), ([1, 2, 4], [2.0, 2.5, 3.0])
    lines = curve(None, {"a": same, "b": other, "c": same}, x=("n", ""), y=("loss", "")).marks
    thick = [mark.thick for mark in lines if mark.about.endswith(": predicted")]
    assert thick == [pytest.approx(5.0), pytest.approx(1.6), pytest.approx(1.6)]
    drawn = curve(None, {"a": same, "c": same}, x=("n", ""), y=("loss", ""))
    image = Image.open(io.BytesIO(drawn.png())).convert("RGB")
    colours = {colour for _, colour in image.getcolors(4096)}
    assert {tuple(bytes.fromhex(style.piece(n).light[1:])) for n in (0, 1)} <= colours


def test_the_band_of_a_fit_holds_every_point():
    sizes, times = [1e3, 1e4, 1e5, 1e6], [1.3e-5, 1.1e-5, 1.5e-5, 9e-5]
    picture = curve({"a": (sizes, times)}, {"a": fit(sizes, times)})
    (area,) = [m for m in picture.marks if m.kind == "area"]
    half = len(area.points) // 2
    high, low = area.points[:half], area.points[half:][::-1]
    for point in measured(picture):
        x, y = point.x + 3, point.y + 3
        top = np.interp(x, *zip(*high))
        bottom = np.interp(x, *zip(*low))
        assert top - 1 <= y <= bottom + 1


def test_round_numbers_on_the_axes():
    rows = [Row(0, "compute", "forward", 0.0, 0.07)]
    assert texts(timeline(Ledger(rows)))[2:-1] == ["0", "20 ms", "40 ms", "60 ms"]
    labels = texts(curve({"a": ([32768, 2e6], [1e-3, 6e-2])}))
    assert labels[1:8] == ["10 kB", "100 kB", "1 MB", "10 MB", "1 ms", "10 ms", "100 ms"]
    assert style.amount(2.5e6, "B") == "2.5 MB" and style.amount(0.00002, "s") == "20 µs"
    assert style.amount(1024, "") == "1,024"


# --- pictures as files


@pytest.fixture(params=["timeline", "traffic", "collective", "curve"])
def picture(request):
    return {
        "timeline": lambda: timeline(two_ranks(), over=two_ranks()),
        "traffic": lambda: traffic(two_ranks()),
        "collective": lambda: collective("reduce_scatter", "all_gather"),
        "curve": lambda: curve(
            {"a": ([1, 10, 100], [1, 2, 9])}, {"a": fit([1, 10, 100], [1, 2, 9])}
        ),
    }[request.param]()


def test_a_notebook_gets_a_small_png_and_words(picture):
    data, metadata = picture._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and len(data["image/png"]) < 60_000
    assert data["text/plain"] == repr(picture) == picture.summary
    assert metadata["image/png"]["width"] == picture.width <= style.WIDTH
    assert picture.png() == data["image/png"] != picture.png(dark=True)


def test_svg_is_whole_and_follows_light_and_dark(picture, tmp_path):
    picture.save(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title").text == picture.summary
    assert "prefers-color-scheme:dark" in text and not re.search("https?://(?!www.w3.org)", text)
    drawn = [m for m in picture.marks if m.kind == "box"]
    assert text.count("<rect ") >= len(drawn) + 1


# --- colours


def lab(linear):
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175],
              [0.0193339, 0.119192, 0.9503041]]  # fmt: skip
    matrix = np.array(matrix)
    ratio = matrix @ np.clip(linear, 0, 1) / (matrix @ np.ones(3))
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


# Machado, Oliveira and Fernandes 2009: full protanopia, deuteranopia, tritanopia
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.01182, 0.04294, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.3039]],
}  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "members", [style.COMPUTE, style.COMM, style.MEMORY], ids=["compute", "comm", "memory"]
)
def test_operations_are_told_apart_in_grey_and_by_everybody(members, dark):
    for (one, a), (other, b) in itertools.combinations(members.items(), 2):
        a, b = linear(a[dark]), linear(b[dark])
        assert abs(lab(a)[0] - lab(b)[0]) >= 6, f"{one} and {other} in grey"
        for kind, matrix in BLIND.items():
            apart = np.linalg.norm(lab(np.array(matrix) @ a) - lab(np.array(matrix) @ b))
            assert apart >= 7, f"{one} and {other} for {kind}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_letters_can_be_read_on_what_they_stand_on(dark):
    grounds = [*style.COMPUTE.values(), *style.COMM.values(), *style.MEMORY.values()]
    pairs = [(shade, style.on(shade)) for shade in grounds] + [(style.PAPER, style.INK)]
    for ground, ink in pairs:
        lights = sorted(linear(c[dark]) @ [0.2126, 0.7152, 0.0722] for c in (ground, ink))
        assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, (ground, ink)


def test_an_operation_has_one_colour_under_all_its_names():
    assert style.colour("F") == style.colour("forward") != style.colour("B")
    assert style.colour("send") == style.colour("recv") != style.colour("all_reduce")
    assert style.colour("my own span") == style.colour("compute")


# --- bad input


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: timeline([1]), TypeError, "A timeline is drawn from a Ledger, not from list"),
        (lambda: timeline(Ledger()), ValueError, "There is nothing to draw"),
        (lambda: traffic(Ledger()), ValueError, "There is nothing to draw"),
        (lambda: collective("all_around"), ValueError, "No collective is called 'all_around'"),
        (lambda: collective("all_reduce", ranks=1), ValueError, "on 2 to 8 ranks"),
        (lambda: curve(), ValueError, "There is nothing to draw"),
        (lambda: curve(None, {"a": ([1], [1])}, dial=("d", {"b": ""})), ValueError, "is no line"),
        (lambda: curve({"a": ([1, 2], [1])}), ValueError, "'a' has 2 sizes and 1 times"),
        (lambda: curve({"a": ([1, 2], [1, nan])}), ValueError, "has a value that is not finite"),
        (lambda: curve({}, {"a": fit([1, 2], [1, 2])}), ValueError, "none are called 'a'"),
        (lambda: guess("x?").save("x.jpg"), ValueError, "saved as .svg or .png"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call()
