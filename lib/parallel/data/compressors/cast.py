"""Gradients that are sent in a smaller format: half the bytes, and one rounding more for each sum.

g_r [N] -> bf16(g_r)/dp [N] +dp -> all_reduce over dp -> fp32 [N]
widened:   bf16(g_r)/dp [N] -> all_to_all -> dp × [N/dp], summed in fp32 -> bf16 -> all_gather
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from lib.parallel.data.compressors.base import Compressor, as_real


class Cast(Compressor):
    """Sends gradients in `dtype`, divided by the number of ranks before they are summed.

    The sum is that of an all_reduce, which rounds each partial sum to `dtype`, as PyTorch's
    `bf16_compress_hook` and `fp16_compress_hook` do. With `widened`, each rank receives its piece
    of all gradients, adds them in fp32 in the order of the ranks, and rounds once: it sends as many
    bytes, and for a moment keeps a second buffer of `dtype`. Nothing is kept from step to step.
    """

    def __init__(self, dtype: torch.dtype = torch.bfloat16, *, widened: bool = False):
        super().__init__(feedback=False)
        self.dtype, self.widened = dtype, widened

    def __call__(self, bucket, group=None):
        """Launch the exchange of one bucket."""
        bucket = as_real(bucket)
        sent = bucket.flat.to(self.dtype, copy=True).div_(dist.get_world_size(group))
        if self.widened:
            return _Widened(bucket.flat, sent, group)
        work = dist.all_reduce(sent, group=group, async_op=True)

        def wait():
            work.wait()
            bucket.flat.copy_(sent)

        return SimpleNamespace(wait=wait)


class _Widened:
    """Exchanges pieces, sums the own one in fp32, and gathers the sums."""

    def __init__(self, flat: Tensor, sent: Tensor, group):
        self.flat, self.group, self.ranks = flat, group, dist.get_world_size(group)
        self.sent = pad(sent, (0, -len(sent) % self.ranks))
        self.pieces = torch.empty_like(self.sent)
        self.work = dist.all_to_all_single(self.pieces, self.sent, group=group, async_op=True)

    def wait(self) -> None:
        """Wait for the pieces, and put the mean into the bucket."""
        self.work.wait()
        first, *others = self.pieces.view(self.ranks, -1).float()
        for other in others:
            first.add_(other)
        sums = first.to(self.sent.dtype)
        dist.all_gather_single(self.pieces, sums, group=self.group)
        self.flat.copy_(self.pieces[: len(self.flat)])
