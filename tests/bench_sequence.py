"""Measure sequence parallelism against PyTorch's, in turns in the same processes.

    python tests/bench_sequence.py [--repeats 20] [--launches 3] [--only steps,memory]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib import World
from lib.parallel.tensor import sequence_parallel, vocab_parallel_cross_entropy
from lib.predict.tensor import sequence as predicted
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT
from tests.bench_data import Figure, compared, measure_all
from tests.bench_tensor import SHAPE, their_loss
from tests.parallel.tensor.test_oracle import dtensor

ROTARY = replace(SHAPE, positions="rotary")  # PyTorch's plan splits no embedding of positions
LENGTHS = (512, 1024, 2048, 4096, 8192)


def gpt(kind):
    """Make the GPT of 4 layers, ours or theirs: model, optimizer, batch, loss."""
    torch.manual_seed(1)
    model, tokens = GPT(ROTARY), torch.randint(256, (2, ROTARY.sequence + 1))
    if kind == "ours":
        model, loss = sequence_parallel(model), vocab_parallel_cross_entropy
    else:
        device_mesh = mesh(tp=dist.get_world_size()).torch()
        model, loss = dtensor(model, device_mesh, sequence=True), their_loss
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, (tokens[:, :-1], tokens[:, 1:]), loss


def steps(options):
    """Tensor parallelism with split sequences against DTensor's, on 2 and 4 ranks."""
    for ranks in (2, 4):
        rivals = "sequence parallel, ours / DTensor"
        yield from compared("GPT of 4 layers", gpt, ranks, options, rivals, 0.80)


def kept(shape):
    """Bytes that autograd keeps on this rank after forward, for one sample."""
    model = sequence_parallel(GPT(shape))
    tokens = torch.zeros(1, shape.sequence, dtype=torch.long)
    with Memory(model) as counted:
        logits = model(tokens)
        activations = counted.now["activations"]
    assert logits.shape[1] == shape.sequence
    return activations


def memory(options):
    """What a rank keeps after forward, for sequences of 512 to 8,192 tokens, as predicted."""
    with World(4, device="cpu") as world:
        for length in LENGTHS:
            shape = replace(SHAPE, width=64, layers=1, sequence=length)
            ours, formula = max(world.run(kept, shape)), predicted.activations(shape, 4, 1)
            title = f"activations of a layer of {length:,} tokens, 4 ranks, counted / predicted"
            yield Figure(title, ours / 1e6, formula / 1e6, ours / formula, "the formula",
                         ours == formula, "MB")  # fmt: skip


def main():
    """Measure what the options ask for."""
    measure_all((steps, memory), __doc__, repeats=20)


if __name__ == "__main__":
    main()
