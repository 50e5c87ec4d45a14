"""Tensor parallelism on grids of ranks: squares (2D), stacked squares (2.5D), cubes (3D)."""

from lib.parallel.grid.linear import Linear2D, Linear25D
from lib.parallel.grid.linear_3d import Linear3D
from lib.parallel.grid.norm import GridLayerNorm
from lib.parallel.grid.transform import (
    full_gradients,
    full_state_dict,
    grid_parallel,
    load_full_state_dict,
)
from lib.parallel.grid.vocabulary import GridEmbedding, grid_cross_entropy

__all__ = [
    "GridEmbedding",
    "GridLayerNorm",
    "Linear25D",
    "Linear2D",
    "Linear3D",
    "full_gradients",
    "full_state_dict",
    "grid_cross_entropy",
    "grid_parallel",
    "load_full_state_dict",
]
