"""Six small programs, each with a bug that people shipped with sharded models.

A reader of chapter 3 chooses one and repairs it. Each has a function that runs it on a rank with
what it needs, and one that says what all ranks must get, from plain lists of tensors.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from lib.parallel.sharded import FSDP
from lib.predict.shape import MLPShape
from lib.ranks import collectives
from lib.ranks.memory import Memory
from lib.single import MLP

# --- clip: the norm of this rank's shards


def my_clip(shards, limit):
    """Scale the gradients of this rank's shards, so that all ranks' norm is at most `limit`."""
    norm = torch.stack([g.square().sum() for g in shards]).sum().sqrt()
    scale = (limit / norm).clamp(max=1.0)
    return [g * scale for g in shards]


def gradients(ranks: int, size: int):
    """Return each rank's shards of gradients, of very different norms, and the largest norm."""
    draw = torch.Generator("cpu").manual_seed(size)
    shapes = (size,), (2 * size + 1,)
    make = lambda r: [(1 + r) ** 2 * torch.randn(*s, generator=draw, device="cpu") for s in shapes]
    return [(make(rank), float(size)) for rank in range(ranks)]


def clipped(inputs):
    """Return the shards of all ranks, scaled by the norm of all of them."""
    squares = [g.square().sum() for shards, _ in inputs for g in shards]
    scale = (inputs[0][1] / torch.stack(squares).sum().sqrt()).clamp(max=1.0)
    return [[g * scale for g in shards] for shards, _ in inputs]


# --- gather: the whole weight is gathered where autograd does not look


def my_gradient(x, shard, gather):
    """Return the gradient of this rank's rows of W, for the sum of y = x Wᵀ on all ranks."""
    with torch.no_grad():
        whole = gather(shard)  # the rows of all ranks
    y = x @ whole.T
    y.backward(torch.ones_like(y))
    return shard.grad


def rows(ranks: int, size: int):
    """Return each rank's x [3, size] and its two rows of W [2 · ranks, size]."""
    return [(_drawn(rank, 3, size), _drawn(rank + ranks, 2, size)) for rank in range(ranks)]


def with_gather(program: Callable, x: Tensor, shard: Tensor):
    """Run the program with a gather through which gradients flow."""
    shard = shard.clone().requires_grad_()
    return [program(x.clone().requires_grad_(), shard, collectives.all_gather)]


def summed_rows(inputs):
    """Return the gradient of each shard: each of its rows is the sum of all ranks' x."""
    total = sum(x.sum(0) for x, _ in inputs)
    return [[total.expand_as(shard)] for _, shard in inputs]


# --- change: whole weights are changed, and only the shard is kept


def my_halving(unit):
    """Halve all weights of a unit for good."""
    unit.gather()
    for weight in unit.weights:
        weight.data.mul_(0.5)
    unit.free()


