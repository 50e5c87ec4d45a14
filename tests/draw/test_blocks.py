"""Blocks over time: each storage where it was put, free bytes below, words without times."""

import json

import pytest

from lib.draw import blocks
from lib.draw.blocks import MOST, phases_of
from lib.draw.parts import live, style
from lib.ledger.lives import Life
from lib.predict.allocator.caching import MIB
from lib.predict.allocator.replay import replay
from tests.draw.marks import box, boxes, texts
from tests.predict.allocator.lives import checkpointed

LEFT, RIGHT, BASE, TALL = 66, style.WIDTH - 14, 282, 260


def three():
    """4 MiB of weights all the time, 6 MiB of activations in the middle, 8 MiB elsewhere after."""
    return [
        Life(0, 4 * MIB, "parameters", 0),
        Life(1, 6 * MIB - 100, "activations", 1, 3, "mm in forward"),
        Life(2, 8 * MIB, "other", 2, 4, "mm in backward"),
    ]


def test_a_block_lies_at_its_address_from_its_birth_to_its_death():
    picture = blocks(replay(three()))
    weights, kept = box(picture, "parameters: 4,194,304 bytes"), box(picture, "activations: ")
    assert kept.about == (
        "activations: 6,291,356 bytes\nin a block of 6,291,456\nmade by mm in forward\n"
        "events 1 to 3"
    )
    event, mib = (RIGHT - LEFT) / 5, TALL / 20  # five events, a segment of 20 MiB
    assert (weights.x, weights.x + weights.w) == pytest.approx((LEFT, RIGHT))
    assert (weights.y + weights.h, weights.h) == pytest.approx((BASE, 4 * mib))
    assert (kept.x, kept.w) == pytest.approx((LEFT + event, 2 * event))
    assert (kept.y + kept.h, kept.h) == pytest.approx((BASE - 4 * mib, 6 * mib))
    assert (weights.fill, kept.fill) == (style.memory("parameters"), style.memory("activations"))


def test_a_segment_is_hatched_where_no_block_lies():
    picture = blocks(replay(three()))
    segment = box(picture, "segment of large blocks: 20,971,520 bytes, events 0 to 5")
    assert segment.hatch and segment.fill is None and segment.h == pytest.approx(TALL)
    order = picture.marks
    assert order.index(segment) < order.index(box(picture, "parameters"))
    arena = blocks(replay(three(), arena=["parameters"]))
    assert len(boxes(arena, "arena: 4,194,304 bytes")) == 1


def test_free_bytes_are_an_area_and_the_largest_free_block_a_line_before_it():
    run = replay(three())
    picture = blocks(run)
    line = [m for m in picture.marks if m.kind == "line" and m.edge == style.INK][-1]
    heights = [376 - y for _, y in line.points[::2]]
    most = max(state.free for state in run.states)
    assert heights == pytest.approx([64 * s.largest_free / most for s in run.states])
    area = next(m for m in picture.marks if m.kind == "area")
    tops = [376 - y for _, y in area.points[1:-1:2]]
    assert tops == pytest.approx([64 * s.free / most for s in run.states])
    assert any(s.largest_free < s.free for s in run.states)


def test_forward_backward_and_step_are_named():
    assert phases_of(replay(three())) == [[1, "forward"], [2, "backward"]]
    assert {"forward", "backward"} <= set(texts(blocks(replay(three()))))


def test_the_words_say_how_large_the_largest_hole_is():
    told = blocks(
        {"best": replay(checkpointed()), "69 MiB": replay(checkpointed(), capacity=69 * MIB)}
    )
    lines = told.summary.splitlines()
    assert lines[1] == (
        "  best: 25 storages in 3 segments, at most 49,283,072 bytes allocated and 73,400,320 "
        "reserved"
    )
    assert lines[2] == (
        "    when most scattered: 28,311,552 bytes free, the largest free block with 11,534,336"
    )
    assert lines[5].startswith("    cross entropy: A segment of 31,457,280 bytes does not fit")
    assert told.caption.startswith("Predicted by a model of PyTorch's caching allocator")
    assert "Of GPT-2." in blocks(replay(three()), caption="Of GPT-2").caption


def test_many_blocks_stay_small_and_the_smallest_are_left_out():
    found = [Life(n, (1 + n % 7) * 512, "other", 2 * n, 2 * n + 1, f"op{n % 5} in forward")
             for n in range(MOST + 500)]  # fmt: skip
    found.insert(0, Life(-1, 200 * MIB, "parameters", -1))
    for life in found:
        life.born, life.died = life.born + 1, life.died and life.died + 1
    picture = blocks(replay(found))
    assert picture.live[1]["runs"][0]["left"] == 501
    assert boxes(picture, "parameters: 209,715,200 bytes")
    packed = live.packed({"summary": picture.summary} | picture.live[1])
    assert len(json.dumps(packed)) + len(picture.png()) * 4 / 3 < 60_000


@pytest.mark.parametrize("wrong", [{}, {"a": 3}, three()[:0]])
def test_bad_input_is_told_in_a_sentence(wrong):
    with pytest.raises(ValueError, match="Blocks are drawn from replays that have an event"):
        blocks(dict(wrong))
