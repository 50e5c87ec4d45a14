"""Expert parallelism: ranks share the experts of each layer, and rows travel to them."""

from lib.parallel.expert.clip import clip_grad_norm_
from lib.parallel.expert.exchange import Flat, TwoHops
from lib.parallel.expert.transform import (
    expert_parallel,
    load_plain,
    plain_gradients,
    to_plain,
)

__all__ = [
    "Flat",
    "TwoHops",
    "clip_grad_norm_",
    "expert_parallel",
    "load_plain",
    "plain_gradients",
    "to_plain",
]
