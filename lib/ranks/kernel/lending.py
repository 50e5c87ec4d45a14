"""What `%%ranks` cells get of the notebook: each name as it is now, sent where it has changed."""

import hashlib
import io
import itertools
import symtable
import weakref
from dataclasses import dataclass

from lib.ranks.shared.failures import RankError
from lib.ranks.transport import packing


def refusal(reason) -> RankError:
    """Make the error that says what cannot travel to the ranks, and what to do instead."""
    return RankError(
        f"nothing was run: this cannot travel to the ranks.\n  {reason}\n"
        "Make it inside the function, on each rank, or keep it in a `%%ranks` cell."
    )


def names_in(source: str, filename: str) -> tuple[set[str], set[str], set[str]]:
    """Give the names that a cell reads, those it makes, and those that its functions read."""
    read, made, later = set(), set(), set()

    def walk(table):
        for symbol in table.get_symbols():
            inner = table.get_type() != "module"
            if inner and not symbol.is_global():
                continue
            bound = symbol.is_assigned() or symbol.is_imported()
            (made if bound else later if inner else read).add(symbol.get_name())
        for child in table.get_children():
            walk(child)

    walk(symtable.symtable(source, filename, "exec"))
    return (read | later) - made, made, later


@dataclass
class Weighed:
    """One value of the notebook: what tells it from any other, what it needs, what it shares."""

    value: object
    digest: bytes
    reads: dict[str, str]  # the names that its functions read, each with such a function
    storages: frozenset[int]  # of its tensors
    parcel: int = 0  # the number of the parcel in which a rank has got it


class Lending:
    """What each process of a world has of the notebook.

    A name goes to a rank the first time it is read there, when it was bound anew, and when its
    value has changed in place: its pickled bytes are then others. Names whose tensors share memory
    go together, so that an optimizer keeps its model. Names that cells made are the ranks' own.
    """

    def __init__(self):
        self.made: set[str] = set()  # by `%%ranks` cells
        self.watched: set[str] = set()  # read by functions that such cells made
        self.lent = weakref.WeakKeyDictionary()  # process -> {name: Weighed}
        self.parcels = itertools.count(1)

    def weigh(self, notebook: dict, read: set[str], hidden) -> dict[str, Weighed]:
        """Weigh what a cell reads, through the notebook's functions too; RankError if it cannot go.

        A tensor costs the time to hash it, about a second for each GB.
        """
        weighed: dict[str, Weighed] = {}
        for names in (read, self.watched):
            queue = [(name, "") for name in sorted(names)]
            while queue:
                name, reader = queue.pop()
                if name in weighed or name in self.made or name in hidden or name not in notebook:
                    continue
                if name.startswith("__") and name.endswith("__"):
                    continue  # every module has its own
                try:
                    weighed[name] = _weigh(notebook[name], notebook)
                except Exception as error:
                    if names is read or any(name in lent for lent in self.lent.values()):
                        label = f"global `{name}` of {reader}" if reader else f"`{name}`"
                        raise refusal(packing.culprit(notebook[name], label) or error) from None
                    continue
                queue += weighed[name].reads.items()
        return weighed

    def due(self, process, weighed: dict[str, Weighed]) -> frozenset[str]:
        """Give the names that a process must get, since it has them not, or otherwise."""
        lent = self.lent.setdefault(process, {})
        due = set()
        for names in _groups(weighed):
            has = all(name in lent and _same(lent[name], weighed[name]) for name in names)
            if not has or len({lent[name].parcel for name in names}) > 1:
                due |= names
        return frozenset(due)

    def sent(self, process, weighed: dict[str, Weighed], parcel: int) -> None:
        """Take note of what a process has got."""
        for name, item in weighed.items():
            self.lent[process][name] = Weighed(item.value, item.digest, {}, frozenset(), parcel)


def _weigh(value, notebook: dict) -> Weighed:
    file = io.BytesIO()
    packer = packing.Packer(file, notebook)
    packer.dump(value)
    digest = hashlib.sha1(file.getbuffer(), usedforsecurity=False)
    for _, memory, _ in packer.storages.values():
        digest.update(memory)
    return Weighed(value, digest.digest(), packer.reads, frozenset(packer.storages))


def _same(one: Weighed, other: Weighed) -> bool:
    return one.value is other.value and one.digest == other.digest


def _groups(weighed: dict[str, Weighed]) -> list[set[str]]:
    """Put the names together whose tensors share memory."""
    groups: list[tuple[set, set]] = []  # names, storages
    for name, item in weighed.items():
        names, storages = {name}, set(item.storages)
        for group in [g for g in groups if g[1] & storages]:
            groups.remove(group)
            names |= group[0]
            storages |= group[1]
        groups.append((names, storages))
    return [names for names, _ in groups]
