"""A part of ddp.py: gradients of embeddings, exchanged as indices and values.

    rows of rank r: indices [k_r], values [k_r, D]   ->  all_gather  ->  Σ over ranks, sparse [V, D]

An all_reduce of sparse tensors would do the same with gloo, which gathers as well. NCCL has none
(PyTorch issue 22400), and a recording could not tell how many rows it moves.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SparseSum:
    """Exchanges a sparse bucket; after `wait()` its `flat` is the sum over the group's ranks.

    The ranks first gather how many rows each has, while backward goes on. Then each sends as many
    rows as the largest count, padded with zeros, in one all_gather of bytes. lib/predict/data/
    sparse.py counts them. Raises ValueError for a table with more rows than an index can count.
    """

    def __init__(self, bucket, group=None):
        self.bucket, self.group = bucket, group
        if len(bucket.flat) >= 2**31:
            raise ValueError(
                f"This table has {len(bucket.flat):,} rows, but an index of 4 bytes counts to "
                f"{2**31 - 1:,}. Pass sparse=False, or split the table."
            )
        self.own = bucket.flat.coalesce()  # a token that occurs twice in the batch is sent once
        count = torch.tensor([self.own.values().shape[0]], device=self.own.device)
        self.counts = count.new_empty(dist.get_world_size(group))
        self.work = dist.all_gather_single(self.counts, count, group=group, async_op=True)

    def wait(self) -> None:
        """Gather the rows of all ranks, and add them up in the order of ranks."""
        self.work.wait()
        counts = self.counts.tolist()
        if not max(counts):
            return
        message = self._message(max(counts))
        everything = message.new_empty(len(counts) * message.numel())
        dist.all_gather_single(everything, message, group=self.group)
        parts = [self._rows(one, k) for one, k in zip(everything.view(len(counts), -1), counts)]
        self.bucket.flat = sum(parts[1:], parts[0]).coalesce()

    def _message(self, rows: int) -> Tensor:
        """Return this rank's indices and values as bytes, padded to `rows` rows."""
        indices, values = self.own.indices()[0].to(torch.int32), self.own.values()
        missing = rows - len(indices)
        indices = torch.cat([indices, indices.new_zeros(missing)])
        values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        return torch.cat([part.view(-1).view(torch.uint8) for part in (indices, values)])

    def _rows(self, message: Tensor, count: int) -> Tensor:
        """Return a rank's rows as a sparse tensor, without the padding."""
        values = self.own.values()
        width = values.shape[1:].numel() * values.element_size()
        rows = message.numel() // (4 + width)
        indices, flat = (part.clone() for part in message.split([4 * rows, rows * width]))
        table = flat.view(values.dtype).view(rows, *values.shape[1:])
        numbers = indices.view(torch.int32)[:count].long().unsqueeze(0)
        shape = self.own.shape
        return torch.sparse_coo_tensor(numbers, table[:count], shape, check_invariants=False)


def sparse_in(module) -> set[int]:
    """Return the ids of the parameters whose layers have sparse gradients."""
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return {id(table.weight) for table in tables if table.sparse}


def no_rows(table) -> Tensor:
    """Return the sparse gradient of a table of which no row was used."""
    rows = torch.zeros(1, 0, dtype=torch.int64, device=table.device)
    values = table.new_zeros(0, *table.shape[1:])
    return torch.sparse_coo_tensor(rows, values, table.shape, check_invariants=False)
