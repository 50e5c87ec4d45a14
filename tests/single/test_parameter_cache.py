"""GeePS's cache: the same training with few weights on the device at once, as many as predicted."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.offload import most_at_once, resident_units
from lib.ranks.memory import Memory
from lib.single import GPT, MLP
from lib.single.host_memory import HostMemory
from lib.single.offload import OffloadedOptimizer
from lib.single.parameter_cache import ParameterCache
from tests.every import every

SHAPE = MLPShape((16, 32, 48, 32, 64, 8))


def cached(model, units, device_bytes, prefetch=1):
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return optimizer, ParameterCache(model, units, optimizer, device_bytes, prefetch)


def steps(model, optimizer, inputs=None, count=4):
    losses = []
    for step in range(count):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
        x = x.to(next(model.parameters()).dtype) if inputs is None else inputs
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain_losses(model, **more):
    plain = copy.deepcopy(model)
    return steps(plain, torch.optim.AdamW(plain.parameters(), lr=0.01), **more), plain


def equal_inside(cache, model, plain):
    with cache.whole():
        return all(torch.equal(a, b) for a, b in
                   zip(model.parameters(), plain.parameters(), strict=True))  # fmt: skip


def sizes_of(model):
    return [sum(p.nbytes for p in unit.parameters()) for unit in model.blocks.values()]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_training_is_the_same_and_the_bytes_are_as_predicted(share, prefetch):
    """To the bit, and to the byte: weights on the device in every moment of four steps."""
    model = MLP(SHAPE)
    losses, plain = plain_losses(model)
    sizes = sizes_of(model)
    least = most_at_once(sizes, prefetch)
    room = int(least + share * (sum(sizes) - least))
    optimizer, cache = cached(model, model.blocks.values(), room, prefetch)
    with Memory(model, optimizer) as memory:
        assert steps(model, optimizer) == losses
    kept = resident_units(sizes, room, prefetch)
    predicted = sum(sizes[n] for n in kept)
    predicted += most_at_once(sizes[: len(sizes) - len(kept)], prefetch)
    assert cache.resident == set(kept) and predicted <= room
    assert max(row.bytes for row in memory.rows if row.op == "parameters") == predicted
    assert memory.now["optimizer"] == 0 and equal_inside(cache, model, plain)


def test_without_fetching_it_is_not_the_same(monkeypatch):
    model = MLP(SHAPE)
    losses, _ = plain_losses(model)
    optimizer, _ = cached(model, model.blocks.values(), most_at_once(sizes_of(model), 1))
    fetch = HostMemory.to_device
    stale = lambda self, to, source, after=(): fetch(self, to, torch.zeros_like(source))
    monkeypatch.setattr(HostMemory, "to_device", stale)
    assert steps(model, optimizer) != losses


def test_a_tied_language_model_keeps_what_two_units_share():
    model = GPT(GPTShape(32, 8, 16, 2, 3, tied=True)).double()
    tokens = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(0))
    losses, plain = plain_losses(model, inputs=tokens)
    units = list(model.blocks.values())
    shared = units[0].tokens.weight
    optimizer, cache = cached(model, units, shared.nbytes + 2 * sizes_of(model)[1])
    assert steps(model, optimizer, inputs=tokens) == losses
    assert equal_inside(cache, model, plain) and shared.untyped_storage().nbytes()
    assert units[1].mlp.up.weight.untyped_storage().nbytes() == 0  # at home


class Twice(nn.Module):
    """A list of blocks that runs two times, with a frozen weight and an unused one."""

    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleDict({str(n): nn.Linear(16, 16) for n in range(4)})
        self.blocks["1"].bias.requires_grad_(False)
        self.blocks["2"].unused = nn.Parameter(torch.ones(5))
        self.checkpointed = checkpointed

    def forward(self, x):
        for _ in range(2):
            for block in self.blocks.values():
                x = torch.tanh(checkpoint(block, x, use_reentrant=False) if self.checkpointed
                               else block(x))  # fmt: skip
        return x


@pytest.mark.parametrize("checkpointed", [False, True])
def test_units_that_run_twice_frozen_unused_and_recomputed(checkpointed):
    model = Twice(checkpointed)
    losses, plain = plain_losses(model)
    optimizer, cache = cached(model, model.blocks.values(), 3 * sizes_of(model)[0])
    assert len(cache.swapped) >= 2
    assert steps(model, optimizer) == losses
    assert equal_inside(cache, model, plain)


def test_evaluation_and_a_forward_without_backward_leave_nothing_behind():
    model = MLP(SHAPE)
    losses, plain = plain_losses(model)
    room = most_at_once(sizes_of(model), 1)
    optimizer, cache = cached(model, model.blocks.values(), room)
    x = torch.randn(4, 16)
    with torch.no_grad():
        assert torch.equal(model(x), MLP(SHAPE)(x))
    assert not cache.copies
    model(x)  # and no backward
    assert steps(model, optimizer) == losses and equal_inside(cache, model, plain)


def test_a_step_that_fails_leaves_a_cache_that_works():
    model = MLP(SHAPE)
    losses, _ = plain_losses(model)
    optimizer, cache = cached(model, model.blocks.values(), most_at_once(sizes_of(model), 1))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.randn(4, 17))
    assert steps(model, optimizer) == losses


def test_weights_that_are_changed_inside_whole_stay_changed():
    model = MLP(SHAPE)
    optimizer, cache = cached(model, model.blocks.values(), most_at_once(sizes_of(model), 1))
    with cache.whole():
        for weight in model.parameters():
            nn.init.constant_(weight, 0.5)
    assert torch.equal(model(torch.ones(1, 16)), model(torch.ones(1, 16)))
    with cache.whole():
        assert every(torch.equal(w, torch.full_like(w, 0.5)) for w in model.parameters())


@pytest.mark.parametrize(
    ("sizes", "room", "prefetch", "kept"),
    [
        ([4, 4, 4, 4], 16, 1, [0, 1, 2, 3]),
        ([4, 4, 4, 4], 12, 1, [3]),  # two come and go, one stays
        ([4, 4, 4, 4], 12, 0, [2, 3]),
        ([4, 4, 4, 4], 8, 1, []),
        ([2, 9, 1, 4], 14, 1, []),  # 11 for the first two, and 4 more would be too many
        ([2, 9, 1, 4], 15, 1, [3]),
    ],
)
def test_as_many_units_stay_as_fit(sizes, room, prefetch, kept):
    assert resident_units(sizes, room, prefetch) == kept


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="need 8 bytes, and the cache has 7. Choose more bytes"):
        resident_units([4, 4, 4], 7)
    model = MLP(SHAPE)
    unit = model.blocks["0"]
    with pytest.raises(ValueError, match="A unit is listed twice. List each unit once"):
        cached(model, [unit, unit], 10**6)
