"""Functions that chapter 4 calls: small modules, what ranks launch and keep, and whole steps.

The text of each is short enough to read: `source(lessons.one_step)` shows it in a cell.
"""

from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, dropout

from lib.course.data_parallel.lessons import folded
from lib.ledger import Ledger
from lib.parallel.tensor import (
    assert_replicated,
    gather_from_group,
    load_plain,
    plain_gradients,
    tensor_parallel,
    to_plain,
    vocab_parallel_cross_entropy,
)
from lib.predict.shape import GPTShape
from lib.predict.tensor.shapes import share_of
from lib.predict.tensor.traffic import of_step
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT, next_token_loss

__all__ = ["folded"]  # besides what is below

SEED = 4
LAYER = 1  # the block of a GPT that is its first transformer layer


# --- what the cells begin with


def numbers(*sizes: int, seed: int = SEED) -> torch.Tensor:
    """Return random numbers of 64 bits, the same on every rank and every device."""
    draw = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randn(*sizes, generator=draw, dtype=torch.float64, device="cpu")
    return drawn.to(torch.get_default_device())


def gpt(shape: GPTShape) -> GPT:
    """Build a plain GPT in 64-bit numbers whose biases are not 0, so that they matter."""
    model = GPT(shape).double()
    for number, parameter in enumerate(model.parameters()):
        if parameter.dim() == 1:
            parameter.data += 0.1 * numbers(*parameter.shape, seed=number).to(parameter)
    return model.to(torch.get_default_device())


def mlp(shape: GPTShape) -> nn.Module:
    """Return the MLP of the first layer of `gpt(shape)`: its linear layers are `up` and `down`."""
    return gpt(shape).blocks[str(LAYER)].mlp


