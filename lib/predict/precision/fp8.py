"""The bytes that layers of 8 bits keep for backward, and those of weights gathered in 8 bits.

    a matrix [R, C] of 8 bits    R · C bytes, and 4 for the scale of each tile

    scaling             tile of an input, a gradient    tile of a weight
    tensor, delayed     all                             all
    row                 [1, C]                          [1, C]
    block               [1, B]                          [B, B]

lib/single/precision/fp8.py has these layers. Forward keeps each input in 8 bits, in the place of 32
or 16; weights are kept anyway. A scale for the whole tensor costs nothing to speak of, one for each
row 4/C of a byte a number, and DeepSeek-V3's for 128 numbers 1/32 of a byte.

A weight that FSDP gathers in 8 bits needs the scale of the whole weight before its shards are
rounded: one all-reduce of a maximum for each weight, all in one call (torchao,
`precompute_float8_dynamic_scale_for_fsdp`). Everything else is gathered as before.
"""

from math import ceil

from lib.predict.arguments import whole
from lib.predict.shape import GPTShape

SCALE = 4  # bytes of a float32
SCALINGS = ("tensor", "delayed", "row", "block")


def matrix_bytes(
    rows: int, columns: int, scaling: str, weight: bool = False, block: int = 128
) -> int:
    """Return the bytes of a matrix [rows, columns] in 8 bits with its scales.

    `weight` says that it is one, whose blocks are squares. Raises ValueError for another scaling.
    """
    if scaling not in SCALINGS:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, not {scaling!r}.")
    rows, columns, block = whole(rows, "rows"), whole(columns, "columns"), whole(block, "block")
    high = block if weight else 1
    tiles = {"row": rows, "block": ceil(rows / high) * ceil(columns / block)}.get(scaling, 1)
    return rows * columns + SCALE * tiles


def linear_weights(shape: GPTShape) -> dict[str, tuple[int, int]]:
    """Return the shape [O, I] of the weight of each linear layer of a GPT, by name.

    A head that is tied to the embedding of the tokens is one of them.
    """
    found = {p.name: p.shape for p in shape.parameters if p.block and len(p.shape) == 2}
    if shape.tied:
        found[f"blocks.{shape.layers + 1}.linear.weight"] = (shape.vocabulary, shape.width)
    return found


def kept_inputs(shape: GPTShape, tokens: int, scaling: str, block: int = 128) -> int:
    """Return the bytes that the linear layers of a GPT keep of their inputs, [tokens, I] each."""
    sizes = [i for _, i in linear_weights(shape).values()]
    return sum(matrix_bytes(tokens, size, scaling, block=block) for size in sizes)


def no_longer_kept(
    shape: GPTShape, tokens: int, scaling: str, block: int = 128, itemsize: int = 4
) -> int:
    """Return by how many bytes less a GPT keeps in all, than with layers of `itemsize` bytes.

    The input of attention's last layer is the result of attention, which attention itself keeps:
    its 8 bits are added to what is there. All others stand in the place of what was kept.
    """
    sizes = {name: i for name, (_, i) in linear_weights(shape).items()}
    replaced = sum(size for name, size in sizes.items() if not name.endswith("proj.weight"))
    return itemsize * tokens * replaced - kept_inputs(shape, tokens, scaling, block)


def gathered_bytes(shape: GPTShape, scaling: str, block: int = 128, itemsize: int = 2) -> int:
    """Return the bytes of a GPT's parameters where linear weights are gathered in 8 bits.

    Everything else has `itemsize` bytes a number: biases, norms and embeddings, and with them a
    head that is tied to one.
    """
    total = 0
    for parameter in shape.parameters:
        if parameter.block and len(parameter.shape) == 2:
            total += matrix_bytes(*parameter.shape, scaling, weight=True, block=block)
        else:
            total += itemsize * parameter.numel
    return total
