"""Feature maps that lie encoded in memory between forward and backward (Gist)."""

from lib.single.encode.gist import gist, nonzeros

__all__ = ["gist", "nonzeros"]
