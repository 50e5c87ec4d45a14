"""Feature maps that lie encoded in memory between forward and backward (Gist)."""

from lib.single.encode.gist import gist, kept_bytes, nonzeros

__all__ = ["gist", "kept_bytes", "nonzeros"]
