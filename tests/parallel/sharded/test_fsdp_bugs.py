"""Bugs that people shipped: what FSDP does about each, or how it shows."""

import re

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP
from lib.ranks import collectives
from lib.ranks.memory import Memory
from lib.ranks.shared.failures import RankError
from lib.single import share
from tests.every import every
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import (
    differences,
    fsdp,
    plain,
    ruined,
    sgd,
    step,
    zero1,
    zero2,
)


def linear(quiet):
    """A linear layer whose weight [5/dp, 5] is gathered for its forward; its shard's gradient."""
    draw = torch.Generator().manual_seed(0)
    whole = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    x = torch.randn(8, 5, generator=draw, dtype=torch.float64)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shard = share(whole, rank, ranks).clone().requires_grad_()
    with torch.set_grad_enabled(not quiet):
        gathered = collectives.all_gather(shard)
    loss = (share(x, rank, ranks) @ gathered.T).square().sum()
    if loss.requires_grad:
        loss.backward()
    whole.requires_grad_()
    (x @ whole.T).square().sum().backward()
    return shard.grad, share(whole.grad, rank, ranks)


def test_gathering_under_no_grad_loses_the_gradient(worlds):
    """Shipped: https://github.com/kohjingyu/fromage/issues/33."""
    for gradient, expected in worlds(2).run(linear, False):
        assert torch.allclose(gradient, expected)
    assert every(gradient is None for gradient, _ in worlds(2).run(linear, True))


def changed_outside(how):
    """Double a weight while its unit is gathered for forward, or in `unshard`."""
    model = ruined(models.Twice)
    wrapped = FSDP(model)
    if how == "unshard":
        with wrapped.unshard(), torch.no_grad():
            model.blocks[1].weight.mul_(2)
        return wrapped.full_state_dict()["blocks.1.weight"]

    def double(block, inputs):
        with torch.no_grad():
            block.weight.mul_(2)

    handle = model.blocks[1].register_forward_pre_hook(double)
    try:
        wrapped(model.batch()[0])
    except RuntimeError as error:
        handle.remove()
        wrapped(model.batch()[0])  # it goes on, with the weights as they were
        return str(error), wrapped.full_state_dict()["blocks.1.weight"]


def test_a_change_that_would_be_lost_is_refused(worlds):
    """Met by users of PyTorch: https://github.com/pytorch/pytorch/issues/107081."""
    torch.manual_seed(0)
    weight = models.Twice().double().blocks[1].weight
    for rank, (message, found) in enumerate(worlds(2).run(changed_outside, "forward")):
        assert f"unit of blocks.1.weight were changed on rank {rank}" in message
        assert "with fsdp.unshard()" in message and torch.equal(found, weight)
    assert every(torch.equal(w, 2 * weight) for w in worlds(2).run(changed_outside, "unshard"))


def made_before():
    """The optimizer is made from the plain model's parameters, before FSDP shards them."""
    model = ruined(models.Tied)
    optimizer = sgd(model.parameters())
    wrapped = FSDP(model)
    for n in range(2):
        batch = share(model.batch(n), dist.get_rank(), dist.get_world_size())
        found = step(wrapped, optimizer, batch, model.loss)
    return found | {"gradients": wrapped.full_gradients(), "weights": wrapped.full_state_dict()}


def test_an_optimizer_made_before_sharding_trains_the_same_parameters(worlds):
    """Elsewhere it must be made after: https://github.com/facebookresearch/fairscale/issues/423."""
    found = differences(worlds(2).run(made_before), plain(models.Tied))
    assert max(found.values()) < 1e-12, found


def largest(units):
    """Most bytes of parameters at a time, during a forward and backward; and those of the model."""
    model = models.Tokens()
    whole = sum(p.nbytes for p in model.parameters())
    wrapped = FSDP(model, units=units)
    x, y = model.batch()
    with Memory(wrapped) as memory:
        model.loss(wrapped(x), y).backward()
    return max(row.bytes for row in memory.rows if row.op == "parameters") / whole


def test_a_unit_that_is_everything_saves_nothing(worlds):
    """PyTorch's default, which users meet: https://github.com/pytorch/pytorch/issues/73809."""
    assert every(share >= 1.25 for share in worlds(4).run(largest, []))
    assert every(share < 0.8 for share in worlds(4).run(largest, None))


def skips(skipping):
    """In the second step one rank leaves out a block; all blocks have the same size."""
    model = models.Twice()
    wrapped = FSDP(model)
    x, y = model.batch(dtype=torch.float32)
    for n in range(2):
        if n and dist.get_rank() in skipping:
            model.blocks = torch.nn.ModuleList([model.blocks[0], model.blocks[2]])
        model.loss(wrapped(x), y).backward()
    return [p.grad is not None for p in wrapped.parameters()]


def test_a_rank_that_skips_a_unit_is_named_and_the_others_live_on(worlds):
    """It hangs elsewhere: https://github.com/pytorch/pytorch/issues/148334."""
    with pytest.raises(RankError) as caught:
        worlds(4).run(skips, [1])
    text = str(caught.value).lower()
    rows = re.findall(r"^ +(\d) +(\w+ \w+ \[\d+\])", text, re.M)  # what each rank launched
    others = {launched for rank, launched in rows if rank != "1"}
    assert "rank 1" in text or (len(others) == 1 and dict(rows)["1"] not in others), text
    assert worlds(4).run(dist.get_rank) == [0, 1, 2, 3]
    worlds(4).run(skips, [0, 1, 2, 3])  # where all skip it, nothing is wrong


def frozen_later():
    model = models.Twice()
    wrapped = FSDP(model)
    model.blocks[0].bias.requires_grad_(False)
    messages = []
    for call in (lambda: wrapped(model.batch()[0]), lambda: wrapped.double()):
        try:
            call()
        except RuntimeError as error:
            messages.append(str(error))
    return messages


def test_freezing_and_casting_afterwards_are_refused(worlds):
    for frozen, cast in worlds(2).run(frozen_later):
        assert frozen.startswith("blocks.0.bias was trained when")
        assert cast.startswith("A model inside FSDP cannot be moved or cast")


def without(method, collective):
    """Take one step while a collective does nothing but leave this rank's own part where it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, collective, OWN[collective])
        return method(models.Perceptron, steps=1)


def own_part(part, whole, **_):
    part.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()] * dist.get_world_size())
    return Done()


class Done:
    def wait(self):
        pass


OWN = {"reduce_scatter_single": own_part, "all_gather_single": lambda *_, **__: Done()}


@pytest.mark.parametrize(
    ("method", "collective"),
    [(fsdp, "reduce_scatter_single"), (zero2, "reduce_scatter_single"),
     (zero1, "all_gather_single")],
)  # fmt: skip
def test_without_its_collective_a_step_is_wrong(worlds, method, collective):
    """A bite for each stage: what test_fsdp.py compares does fail."""
    found = differences(worlds(2).run(without, method, collective), plain(models.Perceptron, 1))
    assert found["outputs"] < 1e-12
    assert max(found.values()) > 1e-3
