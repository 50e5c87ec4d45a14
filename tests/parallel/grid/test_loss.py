"""The loss on a grid is PyTorch's of the whole logits: smoothed, ignored and padded labels too."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from lib.parallel.grid import grid_cross_entropy
from lib.predict.tensor.grids import INSIDE
from lib.ranks.mesh import mesh
from tests.parallel.grid.steps import GRIDS, far

# 5 tokens are padded on every grid; of 2 tokens on a cube, half of the ranks have padding only.
VOCABULARIES = [12, 5, 2]
OPTIONS = [
    {},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.3, "ignore_index": 0},
    {"label_smoothing": 1.0, "ignore_index": -1},
]


def drawn(vocabulary, ignored):
    """Logits [36, 2, V] and targets [36, 2] of a batch, of which some do not count."""
    draw = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(36, 2, vocabulary, generator=draw, dtype=torch.float64)
    targets = torch.randint(vocabulary, (36, 2), generator=draw)
    targets[3:20] = ignored  # all of some rank's own, and none of another's
    return logits, targets


def spread(grid, vocabulary, options, added, dtype=torch.float64):
    """Loss and gradient of this rank's tile, and its place; padding has the logit `added`."""
    here, side = mesh(one=1, **grid.axes), INSIDE[grid.kind]
    logits, targets = drawn(vocabulary, options.get("ignore_index", -100))
    padding = logits.new_full((36, 2, grid.padded(vocabulary) - vocabulary), added)
    rows, columns = here[side.rows], here[side.columns]
    tile = torch.cat([logits, padding], -1).chunk(rows.size)[rows.rank]
    tile = tile.chunk(columns.size, -1)[columns.rank].to(dtype, copy=True).requires_grad_()
    loss = grid_cross_entropy(tile, targets, here, grid.kind, vocabulary=vocabulary, **options)
    (2 * loss).backward()
    return loss.detach(), tile.grad, (rows.rank, columns.rank)


def whole(grid, vocabulary, options):
    """Loss and gradient of the whole logits, whose padding has a gradient of 0."""
    logits, targets = drawn(vocabulary, options.get("ignore_index", -100))
    logits.requires_grad_()
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)
    (2 * loss).backward()
    padding = logits.new_zeros(36, 2, grid.padded(vocabulary) - vocabulary)
    return loss.detach(), torch.cat([logits.grad, padding], -1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_loss_is_the_whole_one(worlds, ranks, options):
    """On 2×2, 2.5D and 3D; what padding holds, -inf or a number, does not matter."""
    for grid in GRIDS[ranks]:
        for vocabulary in VOCABULARIES:
            expected, gradient = whole(grid, vocabulary, options)
            for added in (-torch.inf, 7.0):
                answers = worlds(ranks).run(spread, grid, vocabulary, options, added)
                rows, columns = (1 + max(place[n] for *_, place in answers) for n in (0, 1))
                for loss, found, (row, column) in answers:
                    own = gradient.chunk(rows)[row].chunk(columns, -1)[column]
                    assert far(loss, expected) < 1e-12
                    assert far(found, own) < 1e-12, (str(grid), vocabulary, added)


def smoothed_without_vocabulary(grid):
    """The loss of a head's logits, whose one padded column is -inf, as if it were a token."""
    here, side = mesh(**grid.axes), INSIDE[grid.kind]
    logits, targets = drawn(5, -100)
    logits = torch.cat([logits, logits.new_full((36, 2, 1), -torch.inf)], -1)
    tile = logits.chunk(2)[here[side.rows].rank].chunk(2, -1)[here[side.columns].rank]
    return grid_cross_entropy(tile, targets, here, grid.kind, label_smoothing=0.1).item()


def test_smoothing_over_padding_is_seen(worlds):
    """The mean over padded logits is -inf, so a forgotten `vocabulary` cannot be missed."""
    assert worlds(4).run(smoothed_without_vocabulary, GRIDS[4][0]) == [float("inf")] * 4


def test_the_gradient_of_low_precision_is_in_its_type(worlds):
    grid, options = GRIDS[4][0], OPTIONS[1]
    expected, _ = whole(grid, 5, options)
    for loss, found, _ in worlds(4).run(spread, grid, 5, options, 0.0, torch.bfloat16):
        assert loss.dtype == torch.float32 and found.dtype == torch.bfloat16
        assert far(loss, expected) < 1e-2


def differentiated_twice(grid):
    here = mesh(**grid.axes)
    tile = torch.randn(18, 2, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(36, 2, dtype=torch.long)
    loss = grid_cross_entropy(tile, targets, here, grid.kind)
    (slope,) = torch.autograd.grad(loss**2, tile, create_graph=True)
    try:
        slope.sum().backward()
    except RuntimeError as error:
        return str(error)


def test_a_second_derivative_is_refused(worlds):
    for refusal in worlds(4).run(differentiated_twice, GRIDS[4][0]):
        assert "once_differentiable" in refusal
