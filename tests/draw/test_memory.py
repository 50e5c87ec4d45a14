"""Memory: rows in, stacks and words out; every peak true, whatever is thinned."""

import json
import re

import numpy as np
import pytest
import torch

from lib.draw import memory, timeline
from lib.draw.parts import live, style
from lib.draw.timelines.stacks import kinds_of, stacks
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b
from lib.ranks.memory import Memory
from tests.draw.marks import bar, box


def change(rank, kind, at, alive, note="", number=0):
    return Row(rank, "memory", kind, at, at, bytes=alive, note=note, number=number)


def two_ranks():
    """Rank 0: 4 bytes of parameters, from 1 s on 6 of activations, to 3 s; rank 1 half of it."""
    rows = [
        Row(0, "compute", "forward", 0.0, 2.0, microbatch=7),
        Row(1, "compute", "step", 0.0, 4.0),
    ]
    for rank, share in ((0, 2), (1, 1)):
        rows.append(change(rank, "parameters", 0.0, 2 * share))
        rows.append(change(rank, "activations", 1.0, 3 * share, "mm in forward" if rank else ""))
        rows.append(change(rank, "activations", 3.0, 0))
    return Ledger(rows)


def areas(picture, rank):
    """The outlines of a rank's kinds, the highest first; "a, rank 0" is that of run a."""
    rank = rank if isinstance(rank, str) else f"rank {rank}"
    return [m for m in picture.marks if m.kind == "area" and m.about.startswith(f"{rank} at ")]


def test_kinds_are_stacked_and_all_ranks_have_one_scale():
    picture = memory(two_ranks())
    high, low = areas(picture, 0)
    assert (high.fill, low.fill) == (style.memory("activations"), style.memory("parameters"))
    base, tall = high.points[0][1], high.points[0][1] - min(y for _, y in high.points)
    tops = [[base - y for _, y in area.points] for area in (high, low)]
    assert sorted({round(t / tall, 6) for t in tops[0]}) == [0, 0.4, 1]  # 4 and 10 of 10 bytes
    assert sorted({round(t / tall, 6) for t in tops[1]}) == [0, 0.4]
    other = areas(picture, 1)[0]
    half = other.points[0][1] - min(y for _, y in other.points)
    assert half == pytest.approx(tall / 2)


def test_several_recordings_have_one_scale():
    """Runs of 10 and 40 bytes in 4 s and 8 s: heights and times can be compared by eye."""
    rows = [change(0, "parameters", 0.0, 40), change(0, "optimizer", 4.0, 0)]
    rows.append(Row(0, "compute", "step", 0.0, 8.0))
    other = Ledger(rows, source="predicted")
    picture = memory({"stage 0": other, "stage 3": two_ranks()})
    (tall,) = [m for m in picture.marks if m.about.startswith("stage 0, rank 0 at 0 s")
               and m.fill == style.memory("parameters")]  # fmt: skip
    small, smallest = (areas(picture, f"stage 3, rank {rank}")[0] for rank in (0, 1))
    high = lambda area: max(y for _, y in area.points) - min(y for _, y in area.points)
    assert [high(area) / high(tall) for area in (small, smallest)] == pytest.approx([1 / 4, 1 / 8])
    left, right = 62, style.WIDTH - 14
    assert max(x for x, _ in tall.points) == right
    assert max(x for x, _ in small.points) == pytest.approx((left + right) / 2)
    words = [m.text for m in picture.marks if m.kind == "text"]
    assert [w for w in words if w[0] in "rs" and w[-1].isdigit()] == [
        "stage 0", "rank 0", "stage 3", "rank 0", "rank 1"]  # fmt: skip
    assert "memory of stage 3, measured: bytes alive" in picture.summary
    told = picture.live[1]["caption"]
    assert "stage 0: predicted by a formula" in told and "stage 3: measured: wall clock" in told


def test_recordings_of_which_the_same_is_true_share_a_caption():
    one = memory(two_ranks()).live[1]["caption"]
    assert memory({"a": two_ranks(), "b": two_ranks()}).live[1]["caption"] == one


