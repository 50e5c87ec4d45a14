"""What chapter 9 runs and prints: a GPT that keeps its scores, steps, and tables of bytes."""

import math
import textwrap
from collections import Counter
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from lib.ledger import Ledger
from lib.parallel.expert import expert_parallel
from lib.parallel.recompute import in_shares
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.recompute import BlockCost
from lib.predict.recompute.costs import costs_of
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, Batches, next_token_loss, share
from lib.single.experts import with_experts
from lib.single.recompute import kept_bytes, recompute

SHAPE = GPTShape(width=64, heads=4, layers=12, sequence=128)
SAMPLES = 4
# A GPT with the width, heads and hidden layer of Llama 3 8B, whose MLP has one matrix less.
LARGE = GPTShape(128_256, 8192, 4096, 32, 32, hidden=14_336, kv_heads=8, positions="rotary")
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


def with_memory(policy: str) -> int:
    """Run a step of the GPT by a policy on this rank under `Memory`, and return the peak."""
    model = recompute(gpt(), policy)
    inputs, targets = batch()
    with Memory(model) as memory:
        next_token_loss(model(inputs), targets).backward()
    return memory.at_peak["activations"]


def peak_in_inputs(blocks: int, policy: str) -> float:
    """Return the bytes of the batch and all activations at the peak, in inputs of a block.

    The blocks are linear layers with a ReLU, each of which holds its input alone. With checkpoints,
    the result of the block that runs again is there for a moment too, which `Use.peak` leaves out.
    """
    model = recompute(MLP(MLPShape((64,) * (blocks + 1))), policy)
    x = torch.ones(ROWS, 64)
    with Memory(model) as memory:
        model(x).sum().backward()
    activations = max(row.bytes for row in memory.rows if row.op == "activations")
    return 1 + activations / x.nbytes


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


# --- what breaks


def gpt_with_dropout() -> GPT:
    """Return a small GPT that drops a tenth of its activations, with attention as one kernel."""
    return GPT(replace(SHAPE, layers=2, dropout=0.1))


def folded(error: Exception) -> str:
    """Return the message of an error in lines that a phone shows whole."""
    lines = str(error).splitlines()
    return "\n".join(textwrap.fill(line, 49, subsequent_indent="  ") for line in lines)
