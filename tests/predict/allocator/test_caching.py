"""The caching allocator: PyTorch's documented rules, each by itself, and blocks without gaps."""

import random
import re
from pathlib import Path

import pytest
import torch

from lib.predict.allocator import caching as rules
from lib.predict.allocator.caching import MIB, CachingAllocator, OutOfMemory, rounded, segment_size
from tests import on_gpus

KIB = 1024


def sizes(allocator):
    """[(pool, [(bytes, is it free), ...]), ...] by address."""
    return [(s.pool, [(b.size, b.free) for b in s.blocks]) for s in allocator.segments]


# --- PyTorch's rules


def test_the_constants_are_those_of_the_installed_pytorch():
    header = Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h"
    text = header.read_text()
    said = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", text))
    assert {name: int(value) for name, value in said.items()} == {
        "kSmallBuffer": rules.SMALL_SEGMENT,
        "kMinBlockSize": rules.MIN_BLOCK,
        "kSmallSize": rules.SMALL,
        "kMinLargeAlloc": rules.MIN_LARGE,
        "kRoundLarge": rules.ROUND_LARGE,
    }
    assert re.search(r"large_segment_size_\{(\d+)\}", text)[1] == str(rules.LARGE_SEGMENT)


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [(0, 0), (1, 512), (512, 512), (513, 1024), (1000, 1024), (MIB, MIB), (MIB + 1, MIB + 512)],
)
def test_sizes_are_rounded_up_to_512_bytes(nbytes, block):
    assert rounded(nbytes) == block


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),  # the largest small one
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # from here on its own size ...
        (10 * MIB + 512, 12 * MIB),  # ... rounded up to 2 MiB
        (51 * MIB, 52 * MIB),
    ],
)
def test_the_driver_is_asked_for_segments_of_these_sizes(size, segment):
    assert segment_size(size) == segment
    allocator = CachingAllocator()
    block = allocator.allocate(size)
    assert (block.segment.size, allocator.reserved) == (segment, segment)
    assert block.segment.pool == ("small" if size <= MIB else "large")


def test_small_and_large_tensors_never_share_a_segment():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(2 * MIB))
    allocator.allocate(100)  # though a large block is free
    assert [pool for pool, _ in sizes(allocator)] == ["large", "small"]


def test_a_small_block_is_cut_from_512_bytes_on():
    allocator = CachingAllocator()
    hole = allocator.allocate(MIB)
    allocator.allocate(MIB)
    allocator.free(hole)
    allocator.allocate(MIB - 512)
    assert sizes(allocator)[0][1] == [(MIB - 512, False), (512, True), (MIB, False)]


@pytest.mark.parametrize(("rest", "cut"), [(MIB, False), (MIB + 512, True)])
def test_a_large_block_is_cut_only_where_more_than_1_mib_is_left(rest, cut):
    allocator = CachingAllocator()
    block = allocator.allocate(20 * MIB - rest)
    assert len(block.segment.blocks) == 1 + cut
    assert block.size == (20 * MIB - rest if cut else 20 * MIB)
    assert allocator.allocated == block.size and allocator.requested == 20 * MIB - rest


def a_device_with_holes(fit):
    """Free blocks of 6, 3, 4 and 3 MiB, by address, between blocks in use."""
    allocator = CachingAllocator(fit=fit)
    blocks = [allocator.allocate(n * MIB) for n in (6, 2, 3, 2, 4, 2, 3, 2)]
    for block in blocks[::2]:
        allocator.free(block)
    return allocator


def test_best_fit_takes_the_smallest_that_is_large_enough_and_the_lowest_of_equal_ones():
    allocator = a_device_with_holes("best")
    holes = [b for s in allocator.segments for b in s.blocks if b.free and b.size < 6 * MIB]
    taken = [allocator.allocate(3 * MIB) for _ in range(2)]
    threes = sorted(b.address for b in holes if b.size == 3 * MIB)
    assert [b.address for b in taken] == threes and len(threes) == 2


def test_first_fit_takes_the_lowest_that_is_large_enough():
    allocator = a_device_with_holes("first")
    assert allocator.allocate(3 * MIB).address == 0  # in the hole of 6 MiB
    best = a_device_with_holes("best")
    assert best.allocate(3 * MIB).address > 0


