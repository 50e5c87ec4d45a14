"""Compressors whose messages cannot be summed: top-k, quantization and sign."""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.data.compressors.base import Gathered
from lib.predict.data.compression import kept_entries
from lib.single.bits import pack, unpack


class TopK(Gathered):
    """Sends the `ratio` largest entries of each bucket, as values and indices of 4 bytes."""

    def __init__(self, ratio: float, feedback: bool = True):
        super().__init__(feedback)
        if not 0 < ratio <= 1:
            raise ValueError(
                f"ratio, the share of entries that is sent, must be above 0 and at most 1, not "
                f"{ratio}."
            )
        self.ratio = ratio

    def encode(self, bucket, group):
        """Return the largest entries and their indices."""
        flat = bucket.flat
        if flat.numel() >= 2**31:
            raise ValueError(
                f"This bucket has {flat.numel():,} entries, but an index of 4 bytes counts to "
                f"{2**31 - 1:,}. Make the buckets smaller with bucket_bytes."
            )
        indices = flat.abs().topk(kept_entries(flat.numel(), self.ratio), sorted=False).indices
        return [flat[indices], indices.to(torch.int32)]

    def decode(self, parts, sign, bucket):
        """Add the entries at their indices."""
        values, indices = parts
        bucket.flat.index_add_(0, indices.long(), values, alpha=sign)


class Quantized(Gathered):
    """Sends `bits` for each entry, rounded up or down at random so that the result is unbiased.

    Each `block` entries share a scale, the largest of their absolute values. There are
    2^(bits-1) - 1 steps on each side of 0, so that 0 stays 0. Every rank rounds with a generator of
    its own, seeded from `seed` and its rank. Raises ValueError for less than 2 or more than 8 bits.
    """

    def __init__(self, bits: int, block: int = 512, seed: int = 0):
        super().__init__(feedback=False)
        if not 2 <= bits <= 8:
            raise ValueError(f"bits must be from 2 to 8, not {bits}. For one bit, use Sign.")
        self.bits, self.block, self.seed = bits, block, seed
        self.steps = 2 ** (bits - 1) - 1
        self.generator: torch.Generator | None = None

    def encode(self, bucket, group):
        """Return the scales and the packed codes."""
        flat = bucket.flat
        if self.generator is None:
            self.generator = torch.Generator(flat.device)
            self.generator.manual_seed(self.seed * 65_536 + dist.get_rank(group))
        x = self._blocks(flat if flat.element_size() >= 4 else flat.float())
        scales = x.abs().amax(1, keepdim=True)
        x.div_(scales.where(scales > 0, 1)).mul_(self.steps)
        x = x.view(-1)[: flat.numel()]
        low = x.floor()
        # Rounding up with probability x - low makes E[code] = x. The formula floor(x + random)
        # would be wrong: in float32, 127 + 0.99999997 is 128.
        up = torch.rand(x.shape, generator=self.generator, dtype=x.dtype, device=x.device) < x - low
        codes = low.add_(up).add_(self.steps).to(torch.uint8)
        return [scales.view(-1).to(flat.dtype), pack(codes, self.bits)]

    def decode(self, parts, sign, bucket):
        """Add each code times its scale."""
        (scales, packed), numel = parts, bucket.flat.numel()
        codes = unpack(packed, self.bits, numel).to(scales.dtype).sub_(self.steps)
        x = self._blocks(codes).div_(self.steps).mul_(scales.unsqueeze(1))
        bucket.flat.add_(x.view(-1)[:numel], alpha=sign)

    def _blocks(self, x: Tensor) -> Tensor:
        """Copy x into rows of one block each, padding the last one with zeros."""
        return torch.nn.functional.pad(x, (0, -x.numel() % self.block)).view(-1, self.block)


class Sign(Gathered):
    """Sends one bit for each entry, and for each tensor the mean of its absolute values."""

    def __init__(self, feedback: bool = True):
        super().__init__(feedback)

    def encode(self, bucket, group):
        """Return the scales and the packed signs; 0 counts as positive."""
        scales = torch.stack([view.abs().mean() for view in bucket.views])
        return [scales, pack(bucket.flat >= 0, 1)]

    def decode(self, parts, sign, bucket):
        """Add each sign times its tensor's scale."""
        (scales, packed), flat = parts, bucket.flat
        signs = unpack(packed, 1, flat.numel()).to(flat.dtype).mul_(2).sub_(1)
        pieces = signs.split([view.numel() for view in bucket.views])
        torch._foreach_mul_(pieces, list(scales.unbind()))
        flat.add_(signs, alpha=sign)
