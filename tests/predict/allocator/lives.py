"""Lives of storages for the tests: forward with checkpoints of activations."""

from lib.ledger.lives import Life
from lib.predict.allocator.caching import MIB


def checkpointed(layers=8, kept=2, short=9):
    """Each layer keeps one tensor and uses two larger ones for a moment; then a large one comes.

    So forward with checkpoints of activations does. Sizes in MiB.
    """
    found, event = [], 0

    def born(size, kind, made_by=""):
        found.append(Life(len(found), size * MIB, kind, event, made_by=made_by))
        return found[-1]

    for _ in range(layers):
        sizes = (short, "other"), (kept, "activations"), (short, "other")
        for size, kind in sizes:
            born(size, kind)
            event += 1
        for one in (found[-3], found[-1]):
            one.died = event
            event += 1
    born(30, "other", "cross entropy")
    return found
