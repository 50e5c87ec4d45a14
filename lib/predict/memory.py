"""What a rank, or a device, holds at the end of forward: bytes by kind, from the model's shape.

[Note: activations]
Autograd keeps what backward needs, once each. For a token in a block of the GPT: the inputs of both
norms and of three products and the attention's q, k, v and result (8 D together), the hidden layer
before and after its GELU (2 F), two numbers for each norm, one for each head. Before the loss:
2 D + 2, and the loss keeps one number for each output. The MLP keeps each hidden layer's output.
The step's own inputs and targets are not counted, nor what lives between two operations.
"""

from typing import NamedTuple

from lib.predict.shape import GPTShape, MLPShape, ModelShape

_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}  # numbers for each parameter's number


class Held(NamedTuple):
    """Bytes by kind, under the names that the ledger's memory rows have."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(self)


def optimizer_states(shape: ModelShape, optimizer: str = "adamw", itemsize: int = 4) -> int:
    """Bytes of sgd, momentum, adam or adamw after its first step.

    Adam keeps two numbers for each of the parameters', and for each parameter a counter of 4 bytes.
    """
    if optimizer not in _STATES:
        raise ValueError(f"No optimizer here is called {optimizer!r}: {', '.join(_STATES)}.")
    counters = 4 * len(shape.parameters) if optimizer.startswith("adam") else 0
    return _STATES[optimizer] * shape.nbytes(itemsize) + counters


def activations(
    shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4
) -> int:
    """Bytes that autograd keeps after forward of `batch` samples, without the loss."""
    if isinstance(shape, MLPShape):
        return batch * sum(shape.widths[1:-1]) * itemsize
    if not isinstance(shape, GPTShape):
        raise ValueError(f"the activations of a {type(shape).__name__} are not known here")
    s, d = sequence or shape.sequence, shape.width
    block = 8 * d + 2 * shape.hidden + shape.heads + 4
    places = 8 * s  # 0, 1, ... S - 1 as integers, for the embedding of positions
    return batch * s * (shape.layers * block + 2 * d + 2) * itemsize + places


def outputs(shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4) -> int:
    """Bytes of the model's outputs for `batch` samples; the loss keeps as much."""
    if isinstance(shape, MLPShape):
        return batch * shape.widths[-1] * itemsize
    if not isinstance(shape, GPTShape):
        raise ValueError(f"the outputs of a {type(shape).__name__} are not known here")
    return batch * (sequence or shape.sequence) * shape.vocabulary * itemsize


def data_parallel(
    shape: ModelShape, batch: int, optimizer: str = "adamw", itemsize: int = 4
) -> Held:
    """What each rank holds for its own `batch` samples: all but activations as if it were alone.

    The gradients lie in their buckets, so that buckets cost nothing more.
    """
    model = shape.nbytes(itemsize)
    kept = activations(shape, batch, None, itemsize) + outputs(shape, batch, None, itemsize)
    return Held(model, model, optimizer_states(shape, optimizer, itemsize), kept)


def data_parallel_devices(
    shape: ModelShape, batch: int, devices: int, optimizer: str = "adamw", itemsize: int = 4
) -> list[Held]:
    """What each device of one process holds at most of each kind: the loss is on device 0.

    Device 0 holds its own gradients and the sum of all. Beyond these kinds it gathers all outputs
    and their gradients: twice `outputs(shape, batch)`.
    Raises ValueError for a batch that the devices cannot share equally.
    """
    if batch % devices:
        raise ValueError(f"dim 0 has {batch} entries: {devices} cannot share them equally")
    model = shape.nbytes(itemsize)
    own = activations(shape, batch // devices, None, itemsize)
    first = own + outputs(shape, batch, None, itemsize)
    states = optimizer_states(shape, optimizer, itemsize)
    both = model * (1 + (devices > 1))
    return [Held(model, both, states, first)] + [Held(model, model, 0, own)] * (devices - 1)
