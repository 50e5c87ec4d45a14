"""What each optimizer keeps beside the weights: bytes, from the shapes of the parameters alone.

    matrix [n, m]   sgd 0 · momentum nm · adam, adamw 2nm · adafactor n + m · sm3 n + m + nm
                    adam8bit 2nm bytes, and 2 maxima for each block · muon nm

Numbers are counted in the format of the states; Adam, Adafactor and 8-bit Adam have a counter of 4
bytes for each parameter too. Vectors and scalars have no rows and columns: there Adafactor and SM3
keep one number for each weight. Of SM3's numbers nm are its momentum.

Source: Kingma and Ba 2014 (arXiv 1412.6980); Shazeer and Stern 2018 (arXiv 1804.04235); Anil and
others 2019 (arXiv 1901.11150); Dettmers and others 2021 (arXiv 2110.02861), with the block of 256
and the limit of 4,096 weights of bitsandbytes; Jordan 2024, "Muon".
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod

from lib.predict.arguments import whole
from lib.predict.shape import ModelShape, Parameter

COUNTER = 4  # bytes of the number of steps, an fp32
MAXIMUM = 4  # bytes of the maximum of a block of codes, an fp32
EMBEDDINGS = ("tokens.weight", "positions.weight")  # of a GPT
Shapes = ModelShape | Iterable[Parameter | Sequence[int]]


def state_bytes(name: str, shapes: Shapes, itemsize: int = 4, **options) -> int:
    """Return the bytes that an optimizer keeps after its first step, for parameters of `shapes`.

    `shapes` are a model's shape, its Parameters, or plain shapes. `itemsize` is the bytes of a
    number of the states, 2 for bf16. The options are those of the optimizer that change what it
    keeps: `momentum` (bool) of adafactor, False, and of sm3, True; `block` (256) and `smallest`
    (4,096 weights) of adam8bit; `hidden` of muon, a function of a Parameter or shape that says
    which are its own (by default all matrices but embeddings and those of a model's last block).
    Raises ValueError for an optimizer that is not known.
    """
    if name not in KEPT:
        raise ValueError(f"No optimizer here is called {name!r}. Choose one of {', '.join(KEPT)}.")
    entries = list(shapes.parameters if isinstance(shapes, ModelShape) else shapes)
    if name == "muon":
        options.setdefault("hidden", _hidden_of(entries))
    size = whole(itemsize, "itemsize")
    return sum(KEPT[name](entry, size, **options) for entry in entries)


def shape_of(entry: Parameter | Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a Parameter, or a plain shape as a tuple."""
    return tuple(entry.shape) if isinstance(entry, Parameter) else tuple(entry)


def _sgd(entry, itemsize: int) -> int:
    return 0


def _momentum(entry, itemsize: int) -> int:
    return itemsize * prod(shape_of(entry))


def _adam(entry, itemsize: int) -> int:
    return 2 * itemsize * prod(shape_of(entry)) + COUNTER


def _adafactor(entry, itemsize: int, momentum: bool = False) -> int:
    shape = shape_of(entry)
    numbers = prod(shape)
    if len(shape) > 1:  # of more dims, a stack of matrices
        *stack, n, m = shape
        numbers = prod(stack) * (n + m)
    return itemsize * (numbers + bool(momentum) * prod(shape)) + COUNTER


def _sm3(entry, itemsize: int, momentum: bool = True) -> int:
    shape = shape_of(entry)
    slices = sum(shape) if shape else 1
    return itemsize * (slices + bool(momentum) * prod(shape))


def _adam_8bit(entry, itemsize: int, block: int = 256, smallest: int = 4096) -> int:
    """Count two codes of one byte for each weight, and two maxima for each block."""
    numel = prod(shape_of(entry))
    if numel < smallest:
        return _adam(entry, 4)  # in 4 bytes, whatever the weights are in
    return 2 * (numel + MAXIMUM * -(-numel // whole(block, "block"))) + COUNTER


def _muon(entry, itemsize: int, hidden: Callable) -> int:
    return _momentum(entry, itemsize) if hidden(entry) else _adam(entry, itemsize)


def _hidden_of(entries: list) -> Callable:
    """Return which parameters are matrices of hidden layers: no embedding, not of the last block.

    Of plain shapes, without names, all matrices are.
    """
    last = max((entry.block for entry in entries if isinstance(entry, Parameter)), default=0)

    def hidden(entry) -> bool:
        outside = isinstance(entry, Parameter) and (
            entry.block == last or entry.name.endswith(EMBEDDINGS)
        )
        return len(shape_of(entry)) == 2 and not outside

    return hidden


KEPT: dict[str, Callable[..., int]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adam": _adam,
    "adamw": _adam,
    "adafactor": _adafactor,
    "sm3": _sm3,
    "adam8bit": _adam_8bit,
    "muon": _muon,
}
