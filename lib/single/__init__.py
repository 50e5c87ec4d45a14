"""Floor 2: models and their training on one device; nothing here imports anything about ranks."""

from lib.single.batches import Batches, share
from lib.single.models import GPT, MLP, Chain
from lib.single.train import mean_squares, next_token_loss, train, train_step

__all__ = [
    "GPT",
    "MLP",
    "Batches",
    "Chain",
    "mean_squares",
    "next_token_loss",
    "share",
    "train",
    "train_step",
]
