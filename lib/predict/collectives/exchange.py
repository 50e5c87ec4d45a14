"""A collective of a predicted step, and the bytes that a rank sends in several of them."""

from collections.abc import Iterable
from typing import NamedTuple

from lib.predict.collectives.formulas import collective


class Exchange(NamedTuple):
    """Describes one collective: its name, its number of ranks, and the bytes of its full buffer."""

    op: str
    ranks: int
    bytes: int

    @property
    def sent(self) -> float:
        """Return the bytes that each rank sends when a ring does it."""
        return collective(self.op, self.ranks, self.bytes).bytes


def sent_bytes(exchanges: Iterable) -> float:
    """Return the bytes that one rank sends in all of these: the sum of what each says of `sent`."""
    return sum(exchange.sent for exchange in exchanges)