class Unit:
    """A unit as chapter 3 builds it: a rank keeps `shard`, and `weights` are views of `flat`."""

    def __init__(self, module: nn.Module):
        self.weights = list(module.parameters())
        flat = torch.cat([p.detach().flatten() for p in self.weights])
        missing = -len(flat) % dist.get_world_size()
        self.flat = nn.functional.pad(flat, (0, missing))
        sizes = [p.numel() for p in self.weights]
        for p, part in zip(self.weights, self.flat[: sum(sizes)].split(sizes)):
            p.data = part.view_as(p)
        self.shard = nn.Parameter(self.flat.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.free()

    def gather(self) -> None:
        """Fill the weights from the shards of all ranks."""
        self.flat.untyped_storage().resize_(self.flat.nbytes)
        dist.all_gather_single(self.flat, self.shard.detach())

    def free(self) -> None:
        """Give the memory of the weights back."""
        self.flat.untyped_storage().resize_(0)


def layers(ranks: int, size: int):
    """Return the same weight and bias for each rank."""
    return [(_drawn(0, size, 3), _drawn(1, size))] * ranks


def in_a_unit(program: Callable, weight: Tensor, bias: Tensor):
    """Run the program on a unit with this weight and bias; return what is gathered afterwards."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    unit = Unit(layer)
    program(unit)
    unit.gather()
    return [p.detach().clone() for p in unit.weights]


def halved(inputs):
    """Return half of each tensor."""
    return [[0.5 * tensor for tensor in own] for own in inputs]


# --- early: the optimizer has the parameters that the model had before it was sharded


def my_training(model, x, y):
    """Shard the model and train it one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for block in model.blocks.values():
        fully_shard(block)
    fully_shard(model)
    (model(x) - y).square().mean().backward()
    optimizer.step()


def samples(ranks: int, size: int):
    """Return x [size, 4] and y [size, 3] of each rank."""
    return [(_drawn(rank, size, 4), _drawn(rank + ranks, size, 3)) for rank in range(ranks)]


def small_model(seed: int = 0) -> MLP:
    """Return a chain of three layers in float64."""
    return MLP(MLPShape((4, 8, 8, 3)), seed).double()


def trained(program: Callable, x: Tensor, y: Tensor):
    """Train a small model with the program; return its whole weights.

    Raises RuntimeError where a weight is not sharded.
    """
    model = small_model()
    program(model, x.double(), y.double())
    if not all(hasattr(p, "full_tensor") for p in model.parameters()):
        raise RuntimeError("The model is not sharded. Call fully_shard on each block, and on it.")
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def one_step(inputs):
    """Return the weights after a step on the samples of all ranks, for each rank."""
    model = small_model()
    x, y = (torch.cat(parts).double() for parts in zip(*inputs))
    (model(x) - y).square().mean().backward()
    return [[p.detach() - 0.1 * p.grad for p in model.parameters()]] * len(inputs)


# --- units: one unit is everything


def my_units(model):
    """Return the units of FSDP, so that at most a quarter of the weights is whole at once."""
    return [model]


def batches(ranks: int, size: int):
    """Return x [size, 16] of each rank."""
    return [(_drawn(rank, size, 16),) for rank in range(ranks)]


def share_whole(program: Callable, x: Tensor):
    """Run a chain of eight layers in these units; say which share of the weights was whole at once.

    A share of at most a quarter counts as 0.25: one layer computes while the next is gathered.
    """
    model = MLP(MLPShape((16,) * 9, bias=False))
    nbytes = sum(p.nbytes for p in model.parameters())
    fsdp = FSDP(model, units=program(model))
    with Memory(fsdp) as memory:
        fsdp(x).square().mean().backward()
    most = max(row.bytes for row in memory.rows if row.op == "parameters")
    return [max(0.25, (most - nbytes / dist.get_world_size()) / nbytes)]


def quarter(inputs):
    """Return a quarter for each rank."""
    return [[0.25]] * len(inputs)


# --- skip: one rank leaves out a unit that the others run


def my_forward(layers, x, skipped):
    """Send x through all layers but the one that this rank's samples skip."""
    for n, layer in enumerate(layers):
        if n != skipped:  # None on the ranks that need all layers
            x = x + layer(x)
    return x


class Residuals(nn.Module):
    """Three equal layers, through which `forward` of a reader sends x; one rank skips a layer."""

    def __init__(self, program: Callable, skipped: int | None):
        super().__init__()
        self.layers = nn.ModuleList(MLP(MLPShape((5, 5)), seed).double() for seed in range(3))
        self.program, self.skipped = program, skipped

    def forward(self, x):
        return self.program(self.layers, x, self.skipped)


def skipping(ranks: int, size: int):
    """Return x [size, 5] of each rank, and which layer it does not need: rank 1 skips layer 1."""
    return [(_drawn(rank, size, 5), 1 if rank == 1 else None) for rank in range(ranks)]


def in_units(program: Callable, x: Tensor, skipped: int | None):
    """Run forward and backward with a unit for each layer; return outputs and whole gradients."""
    model = Residuals(program, skipped)
    fsdp = FSDP(model, units=list(model.layers))
    y = fsdp(x.double())
    y.square().mean().backward()
    return [y.detach(), *fsdp.full_gradients().values()]


def on_one_device(inputs):
    """Return each rank's outputs, and the mean of the ranks' gradients."""
    outputs, sums = [], None
    for x, skipped in inputs:
        model = Residuals(my_forward, skipped)
        y = model(x.double())
        y.square().mean().backward()
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        sums = own if sums is None else [a + b for a, b in zip(sums, own)]
        outputs.append(y.detach())
    return [[y, *(total / len(inputs) for total in sums)] for y in outputs]


def _drawn(seed: int, *shape: int) -> Tensor:
    draw = torch.Generator("cpu").manual_seed(100 + seed)
    return torch.randn(*shape, generator=draw, device="cpu")
