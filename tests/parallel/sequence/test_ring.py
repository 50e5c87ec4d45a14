"""Ring attention equals attention on one device: the result, dQ, dK and dV."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.parallel.sequence import block_attention, ring, ring_attention, shard_sequence
from lib.parallel.sequence.ring import Ring
from tests.parallel.sequence import steps

EXACT = 1e-13
DOCUMENTS = {
    "one": None,
    "a tensor": torch.tensor([0, 5, 6, 19, 32]),
    "several": (0, 5, 6, 19, 32),
    "padding": (0, 9, 27),
    "all padding on some ranks": (0, 3),
}


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_the_ring_is_the_whole_attention(world, layout, causal, documents):
    documents = DOCUMENTS[documents]
    expected = steps.whole(32, causal, None if documents is None else [int(d) for d in documents])
    for found in world.run(steps.spread, 32, causal, layout, documents):
        assert steps.far(found, expected) < EXACT


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("length", [31, 17, 5, 1])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
def test_padding_is_attended_by_nobody(worlds, length, layout, causal):
    expected = steps.whole(length, causal)
    for found in worlds(4).run(steps.spread, length, causal, layout, (0, length)):
        assert steps.far(found, expected) < EXACT


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_fewer_keys_and_another_scale(world, groups, scale):
    sizes = {"groups": groups}
    expected = steps.whole(16, True, None, scale, **sizes)
    for found in world.run(steps.spread, 16, True, "zigzag", None, scale, ring_attention, sizes):
        assert steps.far(found, expected) < EXACT


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 3e-6), (torch.bfloat16, 2e-2)])
def test_other_precisions(worlds, dtype, close):
    expected = steps.whole(32, True)
    sizes = {"dtype": dtype}
    for found in worlds(4).run(steps.spread, 32, True, "zigzag", None, None, ring_attention, sizes):
        assert all(t.dtype == dtype for t in found)
        assert steps.far(found, expected) < close


def parts_of_gradients(dtype):
    """What each step of this rank adds to dK and dV, as the ring adds it, and this rank's sums."""
    kept, parts = ring._added, []

    def added(sums, here, k):
        parts.append(torch.stack(here[0][1]))
        return kept(sums, here, k)

    ring._added = added
    try:
        leaves = [shard_sequence(t, None, "contiguous", 2) for t in steps.drawn(32, dtype=dtype)]
        q, k, v, gradient = (t.contiguous().requires_grad_() for t in leaves)
        ring_attention(q, k, v, None, False, "contiguous").backward(gradient.detach())
    finally:
        ring._added = kept
    return [parts[-1], *parts[:-1]], torch.stack((k.grad, v.grad))


def test_in_bf16_every_hop_rounds_the_sums_again(worlds):
    """Chapter 12 says so; sums in fp32 that are rounded once would be others."""
    ranks = worlds(4, device="cpu").run(parts_of_gradients, torch.bfloat16)
    for rank, (own, found) in enumerate((parts[0], sums) for parts, sums in ranks):
        # the sum of this rank's keys begins on the next rank, and its own part comes last
        parts = [ranks[(rank + step) % 4][0][step] for step in (1, 2, 3)] + [own]
        by_hops = parts[0]
        for part in parts[1:]:
            by_hops = by_hops + part
        assert found.dtype == by_hops.dtype == torch.bfloat16
        assert torch.equal(found, by_hops)
        once = sum(part.float() for part in parts).bfloat16()
        assert not torch.equal(found, once)


def readable(length):
    """The readable version of a block's attention in the ring."""
    kept = block_attention.kernel_of
    block_attention.kernel_of = lambda q, v: "readable"
    try:
        return steps.spread(length, True)
    finally:
        block_attention.kernel_of = kept


def test_the_readable_version_in_a_ring(world):
    expected = steps.whole(24, True)
    for found in world.run(readable, 24):
        assert steps.far(found, expected) < EXACT


class Counted(TorchDispatchMode):
    """Counts how often each operation is called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func._schema.name.split("::")[1]] += 1
        return func(*args, **(kwargs or {}))


def computed(layout, documents):
    """How many blocks this rank computes forward and backward."""
    q, k, v, gradient = (shard_sequence(t, None, layout, 2) for t in steps.drawn(32))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    name = "_scaled_dot_product_flash_attention_for_cpu"
    with Counted() as counted:
        ring_attention(*leaves, None, True, layout, documents).backward(gradient)
    return counted.calls[name], counted.calls[name + "_backward"]


@pytest.mark.parametrize(
    ("layout", "documents", "blocks"),
    [
        ("contiguous", None, [1, 2, 3, 4]),  # rank 0 waits in three of four steps
        ("zigzag", None, [4, 4, 4, 4]),
        ("zigzag", (0, 16, 32), [5, 5, 5, 5]),  # two documents, smaller blocks
        ("contiguous", (0, 16, 32), [1, 2, 1, 2]),
        ("contiguous", (0, 8), [1, 0, 0, 0]),
    ],
)
def test_blocks_that_the_mask_covers_are_not_computed(worlds, layout, documents, blocks):
    """A shipped bug: contiguous shards under a causal mask leave half of the ranks idle."""
    found = worlds(4, device="cpu").run(computed, layout, documents)
    assert found == [(number, number) for number in blocks]
    scores = sum(part.scores for rank in planned(layout, documents) for part in rank)
    assert scores == steps.allowed(32, True, documents).sum().item()


def planned(layout, documents):
    """The rectangles that each rank computes in all steps."""
    steps_of = [Ring(None, rank, 4, layout, documents).blocks(8, True) for rank in range(4)]
    return [[part for step in by_step for part in step] for by_step in steps_of]


def refused(change):
    q, k = torch.zeros(2, 4, 8, 8), torch.zeros(2, 2, 8, 8)
    arguments = {"q": q, "k": k, "v": k} | change
    try:
        ring_attention(**arguments)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "striped"}, "No layout is called 'striped'. Choose one of contiguous, zigzag."),
        ({"documents": (1, 8)}, "Give cumulative lengths that start at 0, grow, and end at 16"),
        ({"documents": (0, 17)}, "do not fit a sequence of 16 tokens."),
        ({"documents": (0, 4, 4)}, "The documents [0, 4, 4] do not fit"),
        ({"q": torch.zeros(2, 3, 8, 8)}, "3 heads of queries cannot share 2 heads of keys"),
        ({"q": torch.zeros(2, 4, 6, 8)}, "but they may differ in their heads alone."),
        ({"v": torch.zeros(2, 4, 8, 8)}, "and k and v of one shape"),
    ],
)
def test_what_does_not_fit_is_refused(worlds, change, words):
    for text in worlds(2, device="cpu").run(refused, change):
        assert words in text
