"""What chapter 9 runs and prints: a GPT that keeps its scores, steps, and tables of bytes."""

import math
import textwrap
from collections import Counter
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint as pytorchs_checkpoint

from lib.ledger import Ledger
from lib.parallel.expert import expert_parallel
from lib.parallel.recompute import in_shares
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.recompute import BlockCost, every, none, square_root, use_of
from lib.predict.recompute.costs import costs_of
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.tensor.memory import published_layer
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, Batches, next_token_loss, share
from lib.single.experts import with_experts
from lib.single.recompute import kept_bytes, recompute

SHAPE = GPTShape(width=64, heads=4, layers=12, sequence=128)
SAMPLES = 4
# A GPT with the width, heads and hidden layer of Llama 3 8B, whose MLP has one matrix less.
LARGE = GPTShape(128_256, 8192, 4096, 32, 32, hidden=14_336, kv_heads=8, positions="rotary")
GPT_3 = {"width": 12_288, "heads": 96, "sequence": 2048, "batch": 1}
GPT_3_LAYERS, GPT_3_PARAMETERS = 96, 175e9
ROWS = 512  # of the batch of a chain of linear layers


def attention(q, k, v, dropout: float = 0.0):
    """Return causal attention in single operations, so that autograd keeps its scores."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def gpt(shape: GPTShape = SHAPE) -> GPT:
    """Return a GPT whose attention keeps its scores."""
    model = GPT(shape)
    for block in list(model.blocks.values())[1:-1]:
        block.attention.core = attention
    return model


def batch(samples: int = SAMPLES, sequence: int = SHAPE.sequence):
    """Return the tokens and the targets of a batch, each [samples, sequence]."""
    return Batches(samples, sequence=sequence)[0]


# --- memory


def published_gb(ranks: int = 1) -> float:
    """Return the GB that all layers of GPT-3 keep for one sample of 2,048 tokens, as published."""
    return GPT_3_LAYERS * published_layer(**GPT_3, ranks=ranks) / 1e9


def with_memory(policy: str) -> int:
    """Run a step of the GPT by a policy on this rank under `Memory`, and return the peak."""
    model = recompute(gpt(), policy)
    inputs, targets = batch()
    with Memory(model) as memory:
        next_token_loss(model(inputs), targets).backward()
    return memory.at_peak["activations"]


def growth() -> str:
    """Write the peak of chains of equal blocks, everything kept and √n, counted and predicted.

    The blocks are linear layers with a ReLU, each of which holds its input alone. With checkpoints,
    the result of the block that runs again is there for a moment too, which `Use.peak` leaves out.
    """
    lines = ["blocks   all kept         √n  predicted"]
    for blocks in (4, 16, 64):
        shape = MLPShape((64,) * (blocks + 1))
        peaks = [_counted(shape, policy) for policy in ("none", "sqrt")]
        x = ROWS * 64 * 4
        costs = [BlockCost(x, 0, 1.0)] * blocks
        predicted = [use_of(none(blocks), costs).peak, use_of(square_root(blocks), costs).peak + x]
        right = predicted == peaks
        lines.append(f"{blocks:>6}{peaks[0]:>11,}{peaks[1]:>11,}  {right}")
    return "\n".join(lines)


def _counted(shape: MLPShape, policy) -> int:
    """Return the bytes of activations and of the batch at the peak of a step."""
    model = recompute(MLP(shape), policy)
    x = torch.ones(ROWS, shape.widths[0])
    with Memory(model) as memory:
        model(x).sum().backward()
    return x.nbytes + max(row.bytes for row in memory.rows if row.op == "activations")


def peaks(blocks: int, input_bytes: int, inside: int, choices) -> dict[int, int]:
    """Return k -> bytes at the peak of equal blocks, with a checkpoint around each k of them."""
    costs = [BlockCost(input_bytes, inside, 1.0)] * blocks
    return {k: use_of(every(blocks, k), costs).peak for k in choices}


def scores_table() -> str:
    """Write the bytes that the GPT keeps by policy, for three lengths of a sequence."""
    lines = ["tokens     none  selective        all"]
    for sequence in (64, 128, 256):
        shape = GPTShape(width=64, heads=4, layers=12, sequence=sequence)
        inputs, _ = batch(1, sequence)
        kept = [kept_bytes(recompute(gpt(shape), policy), inputs) / 1e6
                for policy in ("none", "selective", "all")]  # fmt: skip
        lines.append(f"{sequence:>6}{kept[0]:>6.1f} MB{kept[1]:>8.1f} MB{kept[2]:>8.1f} MB")
    return "\n".join(lines)


def large_costs(samples: int = 1) -> list[BlockCost]:
    """Return what the blocks of `LARGE` keep and take on an H100 in bfloat16, predicted."""
    return costs_of(LARGE, samples, speeds("H100"), itemsize=2)


# --- on ranks


def fsdp_step(policy: str) -> float:
    """Run a step of the GPT in FSDP, a unit for each block; return what `_squares` does."""
    model = gpt()
    return _stepped(FSDP(model), model, policy)


def tensor_step(policy: str, shared: bool = False) -> float:
    """Run a step in tensor parallelism; with `shared`, what checkpoints keep lies in shares."""
    model = tensor_parallel(gpt())
    around = {"around": in_shares} if shared else {}
    recompute(model, policy, **around)
    inputs, targets = batch()
    dist.barrier()
    vocab_parallel_cross_entropy(model(inputs), targets).backward()
    return _squares(model)


def experts_step(policy: str) -> float:
    """Run a step of the GPT with four experts in each layer, spread over the ranks."""
    model = expert_parallel(with_experts(gpt(), experts=4, k=2))
    return _stepped(model, model, policy)


def _stepped(wrapped: nn.Module, model: nn.Module, policy: str) -> float:
    recompute(model, policy)
    inputs, targets = share(batch(), dist.get_rank(), dist.get_world_size())
    dist.barrier()
    next_token_loss(wrapped(inputs), targets).backward()
    return _squares(wrapped)


def _squares(model: nn.Module) -> float:
    """Return the sum of the squares of this rank's gradients, which tells two steps apart."""
    gradients = [p.grad.double() for p in model.parameters() if p.grad is not None]
    return sum(g.square().sum().item() for g in gradients)


