"""Lets PyTorch's own `context_parallel` run on the CPU, to compare ours with it.

    use_torch_context_parallel_on_cpu()
    with torch.distributed.tensor.experimental.context_parallel(mesh, buffers=..): ...

Its ring attention takes any kernel of attention that returns the log-sum-exp, but only those for GPUs
are registered. This registers the kernel for the CPU in the same way: forward and backward call
PyTorch's own templates of the ring. It touches names that PyTorch calls private, so it is for the
version of torch in requirements.txt.
"""  # noqa: E501

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
SEQUENCE_DIM = 2


def use_torch_context_parallel_on_cpu() -> None:
    """Register the CPU's kernel of attention with PyTorch's `context_parallel`, in this process."""
    theirs.custom_ops[_forward] = _ring
    theirs.custom_ops[_backward] = _ring_backward


def _ring(_, args, kwargs):
    q, k, v, dropout, causal, *_ = (*args, 0.0, False)[:5]
    mesh = q.device_mesh
    out, log_sum, *_ = theirs._templated_ring_attention(
        mesh.get_group(), SEQUENCE_DIM, _forward, *(t.to_local() for t in (q, k, v)),
        is_causal=causal, dropout_p=dropout, scale=kwargs.get("scale"),
    )  # fmt: skip
    return tuple(_spread(t, mesh) for t in (out, log_sum))


def _ring_backward(_, args, kwargs):
    names = "grad_out", "query", "key", "value", "out", "logsumexp"
    mesh = args[0].device_mesh
    local = dict(zip(names, (t.to_local() for t in args[:6])))
    gradients = theirs._templated_ring_attention_backward(
        mesh.get_group(), SEQUENCE_DIM, _backward, grad_out_name="grad_out", is_causal=args[7],
        dropout_p=args[6], scale=kwargs.get("scale"), **local,
    )  # fmt: skip
    return tuple(_spread(t, mesh) for t in gradients[:3])


def _spread(tensor, mesh):
    return DTensor.from_local(tensor, mesh, [Shard(SEQUENCE_DIM)], run_check=False)
