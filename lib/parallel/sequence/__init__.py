"""Sequence parallelism: ranks share the tokens of each sequence."""

from lib.parallel.sequence.loss import sequence_cross_entropy
from lib.parallel.sequence.merging import merge
from lib.parallel.sequence.ring import ring_attention
from lib.parallel.sequence.shards import positions_of, shard_sequence, unshard_sequence
from lib.parallel.sequence.transform import Context, context_parallel
from lib.parallel.sequence.ulysses import ulysses_attention

__all__ = [
    "Context",
    "context_parallel",
    "merge",
    "positions_of",
    "ring_attention",
    "sequence_cross_entropy",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
]
