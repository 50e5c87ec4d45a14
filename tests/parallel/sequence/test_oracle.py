"""Ring attention and PyTorch's own `context_parallel`: the same result and gradients."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional

from lib.parallel.sequence import shard_sequence
from lib.parallel.sequence.torch_on_cpu import use_torch_context_parallel_on_cpu
from lib.ranks.mesh import mesh
from tests.parallel.sequence import steps


def both(ranks, length):
    """The whole result and dq, dk, dv by our ring; the same by PyTorch's."""
    ours = steps.spread(length, True, sizes={"groups": steps.HEADS})
    use_torch_context_parallel_on_cpu()
    _attention._cp_options.convert_to_f32 = False  # it joins blocks in 4 bytes by default
    here = mesh(cp=ranks).torch()
    *leaves, gradient = steps.drawn(length, groups=steps.HEADS)
    with context_parallel(here, buffers=[*leaves, gradient], buffer_seq_dims=[2] * 4):
        for leaf in leaves:
            leaf.requires_grad_()
        out = functional.scaled_dot_product_attention(*leaves, is_causal=True)
        out.backward(gradient)
        theirs = [out.detach(), *(leaf.grad for leaf in leaves)]
        for leaf in leaves:  # PyTorch gives their memory back to the whole tensors
            leaf.requires_grad_(False)
    own = [shard_sequence(t, None, "zigzag", 2) for t in ours]
    return own, theirs


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_is_pytorchs(worlds, ranks):
    if torch.accelerator.is_available():
        pytest.skip("this is PyTorch's ring on the CPU")
    for own, theirs in worlds(ranks).run(both, ranks, 64):
        assert steps.far(own, theirs) < 1e-12


def theirs_between_barriers():
    """PyTorch's attention with its defaults: a barrier before backward."""
    use_torch_context_parallel_on_cpu()
    here = mesh(cp=4).torch()
    *leaves, gradient = steps.drawn(64, groups=steps.HEADS)
    with context_parallel(here, buffers=[*leaves, gradient], buffer_seq_dims=[2] * 4):
        for leaf in leaves:
            leaf.requires_grad_()
        out = functional.scaled_dot_product_attention(*leaves, is_causal=True)
        dist.barrier()
        out.backward(gradient)
        for leaf in leaves:
            leaf.requires_grad_(False)


def test_pytorch_gathers_keys_and_values_in_backward_again(worlds):
    """What chapter 12 says of its default: two gathers, and gradients that travel round a ring."""
    if torch.accelerator.is_available():
        pytest.skip("this is PyTorch's ring on the CPU")
    ledger = worlds(4).record(theirs_between_barriers)
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.start)
    ops = [row.op for row in rows]
    middle = max(place for place, op in enumerate(ops) if op == "barrier")
    assert ops[:middle].count("all_gather") == ops[middle:].count("all_gather") == 1
    assert "all_to_all" not in ops[:middle] and ops[middle:].count("all_to_all") >= 3