def test_freed_neighbours_are_joined_and_the_segment_is_kept():
    allocator = CachingAllocator()
    first, second, third = (allocator.allocate(4 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(third)  # with the rest behind it
    assert sizes(allocator)[0][1] == [(4 * MIB, True), (4 * MIB, False), (12 * MIB, True)]
    assert (allocator.free_bytes, allocator.largest_free) == (16 * MIB, 12 * MIB)
    allocator.free(second)
    assert sizes(allocator) == [("large", [(20 * MIB, True)])]
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 0)


def test_blocks_of_two_segments_are_never_joined():
    allocator = CachingAllocator()
    for block in [allocator.allocate(16 * MIB) for _ in range(2)]:
        allocator.free(block)
    assert (allocator.free_bytes, allocator.largest_free) == (32 * MIB, 16 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 62 * MIB  # 32 MiB are free, none of them in one piece


def test_free_segments_are_given_back_before_memory_is_said_to_be_out():
    allocator = CachingAllocator(capacity=40 * MIB)
    allocator.free(allocator.allocate(16 * MIB))
    kept = allocator.allocate(2 * MIB)  # best fit: out of the 16
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(22 * MIB)  # 36 are reserved: the segment of 20 goes, that of 16 is in use
    assert (allocator.retries, allocator.reserved) == (1, 38 * MIB)
    with pytest.raises(OutOfMemory) as told:
        allocator.allocate(15 * MIB)
    assert "38," not in str(told.value) and str(38 * MIB)[:2] == "39"
    assert "39,845,888 of 41,943,040 bytes are reserved. Of these 14,680,064 are free" in str(
        told.value
    )
    allocator.free(kept)
    allocator.allocate(15 * MIB)


def test_memory_is_out_of_one_piece_though_enough_is_free():
    """What the largest free block says and all free bytes do not."""
    allocator = CachingAllocator(capacity=40 * MIB)
    blocks = [allocator.allocate(2 * MIB) for _ in range(20)]
    for block in blocks[::2]:
        allocator.free(block)
    assert (allocator.free_bytes, allocator.largest_free) == (20 * MIB, 2 * MIB)
    with pytest.raises(OutOfMemory, match="20,971,520 are free, the largest block with 2,097,152"):
        allocator.allocate(3 * MIB)


def test_an_empty_cache_keeps_what_is_in_use():
    allocator = CachingAllocator()
    allocator.reserve(4 * MIB)
    kept, gone = allocator.allocate(16 * MIB), allocator.allocate(16 * MIB)
    allocator.free(gone)
    assert allocator.release() == 16 * MIB
    assert allocator.segments == [allocator.segments[0], kept.segment]
    assert allocator.allocate(12 * MIB).address == 36 * MIB - 16 * MIB  # the lowest place free


# --- an arena


def test_an_arena_is_used_by_those_who_name_it_alone():
    allocator = CachingAllocator()
    arena = allocator.reserve(3 * MIB)
    assert arena.size == 4 * MIB and allocator.free_bytes == allocator.largest_free == 0
    inside, outside = allocator.allocate(3 * MIB, "arena"), allocator.allocate(1 * MIB)
    assert inside.segment is arena and outside.segment is not arena
    assert arena.blocks[1].size == 1 * MIB  # cut as in the small pool
    with pytest.raises(OutOfMemory, match="no free block of 2,097,152 bytes: the largest has 1,0"):
        allocator.allocate(2 * MIB, "arena")


# --- always


def whole_and_joined(allocator):
    """Blocks tile their segments, no two free ones are neighbours, the sums are true."""
    assert allocator.segments == sorted(allocator.segments, key=lambda s: s.address)
    for segment, after in zip(allocator.segments, allocator.segments[1:]):
        assert segment.end <= after.address
    for segment in allocator.segments:
        address = segment.address
        for block in segment.blocks:
            assert block.address == address and block.size % 512 == 0 and block.size > 0
            address += block.size
        assert address == segment.end
        assert not any(a.free and b.free for a, b in zip(segment.blocks, segment.blocks[1:]))
    blocks = [b for s in allocator.segments for b in s.blocks]
    assert allocator.allocated == sum(b.size for b in blocks if not b.free)
    assert allocator.requested == sum(b.requested for b in blocks)
    assert allocator.reserved == sum(s.size for s in allocator.segments)
    assert allocator.free_bytes == sum(b.size for b in blocks if b.free)
    assert allocator.largest_free == max((b.size for b in blocks if b.free), default=0)


@pytest.mark.parametrize("fit", rules.FITS)
@pytest.mark.parametrize("seed", range(4))
def test_random_lives_leave_no_gap_and_no_free_neighbours(fit, seed):
    dice, held = random.Random(seed), []
    allocator = CachingAllocator(capacity=400 * MIB, fit=fit)
    for _ in range(400):
        if held and dice.random() < 0.45:
            allocator.free(held.pop(dice.randrange(len(held))))
        else:
            try:
                held.append(allocator.allocate(int(2 ** dice.uniform(0, 25))))
            except OutOfMemory:
                allocator.free(held.pop())
        whole_and_joined(allocator)
    for block in held:
        allocator.free(block)
    assert allocator.release() and allocator.reserved == 0 and allocator.segments == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: CachingAllocator(fit="worst"), "fit must be one of best, first, not 'worst'."),
        (lambda: CachingAllocator(0), "capacity must be a whole number of at least 1, not 0."),
        (lambda: CachingAllocator().allocate(0), "nbytes must be a whole number of at least 1"),
        (lambda: rounded(-1), "nbytes must be a whole number of at least 0, not -1."),
    ],
)
def test_bad_input_is_refused_in_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        wrong()


def test_a_block_is_freed_once():
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="The block at address 0 is free already."):
        allocator.free(block)


# --- PyTorch itself


@pytest.mark.skipif(not on_gpus.WANTED or not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_pytorchs_snapshot_shows_the_same_blocks():
    """The same lives on a GPU and in the model: sizes of segments and blocks, in their order."""
    torch.accelerator.memory.empty_cache()
    dice, model, held = random.Random(0), CachingAllocator(), []
    before = {s["address"] for s in torch.cuda.memory_snapshot()}
    for _ in range(200):
        if held and dice.random() < 0.4:
            tensor, block = held.pop(dice.randrange(len(held)))
            model.free(block)
            del tensor
        else:
            nbytes = int(2 ** dice.uniform(6, 24))
            tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            held.append((tensor, model.allocate(nbytes)))
            del tensor
    theirs = [s for s in torch.cuda.memory_snapshot() if s["address"] not in before]
    shape = [[(b["size"], b["state"] == "inactive") for b in s["blocks"]] for s in theirs]
    assert sorted(shape) == sorted(blocks for _, blocks in sizes(model))
    assert torch.accelerator.memory_reserved() >= model.reserved
