"""Where the numbers of a parameter are: whole on every rank, split along a dim, or partly shared.

    Replicated   W [F, D] -> [F, D]
    Split(dim)   W [F, D] -> [F/tp, D] for dim 0, [F, D/tp] for dim 1; padded with zeros if `padded`
    SplitGroups  W [G·(n + 2)·K, D] -> [G/tp·(n + 2)·K, D], or with r = tp/G ranks for each of the G
                 groups of heads [(n/r + 2)·K, D], whose last 2·K rows r neighbouring ranks share

All shards of a parameter have the same shape. These are rules about tensors: nothing here is sent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lib.predict.arguments import equal_share


@dataclass(frozen=True)
class Replicated:
    """Every rank has the whole parameter."""

    ranks: int

    @property
    def sharers(self) -> int:
        """The number of neighbouring ranks that have the same numbers in `shared`."""
        return self.ranks

    def shard(self, full: Tensor, rank: int) -> Tensor:
        """Return what one rank keeps of the whole tensor."""
        return full

    def whole(self, shards: list[Tensor]) -> Tensor:
        """Return the whole tensor from the shards of all ranks."""
        return shards[0]

    def shared(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that neighbouring ranks have too."""
        return shard

    def own(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that no other rank has."""
        return shard[:0]


@dataclass(frozen=True)
class Split:
    """Each rank has an equal share of a dim of `length` entries, filled up with zeros if `padded`.

    Raises ValueError where the ranks cannot share the entries equally; `what` says what they are.
    """

    ranks: int
    dim: int
    length: int
    padded: bool = False
    what: str = "Dim 0 has {} entries"
    sharers = 1

    def __post_init__(self):
        if not self.padded:
            equal_share(self.length, self.ranks, self.what)

    @property
    def share(self) -> int:
        """The entries of each rank, with those that only fill up."""
        return -(-self.length // self.ranks)

    @property
    def padding(self) -> int:
        """The entries that only fill up, of all ranks together."""
        return self.share * self.ranks - self.length

    def shard(self, full: Tensor, rank: int) -> Tensor:
        """Return what one rank keeps of the whole tensor."""
        if full.shape[self.dim] != self.length:
            raise ValueError(
                f"Dim {self.dim} has {full.shape[self.dim]} entries, not {self.length}."
            )
        first = min(rank * self.share, self.length)
        part = full.narrow(self.dim, first, min(self.share, self.length - first))
        if missing := self.share - part.shape[self.dim]:
            sizes = list(part.shape)
            sizes[self.dim] = missing
            part = torch.cat([part, part.new_zeros(sizes)], self.dim)
        return part

    def whole(self, shards: list[Tensor]) -> Tensor:
        """Return the whole tensor from the shards of all ranks."""
        return torch.cat(shards, self.dim).narrow(self.dim, 0, self.length)

    def shared(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that neighbouring ranks have too: nothing."""
        return shard[:0]

    def own(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that no other rank has."""
        return shard


@dataclass(frozen=True)
class SplitGroups:
    """Each rank has the rows of some of attention's heads, with the keys and values that they need.

    The whole has rows [G, n + 2, K]: the n heads of each of G groups, then their key and value.
    With more ranks than groups, the ranks of a group share its key and its value.
    Raises ValueError where the ranks cannot share the heads, or the groups, equally.
    """

    ranks: int
    groups: int  # G
    group_size: int  # n
    head_size: int  # K

    def __post_init__(self):
        equal_share(self.groups * self.group_size, self.ranks, "An attention has {} heads",
                    advice="Choose a number of ranks that divides the heads.")  # fmt: skip
        few, many = sorted((self.ranks, self.groups))
        equal_share(many, few, *(
            ("{} ranks split an attention", "{} heads of keys") if self.ranks > self.groups
            else ("An attention has {} heads of keys",)
        ))  # fmt: skip

    @property
    def sharers(self) -> int:
        """The number r of neighbouring ranks that have the same key and value."""
        return max(self.ranks // self.groups, 1)

    @property
    def shard_group_size(self) -> int:
        """The heads that a rank has of each of its groups."""
        return self.group_size // self.sharers

    def shard(self, full: Tensor, rank: int) -> Tensor:
        """Return what one rank keeps of the whole tensor."""
        rows = full.unflatten(0, (self.groups, -1, self.head_size))  # [G, n + 2, K, ..]
        groups, n = max(self.groups // self.ranks, 1), self.shard_group_size
        first, part = rank // self.sharers * groups, rank % self.sharers
        rows = rows[first : first + groups]
        heads, shared = rows[:, part * n : (part + 1) * n], rows[:, self.group_size :]
        return torch.cat([heads, shared], 1).flatten(0, 2)

    def whole(self, shards: list[Tensor]) -> Tensor:
        """Return the whole tensor from the shards of all ranks."""
        n, r = self.shard_group_size, self.sharers
        rows = [shard.unflatten(0, (-1, n + 2, self.head_size)) for shard in shards]
        groups = []
        for first in range(0, self.ranks, r):
            heads = [one[:, :n] for one in rows[first : first + r]]
            groups.append(torch.cat([*heads, rows[first][:, n:]], 1))
        return torch.cat(groups).flatten(0, 2)

    def shared(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that neighbours have too: key and value, or nothing."""
        return shard[self._heads_only(shard) :]

    def own(self, shard: Tensor) -> Tensor:
        """Return the part of a shard that no other rank has."""
        return shard[: self._heads_only(shard)]

    def _heads_only(self, shard: Tensor) -> int:
        return shard.shape[0] - (2 * self.head_size if self.sharers > 1 else 0)
