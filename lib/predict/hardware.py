"""What GPUs and links can do, each figure with its unit, its source and its date.

The figures stand in data/hardware.yaml and data/sweeps.yaml. Peaks are dense, links one way.
"""

import difflib
import functools
from dataclasses import dataclass
from pathlib import Path

import yaml

_DATA = Path(__file__).parents[2] / "data"
_UNITS = {
    "TFLOP/s": (1e12, "FLOP/s"),
    "GB/s": (1e9, "B/s"),
    "GB": (1e9, "B"),
    "µs": (1e-6, "s"),
}


class Figure(float):
    """A number that knows its `unit`, `source`, `date`, `sense` (dense, one way) and `note`."""

    def __new__(cls, value, unit="", source="", date="", sense="", note=""):
        """Make the number; what is told of it stays beside it."""
        self = super().__new__(cls, value)
        self.unit, self.source, self.date, self.sense, self.note = unit, source, date, sense, note
        return self

    @property
    def value(self) -> float:
        """The bare number."""
        return float(self)

    def __repr__(self) -> str:
        return " ".join(filter(None, [f"{float(self):g}", self.unit, self.sense]))


class Peaks(dict):
    """FLOP/s by number format; a format that the GPU lacks is named with those it has."""

    def __missing__(self, dtype: str):
        raise ValueError(f"This GPU has no figure for {dtype!r}, only for {', '.join(self)}.")


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    peak: Peaks  # FLOP/s, dense: peak["bf16"]
    memory_bytes: Figure  # B
    memory_bandwidth: Figure  # B/s
    link: str  # to other GPUs of its machine: a name for `link`
    host: str  # to its machine's memory: a name for `link`
    matmul: Figure | None  # FLOP/s of the fastest bf16 matrix product measured
    note: str = ""

    @property
    def matmul_efficiency(self) -> float | None:
        """Share of the bf16 peak that a matrix product has reached, where somebody measured it."""
        return self.matmul / self.peak["bf16"] if self.matmul else None


@dataclass(frozen=True)
class Link:
    """One kind of link, as one GPU sees it."""

    name: str
    bandwidth: Figure  # B/s, one way
    alpha: Figure  # s for each round of a ring

    @property
    def beta(self) -> float:
        """Seconds for each byte."""
        return 1 / self.bandwidth

    @property
    def source(self) -> str:
        """Where the bandwidth is from; `alpha.source` says it of alpha."""
        return self.bandwidth.source

    @property
    def note(self) -> str:
        """What to know before using the figures."""
        return "; ".join(filter(None, [self.bandwidth.note, self.alpha.note]))


@dataclass(frozen=True)
class Sweep:
    """Measured times of one all-reduce over many sizes."""

    name: str
    ranks: int
    nbytes: tuple[int, ...]  # S
    seconds: tuple[float, ...]
    link: str  # a name for `link`, empty where the source does not say
    tool: str
    source: str
    date: str
    note: str


def gpu(name: str) -> Gpu:
    """Look up a GPU: capitals, spaces and dashes do not matter."""
    return _find("GPU", name, _gpus())


def link(name: str) -> Link:
    """Look up a link: capitals, spaces and dashes do not matter."""
    return _find("link", name, _links())


def sweep(name: str) -> Sweep:
    """Look up a published sweep of all-reduce times."""
    return _find("sweep", name, _sweeps())


def gpus() -> list[str]:
    """The names that `gpu` knows."""
    return _names(_gpus())


def links() -> list[str]:
    """The names that `link` knows."""
    return _names(_links())


def sweeps() -> list[str]:
    """The names that `sweep` knows."""
    return _names(_sweeps())


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _names(table: dict) -> list[str]:
    return list(dict.fromkeys(item.name for item in table.values()))


def _find(kind: str, name: str, table: dict):
    found = table.get(_plain(name))
    if found is None:
        close = difflib.get_close_matches(_plain(name), table, n=3, cutoff=0.4)
        names = [table[key].name for key in close] or _names(table)
        near = ", ".join(dict.fromkeys(names))
        raise ValueError(f"No {kind} here is called {name!r}. Closest: {near}.")
    return found


@functools.cache
def _read(file: str):
    return yaml.safe_load((_DATA / file).read_text(encoding="utf-8"))


def _by_name(entries: list[dict], made: list) -> dict:
    return {
        _plain(name): thing
        for entry, thing in zip(entries, made)
        for name in [entry["name"], *entry.get("also", [])]
    }


def _figure(entry: dict, kind: str, value, *, source: str = "", dtype: str = "") -> Figure:
    """Make one figure of `entry` from the number that its source prints."""
    whole = _read("hardware.yaml")
    scale, unit = _UNITS[whole["units"][kind]]
    origin = whole["sources"][source or entry["source"]]
    note = entry.get("notes", {}).get(dtype or kind, "")
    sense = whole["senses"].get(kind, "")
    return Figure(value * scale, unit, origin["source"], str(origin["date"]), sense, note)


@functools.cache
def _gpus() -> dict[str, Gpu]:
    entries = _read("hardware.yaml")["gpus"]
    return _by_name(
        entries,
        [
            Gpu(
                name=e["name"],
                peak=Peaks({d: _figure(e, "peak", v, dtype=d) for d, v in e["peak"].items()}),
                memory_bytes=_figure(e, "memory", e["memory"]),
                memory_bandwidth=_figure(e, "memory_bandwidth", e["memory_bandwidth"]),
                link=e["link"],
                host=e["host"],
                matmul=_figure(e, "matmul", e["matmul"]) if "matmul" in e else None,
                note=e.get("notes", {}).get("link", ""),
            )
            for e in entries
        ],
    )


@functools.cache
def _links() -> dict[str, Link]:
    entries = _read("hardware.yaml")["links"]
    return _by_name(
        entries,
        [
            Link(
                name=e["name"],
                bandwidth=_figure(e, "bandwidth", e["bandwidth"]),
                alpha=_figure(e, "alpha", e["alpha"], source="nccl"),
            )
            for e in entries
        ],
    )


@functools.cache
def _sweeps() -> dict[str, Sweep]:
    entries = _read("sweeps.yaml")
    return _by_name(entries, [_sweep(entry) for entry in entries])


def _sweep(entry: dict) -> Sweep:
    measured = entry.get("microseconds") or entry["bus_gigabytes"]
    sizes = entry.get("bytes") or [entry["first"] << k for k in range(len(measured))]
    if len(sizes) != len(measured):
        raise ValueError(f"{entry['name']} has {len(sizes)} sizes and {len(measured)} figures.")
    if "microseconds" in entry:
        times = [t * 1e-6 for t in measured]
    else:  # nccl-tests: bus bandwidth = S · 2(n-1)/n ÷ time
        share = 2 * (entry["ranks"] - 1) / entry["ranks"]
        times = [size * share / (rate * 1e9) for size, rate in zip(sizes, measured)]
    words = {
        name: str(entry.get(name) or "") for name in ("link", "tool", "source", "date", "note")
    }
    return Sweep(entry["name"], entry["ranks"], tuple(sizes), tuple(times), **words)
