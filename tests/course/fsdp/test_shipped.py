"""Chapter 3's three more bugs that people shipped: what ours says, and what fully_shard does."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from lib.course.fsdp import shipped
from lib.predict.shape import GPTShape
from lib.ranks.shared.failures import RankError
from lib.single import GPT, Batches, next_token_loss, share
from tests.every import every

SHAPE = GPTShape(width=32, layers=4, heads=2, sequence=16)  # as in the chapter
BATCH = Batches(8, sequence=16)[0]


def theirs():
    model = GPT(SHAPE)
    for block in model.blocks.values():
        fully_shard(block)
    return fully_shard(model)


def test_a_weight_gathered_outside_of_autograd_gets_no_gradient(worlds):
    assert worlds(4).run(shipped.has_gradient, True) == [True] * 4
    assert worlds(4).run(shipped.has_gradient, False) == [False] * 4


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_that_skips_a_layer_is_blamed_and_all_go_on(worlds, rank):
    found = shipped.skipped(worlds(4), SHAPE, BATCH, rank)
    assert found == f"blamed: rank {rank}; ranks that go on: 4"
    assert shipped.skipped(worlds(4), SHAPE, BATCH, 4) == "nobody noticed"  # no rank skips it


def skips_with_fully_shard():
    model = theirs()
    if dist.get_rank() == 1:
        del model.blocks[list(model.blocks)[2]]
    x, y = share(BATCH, dist.get_rank(), dist.get_world_size())
    next_token_loss(model(x), y).backward()


def test_fully_shard_does_not_notice_until_the_last_block(worlds):
    """Gathers of other layers are mixed, since they are as large; the head alone is smaller."""
    with pytest.raises(RankError) as caught:
        worlds(4).run(skips_with_fully_shard)
    head = sum(p.numel for p in SHAPE.parameters if p.block == SHAPE.blocks - 1)
    layer = sum(p.numel for p in SHAPE.parameters if p.block == 1)
    assert f"[{head}]" in caught.value.table and f"[{layer}]" in caught.value.table


def test_a_change_of_gathered_weights_is_refused(worlds):
    for rank, message in enumerate(worlds(4).run(shipped.changed, SHAPE, BATCH)):
        assert f"were changed on rank {rank} while they were gathered" in message


def changed_with_fully_shard():
    model = theirs()
    layer = list(model.blocks.values())[1]
    before = [p.full_tensor() for p in layer.parameters()]
    changed = layer.register_forward_pre_hook(lambda *_: shipped.halve(layer))
    model(BATCH[0])
    changed.remove()
    layer.reshard()
    return [torch.equal(a, p.full_tensor()) for a, p in zip(before, layer.parameters())]


def test_fully_shard_loses_it_without_a_word(worlds):
    assert every(every(kept) for kept in worlds(2).run(changed_with_fully_shard))
