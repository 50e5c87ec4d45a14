"""Replays: lives through the allocator, what is free and in how large a piece, and an arena."""

import re

import pytest
import torch

from lib.ledger.lives import Life, lives
from lib.predict.allocator.caching import MIB
from lib.predict.allocator.replay import LONG_LIVED, arena_bytes, events_of, replay, scaled
from lib.predict.shape import GPTShape
from lib.ranks.memory import Memory
from lib.single import GPT, train_step
from tests.predict.allocator.lives import checkpointed


def test_events_come_in_their_order():
    found = checkpointed(2)
    order = events_of(found)
    assert [event for event, _, _ in order] == list(range(len(order)))
    assert [life.number for _, dies, life in order if not dies] == [o.number for o in found]


def test_every_storage_has_a_place_and_no_two_overlap():
    run = replay(checkpointed())
    assert len(run.placed) == len(run.lives) and not run.failure
    for n, one in enumerate(run.placed):
        inside = [s for s in run.segments
                  if s.address <= one.address and one.address + one.size <= s.address + s.size
                  and s.since <= one.life.born and one.died <= s.until]  # fmt: skip
        assert len(inside) == 1
        for other in run.placed[n + 1 :]:
            apart = one.address + one.size <= other.address
            apart = apart or other.address + other.size <= one.address
            assert apart or one.died <= other.life.born or other.died <= one.life.born


def test_short_lives_between_long_ones_leave_holes_that_an_arena_does_not():
    """8 layers keep 16 MiB beside 18 MiB for a moment; 23 MiB are free, 14 of them in one piece."""
    run, with_arena = replay(checkpointed()), replay(checkpointed(), arena=LONG_LIVED)
    end, arena_end = run.states[-2], with_arena.states[-2]
    assert (end.requested, end.allocated, end.reserved) == (16 * MIB, 17 * MIB, 40 * MIB)
    assert (end.free, end.largest_free, end.inactive_split) == (23 * MIB, 14 * MIB, 23 * MIB)
    assert (with_arena.arena, arena_end.reserved) == (16 * MIB, 36 * MIB)
    assert (arena_end.free, arena_end.largest_free) == (20 * MIB, 20 * MIB)  # one piece
    assert with_arena.states[with_arena.most_scattered()].inactive_split <= 20 * MIB - 9 * MIB
    assert arena_end.inactive_split == 0


def test_a_device_that_is_full_of_holes_fits_the_step_with_an_arena():
    """46 MiB are needed with an arena, 70 without one, because no segment can be given back."""
    run = replay(checkpointed(), capacity=69 * MIB)
    assert run.failure.startswith("cross entropy: A segment of 31,457,280 bytes does not fit")
    assert len(run.states) == len(events_of(checkpointed())) - 1
    assert not replay(checkpointed(), capacity=70 * MIB).failure
    fits = replay(checkpointed(), capacity=46 * MIB, arena=["activations"])
    assert not fits.failure and fits.peak_reserved == 46 * MIB
    assert replay(checkpointed(), capacity=45 * MIB, arena=["activations"]).failure


@pytest.mark.parametrize("fit", ["best", "first"])
def test_an_arena_is_exactly_as_large_as_it_has_to_be(fit):
    found = [Life(0, 3 * MIB, "gradients", 0, 2), Life(1, 5 * MIB, "gradients", 1),
             Life(2, 2 * MIB, "gradients", 3)]  # fmt: skip
    assert arena_bytes(found, fit) == 8 * MIB  # the last one lies where the first one lay
    assert replay(found, fit, arena=["gradients"]).peak_reserved == 8 * MIB


def step_of_gpt_2(layers=4):
    """Two steps of a GPT as wide as GPT-2, on the device meta: sizes, and no data."""
    shape = GPTShape(50257, 256, 768, 12, layers, tied=True)
    with torch.device("meta"):
        model = GPT(shape)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(2, 256, dtype=torch.long)
        with Memory(model, optimizer) as memory:
            for _ in range(2):
                train_step(model, optimizer, (tokens, tokens))
    return memory


def test_a_recorded_step_of_a_real_size_is_replayed():
    memory = step_of_gpt_2()
    run = replay(lives(memory.rows))
    assert max(state.requested for state in run.states) == memory.peak
    assert memory.peak <= run.peak_allocated <= run.peak_reserved
    assert run.states[-1].requested == sum(memory.now.values())
    assert run.states[run.at_peak].allocated == run.peak_allocated
    worst = run.states[run.most_scattered()]
    apart = [state.free - state.largest_free for state in run.states]
    assert worst.largest_free < worst.free / 4  # free, and in pieces
    assert worst.free - worst.largest_free == max(apart)
    splits = [state.inactive_split for state in run.states]
    with_arena = replay(run.lives, arena=LONG_LIVED)
    better = with_arena.states[with_arena.most_scattered()]
    assert better.free - better.largest_free < 0.8 * (worst.free - worst.largest_free)
    assert max(state.inactive_split for state in with_arena.states) < 0.6 * max(splits)
    assert with_arena.peak_reserved > run.peak_reserved  # nobody else may use what it sets aside
    told = str(run).splitlines()
    assert told[0].split() == ["requested", "at", "most", f"{memory.peak:,}"] and len(told) == 6
    assert replay(run.lives).states == run.states  # the same every time


def test_scaled_lives_have_scaled_sizes():
    assert [one.nbytes for one in scaled(checkpointed(1), 2.5)] == [
        round(2.5 * one.nbytes) for one in checkpointed(1)
    ]


def test_bad_input_is_refused_in_a_sentence():
    words = "No storage here is one of gradients."
    with pytest.raises(ValueError, match=re.escape(words)):
        replay(checkpointed(), arena=["gradients"])
    with pytest.raises(ValueError, match="fit must be one of best, first"):
        replay(checkpointed(), "worst")
