"""Tensor parallelism: ranks share the matrices of each layer, and all of them take all samples."""

from lib.parallel.tensor.blocks import TensorParallelAttention, TensorParallelMLP
from lib.parallel.tensor.clip import clip_grad_norm_
from lib.parallel.tensor.dropout import SplitDropout
from lib.parallel.tensor.linear import ColumnLinear, RowLinear
from lib.parallel.tensor.loss import vocab_parallel_cross_entropy
from lib.parallel.tensor.operators import (
    copy_to_group,
    gather_from_group,
    gather_sequence,
    reduce_from_group,
    scatter_sequence,
    split_to_group,
)
from lib.parallel.tensor.replicas import assert_replicated, checksum
from lib.parallel.tensor.sequence import sequence_parallel
from lib.parallel.tensor.transform import (
    load_plain,
    plain_gradients,
    tensor_parallel,
    to_plain,
)
from lib.parallel.tensor.vocabulary import VocabParallelEmbedding, VocabParallelLinear

__all__ = [
    "ColumnLinear",
    "RowLinear",
    "SplitDropout",
    "TensorParallelAttention",
    "TensorParallelMLP",
    "VocabParallelEmbedding",
    "VocabParallelLinear",
    "assert_replicated",
    "checksum",
    "clip_grad_norm_",
    "copy_to_group",
    "gather_from_group",
    "gather_sequence",
    "load_plain",
    "plain_gradients",
    "reduce_from_group",
    "scatter_sequence",
    "sequence_parallel",
    "split_to_group",
    "tensor_parallel",
    "to_plain",
    "vocab_parallel_cross_entropy",
]
