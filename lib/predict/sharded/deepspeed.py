"""DeepSpeed's estimators of memory for stages 2 and 3, as its code computes them.

ψ parameters, n GPUs, λ the parameters of the largest layer, all in bytes for each GPU:

    stage 2  2ψ + 18ψ/n    (until its code changed: 4ψ + 16ψ/n)     with offload 2ψ
    stage 3  4λ + 18ψ/n                                             with offload 4λ + 2ψ/n, or 4λ

The host's memory is that of a node, times 1.5 to be careful.

Source: deepspeedai/DeepSpeed@7dee2e0, deepspeed/runtime/zero/stage_1_and_2.py and stage3.py.
"""

from typing import NamedTuple

from lib.predict.arguments import whole

CAREFUL = 1.5  # DeepSpeed's additional_buffer_factor


class Estimate(NamedTuple):
    """Holds the bytes that a node needs in its host memory, and those that each GPU needs."""

    cpu: int
    gpu: int


def stage_2(
    numel: int, gpus: int, nodes: int = 1, *, offload_optimizer: bool = False, old: bool = False
) -> Estimate:
    """Return DeepSpeed's estimate for stage 2 with `gpus` GPUs in each of `nodes`.

    `old` is the formula that DeepSpeed's documentation still prints results of.
    """
    numel, gpus = whole(numel, "The number of parameters"), whole(gpus, "The GPUs of a node")
    n = gpus * whole(nodes, "The number of nodes")
    if offload_optimizer:
        return Estimate(int(numel * max(4 * n, 16) * CAREFUL), 2 * numel)
    kept, shared = (4, 16) if old else (2, 18)
    return Estimate(int(numel * 4 * gpus * CAREFUL), kept * numel + shared * numel // n)


def stage_3(
    numel: int, largest_layer: int, gpus: int, nodes: int = 1, *, offload_optimizer: bool = False,
    offload_param: bool = False, zero_init: bool = True,
) -> Estimate:  # fmt: skip
    """Return DeepSpeed's estimate for stage 3; `zero_init` builds the model already sharded.

    Raises ValueError where parameters are offloaded and the optimizer is not.
    """
    numel, gpus = whole(numel, "The number of parameters"), whole(gpus, "The GPUs of a node")
    nodes = whole(nodes, "The number of nodes")
    layer = whole(largest_layer, "The parameters of the largest layer")
    if offload_param and not offload_optimizer:
        raise ValueError(
            "DeepSpeed offloads parameters only together with the optimizer. Say "
            "offload_optimizer=True as well."
        )
    if not offload_optimizer:
        built = layer if zero_init else numel
        return Estimate(int(built * 4 * gpus * CAREFUL), 4 * layer + 18 * numel // (gpus * nodes))
    kept = (18 if offload_param else 16) / nodes  # bytes a parameter in a node's host memory
    host = kept if zero_init else max(4 * gpus, kept)
    gathered = 4 * layer + (0 if offload_param else 2 * numel // (gpus * nodes))
    return Estimate(int(numel * host * CAREFUL), gathered)
