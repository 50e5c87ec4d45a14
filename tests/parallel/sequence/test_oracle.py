"""Ring attention and PyTorch's own `context_parallel`: the same result and gradients."""

import pytest
import torch
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
