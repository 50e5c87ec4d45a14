"""What a chain of blocks keeps and computes again, for any plan, and the plans that are best."""

from lib.predict.recompute.binomial import binomial
from lib.predict.recompute.budget import best, smallest_peak
from lib.predict.recompute.plan import (
    BlockCost,
    Plan,
    Use,
    every,
    none,
    read_plan,
    square_root,
    use_of,
)
from lib.predict.recompute.played import play_plan

__all__ = [
    "BlockCost",
    "Plan",
    "Use",
    "best",
    "binomial",
    "every",
    "none",
    "play_plan",
    "read_plan",
    "smallest_peak",
    "square_root",
    "use_of",
]