def test_time_is_that_of_the_timeline():
    picture = memory(two_ranks())
    left, right = 62, style.WIDTH - 14
    xs = sorted({x for x, _ in areas(picture, 0)[0].points})
    assert xs == pytest.approx(
        [left, left + (right - left) / 4, left + (right - left) * 3 / 4, right]
    )


def test_the_peak_is_marked_and_named_with_what_made_it():
    picture = memory(two_ranks())
    mark = box(picture, "rank 0, peak: 10 bytes at 1 s\n")
    assert mark.x + 3 == pytest.approx(62 + (style.WIDTH - 76) / 4)
    assert {"10 B", "5 B"} <= {m.text for m in picture.marks}
    assert picture.summary.splitlines()[1:] == [
        "  rank 0: peak 10 bytes (activations 6, parameters 4), made by forward 7",  # what ran
        "  rank 1: peak 5 bytes (activations 3, parameters 2), made by mm in forward",  # its note
    ]


def test_a_peak_holds_what_was_alive_in_its_moment():
    """As many bytes of other kinds later on are another moment; a storage's new name is not."""
    rows = [change(0, "other", 1.0, 6, number=1), change(0, "parameters", 1.0, 4, number=2)]
    rows += [change(0, "other", 1.1, 0, number=1), change(0, "gradients", 1.1, 6, number=1)]
    rows += [change(0, "gradients", 2.0, 0, number=1), change(0, "other", 3.0, 6, number=3)]
    (found,) = stacks(Ledger(rows), [0], 0.0)
    assert (found.peak.bytes, found.peak.time) == (10, 1.0)
    assert found.peak.kinds == {"gradients": 6, "parameters": 4}


def test_a_predicted_peak_is_the_first_of_as_many_bytes():
    """Predicted rows name no storage, so one that ends and one that begins are no new name."""
    rows = [change(0, "activations", 1.0, 6, number=-1)]
    rows += [change(0, "activations", 2.0, 0, number=-1), change(0, "gradients", 3.0, 6, number=-1)]
    (found,) = stacks(Ledger(rows), [0], 0.0)
    assert (found.peak.time, found.peak.kinds) == (1.0, {"activations": 6})


def test_peaks_are_those_of_play():
    run = play(one_f_one_b(4, 8), Costs(1.0, 1.0, 1.0, activation=1000))
    found = stacks(run.ledger, range(4), 0.0)
    assert tuple(stack.peak.bytes for stack in found) == run.peak_bytes
    assert [stack.peak.made_by for stack in found] == ["F3", "F2", "F1", "F0"]
    assert "made by F3" in memory(run.ledger).summary


def test_peaks_are_those_of_memory(worlds):
    ledger = worlds(2).record(_counted)
    found = stacks(ledger, range(2), 0.0)
    assert len(found) == 2
    for stack, (peak, at_peak, made_by) in zip(found, ledger.results):
        assert (stack.peak.bytes, stack.peak.made_by) == (peak, made_by)
        assert stack.peak.kinds == {kind: size for kind, size in at_peak.items() if size}
    assert repr(memory(ledger)) == repr(memory(worlds(2).record(_counted)))  # no times in words


def _counted():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    adam, x = torch.optim.Adam(model.parameters()), torch.randn(4, 8)
    with Memory(model, adam) as memory:
        for _ in range(2):
            model(x).sum().backward()
            adam.step()
            adam.zero_grad()
    return memory.peak, memory.at_peak, memory.peak_at


