"""Floor 1: real ranks, what they do, and what they say when it goes wrong."""

from lib.ranks.shared.failures import RankError
from lib.ranks.state.this_rank import span
from lib.ranks.world import World

__all__ = ["RankError", "World", "span"]
