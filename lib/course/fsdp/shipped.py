"""Bugs that people shipped with sharded models, as chapter 3 runs them on real ranks."""

import torch
import torch.distributed as dist

from lib.course.data_parallel.lessons import folded
from lib.parallel.sharded import FSDP
from lib.predict.shape import GPTShape
from lib.ranks import collectives
from lib.ranks.shared.failures import RankError
from lib.single import GPT, next_token_loss, share


def three_bugs(world, shape: GPTShape, batch) -> str:
    """Write what each of the three bugs does on the ranks of `world`."""
    message = folded(world.run(changed, shape, batch)[0])
    return "\n".join([gathered(world), skipped(world, shape, batch), message])


def gathered(world) -> str:
    """Write whether a shard gets its gradient when its whole weight is gathered in two ways."""
    return "\n".join(
        f"gathered {how} autograd, gradient: {world.run(has_gradient, how == 'inside')[0]}"
        for how in ("inside", "outside")
    )


def has_gradient(recorded: bool) -> bool:
    """Gather a linear layer's weight [4 · dp, 5] with or without autograd, and run backward."""
    shard = torch.ones(4, 5, requires_grad=True)
    x = torch.ones(3, 5, requires_grad=True)
    with torch.set_grad_enabled(recorded):
        whole = collectives.all_gather(shard)
    (x @ whole.T).sum().backward()
    return shard.grad is not None


def skipped(world, shape: GPTShape, batch, rank: int = 1) -> str:
    """Write whom the error message blames where a rank skips a unit, and how many ranks go on."""
    try:
        world.run(skips, shape, batch, rank)
    except RankError as error:
        return f"blamed: rank {error.rank}; ranks that go on: {len(world.run(dist.get_rank))}"
    return "nobody noticed"


def skips(shape: GPTShape, batch, rank: int) -> None:
    """Run two forwards and backwards in FSDP; in the second, this `rank` leaves out a layer."""
    model = GPT(shape)
    fsdp = FSDP(model)
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    for n in range(2):
        if n and dist.get_rank() == rank:
            del model.blocks[list(model.blocks)[2]]
        next_token_loss(fsdp(x), y).backward()


def changed(shape: GPTShape, batch) -> str:
    """Halve a weight of the first layer while it is gathered; return FSDP's error message."""
    model = GPT(shape)
    layer = list(model.blocks.values())[1]
    fsdp = FSDP(model)
    layer.register_forward_pre_hook(lambda *_: halve(layer))
    try:
        fsdp(batch[0])
    except RuntimeError as error:
        return str(error)
    return "nobody noticed"


@torch.no_grad()
def halve(module) -> None:
    """Halve all weights of a module in place."""
    for p in module.parameters():
        p.mul_(0.5)
