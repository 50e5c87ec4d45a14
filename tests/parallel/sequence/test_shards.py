"""Sequences in shards: who has which tokens, padding, positions, gradients, and the loss."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sequence import positions_of, sequence_cross_entropy, shard_sequence
from lib.parallel.sequence import unshard_sequence as unshard
from lib.predict.sequence.layout import ranges_of
from lib.ranks.mesh import mesh


def shards(length, layout):
    return shard_sequence(torch.arange(length)[None], None, layout, fill=-1)[0].tolist()


@pytest.mark.parametrize(
    ("layout", "length", "expected"),
    [
        ("contiguous", 8, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("contiguous", 6, [[0, 1], [2, 3], [4, 5], [-1, -1]]),
        ("zigzag", 8, [[0, 7], [1, 6], [2, 5], [3, 4]]),
        ("zigzag", 5, [[0, -1], [1, -1], [2, -1], [3, 4]]),
        ("zigzag", 9, [[0, 1, -1, -1], [2, 3, -1, -1], [4, 5, -1, -1], [6, 7, 8, -1]]),
    ],
)
def test_who_has_which_tokens(worlds, layout, length, expected):
    assert worlds(4).run(shards, length, layout) == expected


def there_and_back(length, layout, dim, axes):
    """The whole again; and both gradients, of which all ranks must have the whole."""
    group, options = None, {}
    if axes:
        here = mesh(**axes)
        group, options = here["ring"].group, {"inner": here["ulysses"].group}
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, length, length, 3, generator=draw, dtype=torch.float64).requires_grad_()
    slope = torch.randn(x.shape, generator=draw, dtype=torch.float64)
    own = shard_sequence(x, group, layout, dim, **options)
    y = unshard(own, group, layout, dim, length=length, **options)
    (y * slope).sum().backward()
    return torch.equal(x, y), torch.equal(x.grad, slope), own.shape[dim]


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("dim", [1, 2, -2])
def test_there_and_back_with_gradients(world, layout, dim):
    chunks = len(world) * (2 if layout == "zigzag" else 1)
    size = -(-11 // chunks) * chunks // len(world)
    assert world.run(there_and_back, 11, layout, dim, None) == [(True, True, size)] * len(world)


def test_there_and_back_on_two_axes(worlds):
    axes = {"ring": 2, "ulysses": 2}
    assert worlds(4).run(there_and_back, 11, "zigzag", 1, axes) == [(True, True, 4)] * 4


def positions(length, layout, documents):
    return positions_of(length, None, layout, documents=documents).tolist()


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_positions_are_those_of_the_whole_sequence(world, layout):
    for rank, own in enumerate(world.run(positions, 16, layout, None)):
        expected = [p for chunk in ranges_of(16, rank, len(world), layout) for p in chunk]
        assert own == expected


def test_positions_restart_at_documents(worlds):
    found = worlds(2).run(positions, 8, "contiguous", (0, 3, 7))
    assert found == [[0, 1, 2, 0], [1, 2, 3, 0]]
    found = worlds(2).run(positions, 8, "zigzag", (0, 3, 7))
    assert found == [[0, 1, 3, 0], [2, 0, 1, 2]]


def losses(right):
    """The loss of 8 tokens of which 1, 4, .. count on the ranks; its gradient on this rank."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 8, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(5, (2, 8), generator=draw)
    labels[:, :3], labels[0, 7] = -100, -100
    whole = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole.flatten(0, 1), labels.flatten())
    expected.backward()
    own = shard_sequence(logits, None, "contiguous").requires_grad_()
    own_labels = shard_sequence(labels, None, "contiguous")
    if right:
        loss = sequence_cross_entropy(own, own_labels)
        loss.backward()
        loss = loss.detach()
    else:
        loss = torch.nn.functional.cross_entropy(own.flatten(0, 1), own_labels.flatten())
        loss.backward()
        loss = loss.detach()
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        own.grad /= dist.get_world_size()
    apart = own.grad - shard_sequence(whole.grad, None, "contiguous")
    return (loss - expected).abs().item(), apart.abs().max().item()


def test_the_loss_counts_each_label_once(world):
    for apart in world.run(losses, True):
        assert max(apart) < 1e-15


def test_a_mean_of_means_is_another_loss(worlds):
    """A shipped bug: the loss averaged by rank, where ranks have unequal numbers of labels."""
    for loss, gradient in worlds(2).run(losses, False):
        assert loss > 1e-3 and gradient > 1e-3