def batch_of(shape: GPTShape, samples: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens and the tokens that follow them, [samples, S] each."""
    draw = torch.Generator("cpu").manual_seed(SEED)
    sizes = samples, shape.sequence + 1
    tokens = torch.randint(shape.vocabulary, sizes, generator=draw, device="cpu")
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def outputs_and_gradients(module) -> dict[str, torch.Tensor]:
    """Run a module forward and backward on x [2, 16, 32]; return z, dx and gradients by name."""
    x = numbers(2, 16, 32).requires_grad_()
    z = module(x)
    z.backward(numbers(2, 16, 32, seed=SEED + 1))
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return {"z": z.detach(), "dx": x.grad} | gradients


def own(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return this rank's part of a tensor: one of tp equal pieces of a dim."""
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def part(parameter, dim: int) -> nn.Parameter:
    """Return a parameter that holds this rank's part of another one."""
    return nn.Parameter(own(parameter, dim).detach().clone())


# --- compare and read


def same(results: list[dict], plain: dict) -> bool:
    """Say whether what the ranks returned equals the plain results, up to rounding.

    What a rank has whole must be equal on every rank. Shards are joined along the dim in which they
    are smaller than the plain tensor.
    """
    return all(
        torch.allclose(tensor, expected.to(tensor), rtol=1e-9, atol=1e-12)
        for name, expected in plain.items()
        for tensor in _whole([result[name] for result in results], expected)
    )


def _whole(tensors: list[torch.Tensor], expected: torch.Tensor) -> list[torch.Tensor]:
    pairs = zip(tensors[0].shape, expected.shape)
    dims = [dim for dim, (own, full) in enumerate(pairs) if own < full]
    return [torch.cat(tensors, dims[0])] if dims else tensors


def calls(ledger: Ledger) -> str:
    """List rank 0's collectives after its last barrier, in order: name and bytes of the buffer."""
    own = ledger.where(rank=0, lane="comm")
    begin = own.where(op="barrier").column("end").max()
    return _joined(sorted(own[own.column("start") >= begin], key=lambda row: row.number))


def predicted_calls(shape: GPTShape, ranks: int, samples: int = 2) -> str:
    """List the predicted collectives of a step in 64-bit numbers, as `calls` does recorded ones."""
    return _joined(of_step(shape, ranks, samples, itemsize=8))


def _joined(collectives) -> str:
    """Write name and bytes of each collective, equal neighbours in one line."""
    lines = [f"{one.op:<11}{one.bytes:>8,} bytes" for one in collectives]
    runs = [(line, len(list(alike))) for line, alike in groupby(lines)]
    return "\n".join(line + f" × {count}" * (count > 1) for line, count in runs)


def heads_by_ranks(shape: GPTShape, numbers_of_ranks) -> str:
    """List what each rank has of an attention: query heads, key/value heads, and sharers.

    The last column counts the ranks that have the same key/value head.
    """
    lines = ["ranks  q heads  kv heads  sharers"]
    for ranks in numbers_of_ranks:
        share = share_of(shape, ranks)
        lines.append(f"{ranks:>5}{share.heads:>9}{share.kv_heads:>10}{share.sharers:>9}")
    return "\n".join(lines)


def peaks_of_losses(world, losses: dict, vocabulary: int = 32_768, tokens: int = 64) -> str:
    """Measure the peak of each loss on rank 0, and write it beside the bytes of its own logits."""
    own_logits, lines = 4 * tokens * vocabulary // world.size, []
    for name, loss in losses.items():
        peak = world.run(peak_of_loss, loss, vocabulary, tokens)[0]
        lines.append(f"{name:<16}{peak / 1e6:>5.1f} MB, {peak / own_logits:>5.1f} × own logits")
    return "\n".join(lines)


class StepOf:
    """A step of a GPT that `split` has divided, on the ranks of a world; printed, it says all.

    `calls` are rank 0's collectives, `peak` the most bytes of a rank in a step with AdamW, and
    `equal` says whether loss and gradients are those of the plain GPT.
    """

    def __init__(self, world, shape: GPTShape, split):
        self.ledger = world.record(one_step, shape, split, False)
        self.calls = calls(self.ledger)
        self.peak = max(world.run(peak, shape, split))
        self.equal = same(world.run(one_step, shape, split), plain_step(shape))

    def all_reduces(self, nbytes: int) -> int:
        """Count rank 0's all_reduces of buffers of `nbytes`."""
        rows = self.ledger.where(rank=0, lane="comm", op="all_reduce")
        return sum(row.bytes == nbytes for row in rows)

    def __str__(self) -> str:
        calls = self.calls.replace("\n", "\n  ")
        return f"  equal: {self.equal}, peak: {self.peak / 1e6:.3f} MB\n  {calls}"


def plain_step(shape: GPTShape) -> dict:
    """Return the loss and the gradients of a plain GPT on one device, by name."""
    model = gpt(shape)
    loss = forward_backward(model, *batch_of(shape))
    return {"loss": loss} | whole_gradients(model)


# --- run on every rank


def mask(apart: int, count: int = 16) -> str:
    """Return which numbers dropout keeps, 1, and drops, 0, with the seed 7 + apart · rank."""
    torch.manual_seed(7 + apart * dist.get_rank())
    kept = dropout(torch.ones(count, device="cpu"), 0.5) > 0
    return "".join("1" if one else "0" for one in kept)


def loss_and_gradient(loss, cut) -> dict[str, torch.Tensor]:
    """Return a loss of `cut(logits)`, this rank's of [24, 256] logits, and their gradient."""
    logits = cut(numbers(24, 256)).clone().requires_grad_()
    targets = 10 * torch.arange(24, device=logits.device)  # on all of four ranks
    value = loss(logits, targets)
    value.backward()
    return {"loss": value.detach(), "gradient": logits.grad}


def written(shape: GPTShape) -> dict[str, torch.Tensor]:
    """Return the plain state dict of a GPT that is split over the ranks."""
    return to_plain(tensor_parallel(gpt(shape)))


def read(shape: GPTShape, state: dict) -> dict[str, torch.Tensor]:
    """Load a plain state dict into a GPT that is split over the ranks; return it again."""
    model = tensor_parallel(GPT(shape, seed=1).double())
    load_plain(model, state)
    return to_plain(model)


def one_step(shape: GPTShape, split, gradients: bool = True):
    """Run forward and backward of a GPT that `split` has divided, on this rank.

    Returns the loss and, with `gradients`, those of the plain model's parameters, by name. After
    the barrier there are only the step's own calls.
    """
    model, batch = split(gpt(shape)), batch_of(shape)
    dist.barrier()
    loss = forward_backward(model, *batch)
    return {"loss": loss} | (whole_gradients(model) if gradients else {})


def forward_backward(model, tokens, targets):
    """Run forward and backward of a plain GPT, of ours, or of one of DTensors; return the loss."""
    if hasattr(model, "tensor_parallel_group"):
        loss = vocab_parallel_cross_entropy(model(tokens), targets)
        loss.backward()
    else:
        with loss_parallel():
            loss = next_token_loss(model(tokens), targets)
            loss.backward()
    loss = loss.detach()
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def whole_gradients(model) -> dict[str, torch.Tensor]:
    """Return the gradients of the plain model's parameters, by name."""
    if hasattr(model, "tensor_parallel_group"):
        return plain_gradients(model)
    own = {name: p.grad for name, p in model.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in own.items()}


def dtensor(model: GPT) -> GPT:
    """Split a plain GPT with PyTorch's `parallelize_module`, module by module."""
    last = len(model) - 1
    plan = {
        "blocks.0.tokens": RowwiseParallel(input_layouts=Replicate()),
        f"blocks.{last}.linear": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for n in range(1, last):
        plan[f"blocks.{n}.attention.qkv"] = plan[f"blocks.{n}.mlp.up"] = ColwiseParallel()
        plan[f"blocks.{n}.attention.proj"] = plan[f"blocks.{n}.mlp.down"] = RowwiseParallel()
    return parallelize_module(model, mesh(tp=dist.get_world_size()).torch(), plan)


def peak(shape: GPTShape, split) -> int:
    """Return the most bytes that this rank holds in a step with AdamW, after one that warms up."""
    model, batch, peaks = split(GPT(shape)), batch_of(shape), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    for _ in range(5):  # on a busy machine gloo's thread may hold a buffer a moment longer
        optimizer.zero_grad()
        with Memory(model, optimizer) as counted:
            forward_backward(model, *batch)
            optimizer.step()
        peaks.append(counted.peak)
    return min(peaks[1:])


def peak_of_loss(loss, vocabulary: int, tokens: int) -> int:
    """Return the most bytes that this rank holds during a loss of split logits, 32-bit numbers.

    `loss(logits, targets)` gets [tokens, V/tp] and [tokens]; backward is counted too.
    """
    width = vocabulary // dist.get_world_size()
    logits = numbers(tokens, width, seed=dist.get_rank()).float().requires_grad_()
    targets, peaks = torch.arange(tokens) % vocabulary, []
    for _ in range(3):  # on a busy machine gloo's thread may hold a buffer a moment longer
        with Memory(nn.Module()) as counted:
            logits.grad = None
            loss(logits, targets).backward()
        peaks.append(counted.peak)
    return min(peaks)


def gathered_loss(logits, targets):
    """Give every rank all logits, and take PyTorch's loss of them."""
    return cross_entropy(gather_from_group(logits), targets)


def diverged(shape: GPTShape, apart: int) -> str:
    """Train a step with dropout; return what `assert_replicated` then says first, or "equal".

    The generator of a rank, which replicated tensors use, begins with 7 + apart · rank.
    """
    model = tensor_parallel(GPT(shape), seed=7)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(7 + apart * dist.get_rank())
    forward_backward(model, *batch_of(shape))
    optimizer.step()
    try:
        assert_replicated(model)
    except AssertionError as error:
        return str(error).partition(", by at most")[0] + "."
    return "equal"