STEPS = {"FSDP": fsdp_step, "tensor": tensor_step, "experts": experts_step}


def collectives(run: Ledger) -> Counter:
    """Count the collectives of rank 0 by name, from its barrier on: what the step launched."""
    rows = sorted(run.where(rank=0, lane="comm"), key=lambda row: row.start)
    ops = [row.op for row in rows]
    return Counter(ops[ops.index("barrier") + 1 :])


def counted_collectives(world) -> dict[str, list[Counter]]:
    """Return for each method the collectives of a step with nothing and with all computed again."""
    return {
        name: [collectives(world.record(step, policy)) for policy in ("none", "all")]
        for name, step in STEPS.items()
    }


def collectives_table(counted: dict[str, list[Counter]]) -> str:
    """Write what `counted_collectives` found."""
    lines = ["          collective        none   all"]
    for name, (kept, recomputed) in counted.items():
        for op in sorted(kept | recomputed):
            lines.append(f"{name:<10}{op:<16}{kept[op]:>6}{recomputed[op]:>6}")
            name = ""
    return "\n".join(lines)


def stage_table(stages: int = 8, microbatches: int = 32) -> str:
    """Write the GB that the first stage of a pipeline of `LARGE` holds, predicted."""
    layers = LARGE.layers // stages
    costs = large_costs()[1 : 1 + layers]
    plans = {"none": none(layers), "each layer": every(layers, 1), "stage": every(layers, layers)}
    lines = ["a checkpoint for      none  each layer  the stage"]
    for name, held in (("GPipe, 32 held", microbatches), (f"1F1B, {stages} held", stages)):
        peaks = [use_of(plan, costs).in_flight(held) / 1e9 for plan in plans.values()]
        lines.append(f"{name:<17}{peaks[0]:>6.1f} GB{peaks[1]:>9.1f} GB{peaks[2]:>8.1f} GB")
    return "\n".join(lines)


# --- PyTorch's own, and what breaks


class PyTorchs(nn.Module):
    """Runs each block of a chain in a checkpoint of PyTorch's."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, x):
        for block in self.model.blocks.values():
            x = pytorchs_checkpoint(block, x, use_reentrant=False)
        return x


def with_pytorchs_checkpoints() -> PyTorchs:
    """Return the GPT with PyTorch's non-reentrant checkpoint around each block."""
    return PyTorchs(gpt())


def gpt_with_dropout() -> GPT:
    """Return a small GPT that drops a tenth of its activations, with attention as one kernel."""
    return GPT(replace(SHAPE, layers=2, dropout=0.1))


def folded(error: Exception) -> str:
    """Return the message of an error in lines that a phone shows whole."""
    lines = str(error).splitlines()
    return "\n".join(textwrap.fill(line, 49, subsequent_indent="  ") for line in lines)
