"""Puts a plain GPT onto a grid of ranks, in place, and gives its whole weights back.

    tokens [B, S] -> stream [B/rows, S, D/columns] -> ... -> logits [B/rows, S, V/columns]
    attention: q, k, v [B/rows, S, heads/columns, K], so each rank computes its own heads, alone

`rows` and `columns` are the axes of lib/predict/tensor/grids.py: of the stream between the layers,
and inside of attention, the MLP and for the logits.
"""

import torch
from torch import Tensor, nn

from lib.parallel.grid.linear import Linear2D, Linear25D
from lib.parallel.grid.linear_3d import Linear3D
from lib.parallel.grid.norm import GridLayerNorm
from lib.parallel.grid.tiles import Tile, check_axes
from lib.parallel.grid.vocabulary import GridEmbedding
from lib.predict.tensor.grids import RankGrid, check_model
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.mesh import Mesh
from lib.single.models import GPT, Block, Head


def grid_parallel(
    model: GPT, mesh: Mesh, kind: str, *, overlap: bool = True, keep_gathered: bool = False
) -> GPT:
    """Put the plain GPT onto a grid, in place: each rank keeps its tiles. Returns the model.

    `kind` is "2d" on the axes row and column, "2.5d" on depth, row and column, or "3d" on x, y and
    z. Every rank calls the model with the whole batch [B, S] and gets its tile of the logits;
    `grid_cross_entropy` makes the loss of them. All ranks begin with the weights of the first.
    Without `overlap` SUMMA sends and multiplies in turn; with `keep_gathered` a cube keeps what it
    gathers until backward. Where V does not divide, it is padded, and the padded logits are -inf.
    Raises ValueError, by name, for heads, widths and dropout that the grid cannot carry out.
    """
    if not isinstance(model, GPT):
        raise TypeError(f"A grid takes the plain GPT of lib.single, not a {type(model).__name__}.")
    check_axes(mesh, kind)
    grid = RankGrid(kind, mesh["x" if kind == "3d" else "row"].size, mesh.axes.get("depth", 1))
    check_model(model.shape, grid)
    everyone = mesh[tuple(mesh.axes)].group
    same_everywhere(model, everyone)
    for tensor in (*model.parameters(), *model.buffers()):
        from_first(tensor, everyone)
    options = {"keep_gathered": keep_gathered} if kind == "3d" else {"overlap": overlap}
    vocabulary = grid.padded(model.shape.vocabulary)
    for block in model.blocks.values():
        if isinstance(block, Block):
            _put_block(block, mesh, kind, options)
    first, *_, last = model.blocks
    model.blocks[first] = GridEmbedding(model.blocks[first], mesh, kind, vocabulary)
    _put_head(model.blocks[last], mesh, kind, options | {"padded": vocabulary})
    if model.shape.tied:
        model.blocks[last].linear.tie(model.blocks[first].tokens)
    return model


def _put_block(block: Block, mesh: Mesh, kind: str, options: dict) -> None:
    """Replace both norms and all four linear layers; what is between them works on tiles as is."""
    into, back = _layers(kind)
    block.norm1 = GridLayerNorm(block.norm1, mesh, kind)
    block.norm2 = GridLayerNorm(block.norm2, mesh, kind)
    attention, mlp = block.attention, block.mlp
    attention.qkv = into(attention.qkv, mesh, **options)
    attention.proj = back(attention.proj, mesh, **options)
    mlp.up, mlp.down = into(mlp.up, mesh, **options), back(mlp.down, mesh, **options)


def _put_head(head: Head, mesh: Mesh, kind: str, options: dict) -> None:
    head.norm = GridLayerNorm(head.norm, mesh, kind)
    head.linear = _layers(kind)[0](head.linear, mesh, **options)


def _layers(kind: str):
    """Return what makes the layers from the stream into a part of a block, and back to the stream.

    On a cube the features of the stream are split along z, and those inside a part along y.
    """
    if kind == "3d":
        return Linear3D, lambda *args, **options: Linear3D(*args, features="y", **options)
    layer = {"2d": Linear2D, "2.5d": Linear25D}[kind]
    return layer, layer


# The whole model again.


def tiles_of(model: nn.Module) -> dict[str, tuple[nn.Module, str, Tile]]:
    """Return by the plain model's names: the module with a tile, its name there, how it is cut."""
    return {
        f"{prefix}.{name}": (module, name, tile)
        for prefix, module in model.named_modules()
        for name, tile in getattr(module, "tiles", {}).items()
    }


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Gather the state dict of the plain model, without padding, on every rank."""
    state = {name: tensor.detach().clone() for name, tensor in _replicated(model).items()}
    for full, (module, name, tile) in tiles_of(model).items():
        state[full] = tile.join(getattr(module, name), module.mesh)
    return state


def full_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Gather the whole gradients by the plain model's names; None where there is none."""
    gradients = {}
    for name, tensor in _replicated(model).items():
        if isinstance(tensor, nn.Parameter):
            gradients[name] = None if tensor.grad is None else tensor.grad.clone()
    for full, (module, name, tile) in tiles_of(model).items():
        gradient = getattr(module, name).grad
        gradients[full] = None if gradient is None else tile.join(gradient, module.mesh)
    return gradients


@torch.no_grad()
def load_full_state_dict(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state dict of the plain model, which every rank has; each keeps its tiles of it.

    Raises ValueError, and leaves the model as it is, where its names or shapes are not the model's.
    """
    tiles, replicated = tiles_of(model), _replicated(model)
    if differing := sorted((tiles.keys() | replicated.keys()) ^ state.keys()):
        holder = "state dict" if differing[0] in state else "model"
        raise ValueError(
            f"{differing[0]} is only in the {holder}, and {len(differing)} names are not in both. "
            "Load the state dict of a plain GPT with the same shape."
        )
    shapes = {full: tile.whole(getattr(m, name), m.mesh) for full, (m, name, tile) in tiles.items()}
    for full, shape in (shapes | {n: list(t.shape) for n, t in replicated.items()}).items():
        if list(state[full].shape) != shape:
            raise ValueError(
                f"{full} of the state dict has the shape {list(state[full].shape)}, and in the "
                f"model it has {shape}. Load the state dict of a plain GPT with the same shape."
            )
    for full, (module, name, tile) in tiles.items():
        getattr(module, name).copy_(tile.cut(state[full], module.mesh))
    for name, tensor in replicated.items():
        tensor.copy_(state[name])


def _replicated(model: nn.Module) -> dict[str, Tensor]:
    """Return what every rank keeps whole, parameters and buffers that no layer of the grid has."""
    tiles = tiles_of(model)
    own = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in own.items() if name not in tiles}
