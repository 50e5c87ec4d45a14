"""Sending less than the gradients: top-k, quantised, sign, PowerSGD.

    p_r [N] on rank r: its gradients, and with error feedback what it has not sent yet
    c_r [N] is what r's message stands for;  every rank gets 1/n · Σ c_r;  p_r - c_r stays on r

[Note: error feedback]
Who throws away the small entries of every gradient never learns what they say together. Kept back
and added to the next gradient, they come through late: all that was sent and what is left add up to
all gradients, always. Quantising with stochastic rounding needs none of it: it is right on average.
A gradient that is not finite would stay: leave such a step out before it is sent.

[Note: sums and gathers]
Two messages of top-k, signs or codes do not add up to a third, so all messages go to all ranks, and
what a rank takes in grows with their number. PowerSGD is linear in the gradients: its factors are
summed on the way like gradients. Bytes, exactly: lib/predict/exchange.py, with the sources.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel._compressor import Compressor, Gathered
from lib.parallel._factoring import Factoring
from lib.predict.exchange import kept_entries
from lib.single.bits import pack, unpack


class TopK(Gathered):
    """Sends the `ratio` largest entries of each bucket, as values and places of 4 bytes."""

    def __init__(self, ratio: float, feedback: bool = True):
        super().__init__(feedback)
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio}: the share of entries that is sent, above 0, up to 1")
        self.ratio = ratio

    def encode(self, bucket, group):
        """Give the largest entries, and where they stand."""
        flat = bucket.flat
        if flat.numel() >= 2**31:
            raise ValueError(f"{flat.numel():,} entries: a place has 4 bytes, make buckets smaller")
        places = flat.abs().topk(kept_entries(flat.numel(), self.ratio), sorted=False).indices
        return [flat[places], places.to(torch.int32)]

    def decode(self, parts, sign, bucket):
        """Add the entries where they stand."""
        values, places = parts
        bucket.flat.index_add_(0, places.long(), values, alpha=sign)


class Quantized(Gathered):
    """Sends `bits` for each entry: unbiased, rounded up or down by chance.

    Each `block` entries share a scale, their largest; 2^(bits-1) - 1 steps on each side of 0, so
    that 0 stays 0. Every rank rounds by a generator of its own, from `seed` and its rank.
    Raises ValueError for less than 2 or more than 8 bits.
    """

    def __init__(self, bits: int, block: int = 512, seed: int = 0):
        super().__init__(feedback=False)
        if not 2 <= bits <= 8:
            raise ValueError(f"bits={bits}: an entry is sent in 2 to 8 bits (one bit: Sign)")
        self.bits, self.block, self.seed = bits, block, seed
        self.steps = 2 ** (bits - 1) - 1
        self.chance: torch.Generator | None = None

    def encode(self, bucket, group):
        """Give the scales and the packed codes."""
        flat = bucket.flat
        if self.chance is None:
            self.chance = torch.Generator(flat.device)
            self.chance.manual_seed(self.seed * 65_536 + dist.get_rank(group))
        x = self._blocks(flat if flat.element_size() >= 4 else flat.float())
        scales = x.abs().amax(1, keepdim=True)
        x.div_(scales.where(scales > 0, 1)).mul_(self.steps)
        x = x.view(-1)[: flat.numel()]
        low = x.floor()
        # Up as often as x is near it: E[code] = x. Not floor(x + chance): 127 + 0.99999997 is 128.
        up = torch.rand(x.shape, generator=self.chance, dtype=x.dtype, device=x.device) < x - low
        codes = low.add_(up).add_(self.steps).to(torch.uint8)
        return [scales.view(-1).to(flat.dtype), pack(codes, self.bits)]

    def decode(self, parts, sign, bucket):
        """Add each code times its scale."""
        (scales, packed), numel = parts, bucket.flat.numel()
        codes = unpack(packed, self.bits, numel).to(scales.dtype).sub_(self.steps)
        x = self._blocks(codes).div_(self.steps).mul_(scales.unsqueeze(1))
        bucket.flat.add_(x.view(-1)[:numel], alpha=sign)

    def _blocks(self, x: Tensor) -> Tensor:
        """Copy x into rows of a block each, the last one filled up with zeros."""
        return torch.nn.functional.pad(x, (0, -x.numel() % self.block)).view(-1, self.block)


class Sign(Gathered):
    """Sends one bit for each entry, and for each tensor the mean of its absolute values."""

    def __init__(self, feedback: bool = True):
        super().__init__(feedback)

    def encode(self, bucket, group):
        """Give the scales and the packed signs; 0 counts as above 0."""
        scales = torch.stack([view.abs().mean() for view in bucket.views])
        return [scales, pack(bucket.flat >= 0, 1)]

    def decode(self, parts, sign, bucket):
        """Add each sign times its tensor's scale."""
        (scales, packed), flat = parts, bucket.flat
        signs = unpack(packed, 1, flat.numel()).to(flat.dtype).mul_(2).sub_(1)
        pieces = signs.split([view.numel() for view in bucket.views])
        torch._foreach_mul_(pieces, list(scales.unbind()))
        flat.add_(signs, alpha=sign)


class PowerSGD(Compressor):
    """Sends each matrix as two factors of `rank` columns, found by one step of power iteration.

    M [A, B] · Q [B, R] -> P [A, R] +g, all_reduce;  orthogonal P^ [A, R];
    M^T · P^ -> Q [B, R] +g, all_reduce;  M becomes P^ · Q^T. The next step starts from this Q.

    All dims of a gradient but the first are columns; what is no matrix, or would not become
    smaller, is summed whole, along with P. `warm=False` draws a new Q for each step from `seed`.
    What a rank has left over is counted against its own P^ · Q^T, before the sum over ranks.
    PyTorch's hook counts against the sum: the mean over ranks, and so all that is sent, is the
    same, but what the ranks' gradients differ by then adds up from step to step.
    """

    def __init__(self, rank: int, feedback: bool = True, warm: bool = True, seed: int = 0):
        super().__init__(feedback)
        if rank < 1:
            raise ValueError(f"rank={rank}: the factors have 1, 2, ... columns")
        self.rank, self.warm = rank, warm
        self.factors: dict = {}  # by parameter: Q
        self.chance = torch.Generator("cpu").manual_seed(seed)  # the same on every rank
        self.open: list[Factoring] = []

    def __call__(self, bucket, group=None):
        """Launch the sum of the P and of what is not cut."""
        begun = Factoring(self, bucket, group)
        self.open.append(begun)
        return begun

    def start(self, p, columns: int, rank: int, like: Tensor) -> Tensor:
        """Give the Q to start from: the last one, or one that all ranks draw alike."""
        if p not in self.factors or not self.warm:
            shape, kind = (columns, rank), {"dtype": torch.float32, "device": "cpu"}
            drawn = torch.randn(shape, generator=self.chance, **kind)
            self.factors[p] = drawn.to(like)
        return self.factors[p]

    @property
    def state_bytes(self) -> int:
        """Memory that stays from step to step."""
        kept = self.factors.values() if self.warm else ()
        return super().state_bytes + sum(q.numel() * q.element_size() for q in kept)
