"""Checkpoints in shares: the same gradients, a share of the bytes, one all_gather for each."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.recompute import in_shares
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.single.recompute import checkpoint, recompute
from tests.every import every
from tests.parallel.recompute.test_with_methods import SHAPE, batch, gpt, of

TOKENS = 8 * SHAPE.sequence


def trained(shared):
    """The loss and gradients of a step with tensor parallelism, every block in a checkpoint."""
    around = {"around": in_shares} if shared else {}
    model = recompute(tensor_parallel(gpt()), "all", **around)
    inputs, targets = batch()
    loss = vocab_parallel_cross_entropy(model(inputs), targets)
    dist.barrier()
    loss.backward()
    return [loss.detach(), *of(model)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_those_of_whole_checkpoints(worlds, ranks):
    expected, found = (worlds(ranks).run(trained, shared) for shared in (False, True))
    for one, other in zip(found, expected):
        assert len(one) > 5 and every(torch.equal(a, b) for a, b in zip(one, other))


def test_each_checkpoint_is_gathered_once_in_backward(worlds):
    run = worlds(2).record(trained, True)
    rows = sorted(run.where(rank=0, lane="comm"), key=lambda row: row.start)
    (barrier,) = [row.start for row in rows if row.op == "barrier"]
    gathers = [row.bytes for row in rows if row.op == "all_gather" and row.start > barrier]
    blocks = [TOKENS * SHAPE.width * 8] * (SHAPE.layers + 1)  # and the head
    assert gathers == [*blocks, TOKENS * 8]  # at last the tokens, for the embedding


def kept(numel):
    """What a rank keeps of an input of so many numbers, and its gradient."""
    x = torch.arange(float(numel), requires_grad=True)
    seen = []
    hooks = in_shares()
    pack, unpack = hooks.pack_hook, hooks.unpack_hook
    note = lambda t: seen.append(pack(t)) or seen[-1]
    with torch.autograd.graph.saved_tensors_hooks(note, unpack):
        y = checkpoint(lambda x: x.sin().cos(), x)
    y.sum().backward()
    ((share, shape),) = (each for each in seen if each[1] == x.shape)
    return len(share), share.untyped_storage().nbytes(), x.grad, list(shape)


@pytest.mark.parametrize("numel", [8, 10, 3])
def test_a_rank_keeps_its_share_of_an_input(worlds, numel):
    x = torch.arange(float(numel), requires_grad=True)
    x.sin().cos().sum().backward()
    size = -(-numel // 4)
    for length, nbytes, gradient, shape in worlds(4).run(kept, numel):
        assert (length, nbytes, shape) == (size, 4 * size, [numel])
        assert torch.equal(gradient, x.grad)
