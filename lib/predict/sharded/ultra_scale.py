"""The memory of the Ultra-Scale Playbook's figures: parameters, gradients, optimizer, activations.

For one sample of s tokens, width h, L layers, a heads, on t ranks of tensor parallelism and c of
context parallelism, in bytes:

    parameters, gradients   2 each, without norms; optimizer 8; ÷ t, and ÷ n if sharded
    activations             L·s·h·(10 + 24/t)/c, with sequence parallelism L·s·h·34/t/c
    attention's scores      L·5·a·s² and s·h once more, where they are counted

A pipeline's first stage holds its layers and the embedding, and as many activations as the whole
model, because it has the most microbatches in flight.

Source: Hugging Face 2025, "The Ultra-Scale Playbook"; Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from lib.predict.arguments import equal_share, whole
from lib.predict.memory import Held
from lib.predict.sharded.models import LlamaShape
from lib.predict.sharded.states import convention, held

GIB = 2**30


def matrices(shape: LlamaShape, pp: int = 1) -> int:
    """Return the weights of all matrices, or of those in the first of `pp` stages of a pipeline."""
    layer = sum(rows * columns for _, (rows, columns) in shape.matrices)
    stage = equal_share(shape.layers, pp, "The model has {} layers", "{} stages")
    ends = 2 if pp == 1 else 1  # the embedding, and with one stage the head
    return stage * layer + ends * shape.vocabulary * shape.width


def figure(
    shape: LlamaShape, sequence: int, *, ranks: int = 1, stage: int = 0, tp: int = 1,
    sp: bool = False, cp: int = 1, pp: int = 1,
) -> Held:  # fmt: skip
    """Return the bytes that the playbook draws for each GPU, by kind.

    `ranks` are those of data parallelism, with ZeRO's `stage`; tp, cp and pp are those of tensor,
    context and pipeline parallelism; `sp` adds sequence parallelism to tensor parallelism.
    """
    numel = equal_share(matrices(shape, pp), tp, "The model has {} weights")
    kept = held(numel, ranks, stage, convention("Ultra-Scale figures"))
    tokens = whole(sequence, "sequence") * shape.width * shape.layers
    numbers = 34 * tokens // tp if sp else 10 * tokens + 24 * tokens // tp
    return kept._replace(activations=numbers // whole(cp, "cp"))


def activations_with_scores(shape: LlamaShape, sequence: int) -> int:
    """Return the bytes of activations on one GPU where attention's scores are kept as well."""
    s = whole(sequence, "sequence")
    layer = 34 * s * shape.width + 5 * shape.heads * s * s
    return shape.layers * layer + s * shape.width


def parameters_of_a_gpt(shape: LlamaShape, sequence: int) -> int:
    """Return the weights that the figure memusage_activations counts for a Llama.

    They are those of a GPT with biases, four times the width in its MLP and learned positions.
    """
    d = shape.width
    return d * (shape.vocabulary + sequence) + shape.layers * (12 * d * d + 13 * d) + 2 * d
