"""Memory of a rank, or of a device, at the end of forward: bytes by kind, from the model's shape.

[Note: activations]
Autograd keeps each tensor that backward needs once. For each token, a block of the GPT keeps the
inputs of both norms and of three matrix products and the attention's q, k, v and result (8 D
together), the hidden layer before and after its GELU (2 F), two numbers for each norm and one for
each head. The last block keeps 2 D + 2, and the loss keeps one number for each output. The MLP
keeps the output of each hidden layer. The inputs and targets of the step are not counted, nor are
tensors that live only between two operations.

Grouped-query attention keeps a copy of q beside q, k and v, because its heads are not side by side;
rotary positions keep turned q and k beside them, and a cos and a sin for each position and number
of a head. Dropout keeps its mask, a number for each of its inputs. Attention with dropout is not
one kernel on the CPU: it keeps q, k and v of all H heads, and for each head and pair of tokens the
probability, its mask and their product. It computes in 4 bytes at least.

A narrow format does not make everything narrow: attention's number for each head (the logarithm of
its softmax's sum) takes at least 4 bytes, and on a GPU so do the two numbers of a norm. Under
autocast, norms read and keep 4 bytes for each number, matrix products keep 2, and a copy of the
weights in 2 bytes is kept as well.
"""

from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.shape import GPTShape, MLPShape, ModelShape, length_of

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}  # numbers kept for each weight


class Held(NamedTuple):
    """Holds bytes by kind, under the names that the ledger's memory rows have."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Return the bytes of all kinds together."""
        return sum(self)


def optimizer_states(shape: ModelShape, optimizer: str = "adamw", itemsize: int = 4) -> int:
    """Return the bytes that sgd, momentum, adam or adamw keeps after its first step.

    Adam keeps two numbers for each weight, and one counter of 4 bytes for each parameter.
    """
    if optimizer not in STATES:
        raise ValueError(
            f"No optimizer here is called {optimizer!r}. Choose one of {', '.join(STATES)}."
        )
    counters = 4 * len(shape.parameters) if optimizer.startswith("adam") else 0
    return STATES[optimizer] * shape.nbytes(itemsize) + counters


def activations(
    shape: ModelShape,
    batch: int,
    sequence: int | None = None,
    itemsize: int = 4,
    *,
    autocast: int | None = None,
    device: str = "cpu",
) -> int:
    """Return the bytes that autograd keeps after forward of `batch` samples, without the loss.

    `itemsize` is the size of a weight. `autocast` is the size of a number in matrix products inside
    torch.autocast, or None outside of it. On the `device` "cuda" a norm keeps its statistics in at
    least 4 bytes each, on the "cpu" in `itemsize`. Raises ValueError for dropout on "cuda", whose
    kernels keep other masks.
    """
    batch, itemsize = whole(batch, "batch"), whole(itemsize, "itemsize")
    # The size of a number in matrix products.
    product = itemsize if autocast is None else whole(autocast, "autocast")
    if isinstance(shape, MLPShape):
        converted_inputs = batch * shape.widths[0] * product if autocast else 0
        cast = sum(i * o for i, o in zip(shape.widths[1:], shape.widths[2:])) if autocast else 0
        return converted_inputs + (batch * sum(shape.widths[1:-1]) + cast) * product
    if not isinstance(shape, GPTShape):
        raise ValueError(f"The activations of a {type(shape).__name__} are not known here.")
    if shape.dropout and device == "cuda":
        raise ValueError("What dropout keeps on a GPU is not known here. Choose device='cpu'.")
    s, d, f = length_of(shape, sequence), shape.width, shape.hidden
    norm = d * itemsize + 2 * (max(itemsize, 4) if device == "cuda" else itemsize)
    masks = (2 * d * product, d * itemsize) if shape.dropout else (0, 0)  # of a block, of the first
    block = 2 * norm + (2 * d + 2 * f) * product + masks[0]
    block += _attention(shape, batch, s, product)
    tokens = batch * s * (shape.layers * block + norm + d * product + masks[1])
    cast = shape.layers * (d * shape.qkv_width + d * d + 2 * d * f) + d * shape.vocabulary
    if shape.positions == "learned":
        positions = 8 * s  # the integers 0, 1, ... S - 1 that the embedding of positions looks up
    else:
        positions = shape.layers * 2 * s * shape.head_size * product
    return tokens + (cast * product if autocast else 0) + positions


def _attention(shape: GPTShape, batch: int, s: int, product: int) -> int:
    """Return the bytes that attention keeps of each token: q, k, v, its result, what is between."""
    d, keys, wide = shape.width, shape.kv_heads * shape.head_size, max(product, 4)
    if not shape.dropout:
        turned, copied = shape.positions == "rotary", 1 < shape.kv_heads < shape.heads
        beside = d + keys if turned else d if copied else 0
        return (shape.qkv_width + beside + d) * product + shape.heads * wide
    # v of one sample is used where it lies, among q and k; otherwise it is copied.
    in_place = shape.kv_heads == shape.heads and 1 in (batch, s, shape.heads) and product >= 4
    v = shape.qkv_width if in_place else d
    return (2 * d + v + 3 * shape.heads * s) * wide + d * product


def outputs(shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4) -> int:
    """Return the bytes of the model's outputs for `batch` samples; the loss keeps as many."""
    batch, itemsize = whole(batch, "batch"), whole(itemsize, "itemsize")
    if isinstance(shape, MLPShape):
        return batch * shape.widths[-1] * itemsize
    if not isinstance(shape, GPTShape):
        raise ValueError(f"The outputs of a {type(shape).__name__} are not known here.")
    return batch * length_of(shape, sequence) * shape.vocabulary * itemsize


def data_parallel(
    shape: ModelShape, batch: int, optimizer: str = "adamw", itemsize: int = 4
) -> Held:
    """Return what each rank holds for its own `batch` samples, as if it trained alone.

    The gradients lie in their buckets, so the buckets need no additional memory.
    """
    model = shape.nbytes(itemsize)
    kept = activations(shape, batch, None, itemsize) + outputs(shape, batch, None, itemsize)
    return Held(model, model, optimizer_states(shape, optimizer, itemsize), kept)


def data_parallel_devices(
    shape: ModelShape, batch: int, devices: int, optimizer: str = "adamw", itemsize: int = 4
) -> list[Held]:
    """Return the most of each kind that each device of one process holds; device 0 has the loss.

    Device 0 holds its own gradients and the sum of all gradients. It also gathers all outputs and
    their gradients, twice `outputs(shape, batch)`, which are not among these kinds.
    Raises ValueError for a batch that the devices cannot share equally.
    """
    batch, devices = whole(batch, "batch"), whole(devices, "devices")
    share = equal_share(batch, devices, sharers="{} devices")
    model = shape.nbytes(itemsize)
    own = activations(shape, share, None, itemsize)
    first = own + outputs(shape, batch, None, itemsize)
    states = optimizer_states(shape, optimizer, itemsize)
    both = model * (1 + (devices > 1))
    return [Held(model, both, states, first)] + [Held(model, model, 0, own)] * (devices - 1)
