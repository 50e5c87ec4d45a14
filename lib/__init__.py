"""Many Ranks, One Model: `World` runs your functions on real ranks, `Ledger` is what they did."""

_PLACES = {
    "World": "lib.ranks.world",
    "RankError": "lib.ranks.shared.failures",
    "Ledger": "lib.ledger",
}
__all__ = ["Ledger", "RankError", "World"]


def __getattr__(name: str):  # so that `lib.predict` imports without torch
    if name not in _PLACES:
        raise AttributeError(f"module 'lib' has no attribute {name!r}.")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