def saw(states=40_000, ranks=2, seed=0):
    """Activations that go up and down at random."""
    random, each = np.random.default_rng(seed), states // ranks
    alive = random.integers(0, 1 << 20, ranks * each)
    time = np.tile(np.sort(random.random(each)), ranks)
    return Ledger.from_columns(
        rank=np.repeat(np.arange(ranks), each), lane="memory", start=time, end=time, bytes=alive,
        op=["activations", "other"] * (ranks * each // 2),
    )  # fmt: skip


def test_many_moments_are_thinned_and_every_peak_is_kept():
    ledger = saw()
    found = stacks(ledger, range(2), 0.0)
    assert sum(len(stack.time) for stack in found) <= 3_000
    whole = stacks(ledger, range(2), 0.0, most=10**6)
    for stack, all_of_it in zip(found, whole):
        assert stack.alive.sum(1).max() == all_of_it.alive.sum(1).max() == stack.peak.bytes
        at = np.searchsorted(all_of_it.time, stack.time)
        assert (all_of_it.alive[at] == stack.alive).all()  # what is shown is true
    picture = memory(ledger)
    assert picture.summary.endswith("thinned: at most 3,000 moments; every peak is kept")
    assert "thinned" not in memory(two_ranks()).summary
    packed = live.packed({"summary": picture.summary} | picture.live[1])
    assert len(json.dumps(packed)) + len(picture.png()) * 4 / 3 < 60_000


def test_a_crowded_timeline_with_memory_stays_small():
    random = np.random.default_rng(0)
    lengths = random.random(8_000) * 1e-4
    spans = Ledger.from_columns(
        rank=np.repeat([0, 1], 4_000), lane="compute", op=["forward", "backward"] * 4_000,
        start=np.append(lengths[:4_000].cumsum(), lengths[4_000:].cumsum()) - lengths,
        end=np.append(lengths[:4_000].cumsum(), lengths[4_000:].cumsum()))  # fmt: skip
    picture = timeline(Ledger.merge([spans, saw()]), memory=True)
    packed = live.packed({"summary": picture.summary} | picture.live[1])
    assert len(json.dumps(packed)) + len(picture.png()) * 4 / 3 < 60_000


def test_memory_lies_under_the_bars_of_its_rank():
    picture = timeline(two_ranks(), memory=True)
    for rank, op in ((0, "forward"), (1, "step")):
        made = bar(picture, rank, op)
        stack = areas(picture, rank)[0]
        assert made.y + made.h < min(y for _, y in stack.points)
        words = [m for m in picture.marks if m.kind == "text" and m.text.endswith(" B")]
        own = [w.y - 7 for w in words if w.y > made.y]  # those of its peak
        assert made.y + made.h <= min(own)
    assert areas(picture, 0)[0].points[-1][1] < areas(picture, 1)[0].points[0][1]
    assert "  rank 0: peak 10 bytes (activations 6, parameters 4), made by forward 7" in (
        picture.summary.splitlines()
    )
    assert kinds_of(two_ranks()) == ["parameters", "activations"]


def test_a_kind_of_ones_own_is_stacked_on_top():
    ledger = Ledger([change(0, "cache", 0.0, 5), change(0, "parameters", 1.0, 3)])
    assert kinds_of(ledger) == ["parameters", "cache"]
    assert "cache 5" in memory(ledger).summary


def test_a_rank_without_rows_of_memory_is_named():
    rows = [change(0, "other", 0.0, 1), Row(1, "compute", "step", 0.0, 1.0)]
    assert memory(Ledger(rows)).summary.endswith("  rank 1: no rows of memory")


@pytest.mark.parametrize("call", [memory, lambda ledger: timeline(ledger, memory=True)])
@pytest.mark.parametrize(
    ("ledger", "error", "words"),
    [
        ([1], TypeError, "is drawn from a Ledger, not from list"),
        (Ledger(), ValueError, "There is nothing to draw"),
        (Ledger([Row(0, "compute", "step", 0.0, 1.0)]), ValueError, "no rows of memory. Count"),
    ],
    ids=["no ledger", "empty", "no memory"],
)
def test_bad_input_is_told_in_a_sentence(call, ledger, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(ledger)


def test_too_many_ranks_are_refused():
    rows = [change(rank, "other", 0.0, 1) for rank in range(65)]
    with pytest.raises(ValueError, match="choose up to 64 of them"):
        memory(Ledger(rows))
    with pytest.raises(ValueError, match="The memory of 66 ranks fits no page"):
        memory({"a": Ledger(rows[:33]), "b": Ledger(rows[:33])})
