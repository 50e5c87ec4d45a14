"""Modules that were loaded anew in the notebook: the ranks load them anew too."""

import importlib
import sys

from lib.ranks.state.ambient import ambient
from lib.ranks.state.this_rank import hidden

_specs: dict[str, object] = {}  # with what each such module was loaded last
_seen: set[str] = set()  # names of all modules that were looked at
_anew: list[str] = []  # names in the order in which they were loaded anew


def loaded_anew() -> list[str]:
    """Give the names of modules loaded anew since they were first seen, in order; it only grows."""
    if len(sys.modules) != len(_seen):
        for name in sys.modules.keys() - _seen:
            module = sys.modules[name]
            path = getattr(module, "__file__", None)
            if path and name != "__main__" and not hidden(path):
                _specs[name] = module.__spec__
        _seen.clear()
        _seen.update(sys.modules)
    # Python gives a module a new spec, and its last place in `sys.modules`, each time it loads it.
    changed = [
        name
        for name, spec in _specs.items()
        if name in sys.modules and sys.modules[name].__spec__ is not spec
    ]
    if changed:
        for name in sorted(changed, key=list(sys.modules).index):
            _specs[name] = sys.modules[name].__spec__
            _anew.append(name)
    return _anew


def follow(now: tuple, names: list[str]) -> None:
    """Take over on a rank what has changed in the notebook: its settings, modules loaded anew."""
    ambient.follow(*now)
    ambient.restore()
    importlib.invalidate_caches()
    for name in names:
        if name not in sys.modules:
            continue  # this rank has not used it yet
        try:
            importlib.reload(sys.modules[name])
        except Exception as error:
            raise ImportError(
                f"The notebook loaded the module `{name}` anew, and this rank could not: "
                f"{type(error).__name__}: {error}. It goes on with what it had loaded before."
            ) from error
