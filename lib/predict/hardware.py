"""Figures of GPUs and links, each with its unit, its source and its date.

They stand in data/hardware.yaml and data/sweeps.yaml. Peaks are those of dense matrices, and
bandwidths of links are those of one direction. The names "this machine" and "this machine, 4 ranks"
stand for what lib/ranks/calibrate.py has measured here.
"""

import difflib
import functools
from dataclasses import dataclass
from pathlib import Path

import yaml

from lib.predict import stored_calibrations
from lib.predict.calibration import Calibration

_DATA = Path(__file__).parents[2] / "data"
_UNITS = {
    "TFLOP/s": (1e12, "FLOP/s"),
    "GB/s": (1e9, "B/s"),
    "GB": (1e9, "B"),
    "µs": (1e-6, "s"),
}


class Figure(float):
    """A number that carries its `unit`, `source`, `date`, `sense` (dense, one way) and `note`."""

    def __new__(cls, value, unit="", source="", date="", sense="", note=""):
        """Create the number and keep what is known about it as attributes."""
        self = super().__new__(cls, value)
        self.unit, self.source, self.date, self.sense, self.note = unit, source, date, sense, note
        return self

    @property
    def value(self) -> float:
        """Return the number without its unit."""
        return float(self)

    def __repr__(self) -> str:
        return " ".join(filter(None, [f"{float(self):g}", self.unit, self.sense]))


class Peaks(dict):
    """Maps number formats to FLOP/s; the error for a missing format lists those that exist."""

    def __missing__(self, dtype: str):
        raise ValueError(f"This GPU has no figure for {dtype!r}, only for {', '.join(self)}.")


@dataclass(frozen=True)
class Gpu:
    """Describes one kind of GPU."""

    name: str
    peak: Peaks  # FLOP/s, dense: peak["bf16"]
    memory_bytes: Figure  # B
    memory_bandwidth: Figure  # B/s
    link: str  # to the other GPUs of its machine, a name that `link` knows
    host: str  # to the memory of its machine, a name that `link` knows
    matmul: Figure | None  # FLOP/s of the fastest bf16 matrix product measured
    note: str = ""

    @property
    def matmul_efficiency(self) -> float | None:
        """Return the share of the bf16 peak that a matrix product reached; None if not measured."""
        return self.matmul / self.peak["bf16"] if self.matmul else None


@dataclass(frozen=True)
class Link:
    """Describes one kind of link, as one GPU sees it."""

    name: str
    bandwidth: Figure  # B/s, one way
    alpha: Figure  # latency: s for each round of a ring

    @property
    def beta(self) -> float:
        """Return the seconds for each byte."""
        return 1 / self.bandwidth

    @property
    def source(self) -> str:
        """Return the source of the bandwidth; `alpha.source` is that of the latency."""
        return self.bandwidth.source

    @property
    def note(self) -> str:
        """Return what a user of the figures should know."""
        return "; ".join(filter(None, [self.bandwidth.note, self.alpha.note]))


@dataclass(frozen=True)
class Sweep:
    """Holds published times of one all-reduce over many sizes."""

    name: str
    ranks: int
    nbytes: tuple[int, ...]  # S, the size of the buffer
    seconds: tuple[float, ...]
    link: str  # a name that `link` knows; empty for several nodes or an unknown link
    tool: str
    source: str
    date: str
    note: str
    inside: str = ""  # for several nodes: the link between the GPUs of a node
    outside: str = ""  # for several nodes: one of the `rails` links that lead out of a node
    nodes: int = 1
    rails: int = 0


def gpu(name: str) -> Gpu:
    """Look up a GPU by name; capitals, spaces and dashes do not matter.

    "this machine" is what `calibrate` has measured, a CPU for ranks on the CPU.
    """
    this = calibrated(name)
    return _find("GPU", name, _gpus()) if this is None else _gpu_of(this)


def link(name: str) -> Link:
    """Look up a link by name; capitals, spaces and dashes do not matter.

    "this machine" is a link on which a ring takes as long as the all_reduce that was measured.
    """
    this = calibrated(name)
    return _find("link", name, _links()) if this is None else link_of(this)


def calibrated(name: str) -> Calibration | None:
    """Return the calibration of this machine where `name` asks for it, else None.

    Raises ValueError where it was not measured yet, or on another machine.
    """
    return stored_calibrations.find(name) if stored_calibrations.is_name(name) else None


def link_of(this: Calibration, op: str = "all_reduce", ranks: int | None = None) -> Link:
    """Return the link on which a ring's `op` takes as long as was measured for so many ranks."""
    alpha, bandwidth = this.ring(op, ranks)
    sweep = this.sweep(op, ranks)
    note = f"from {op} of {sweep.ranks} ranks, off by at most {sweep.fit.worst:.0%}"
    return Link(
        this.name,
        _measured(this, bandwidth, "B/s", "one way", note),
        _measured(this, alpha, "s", note=note),
    )


def _gpu_of(this: Calibration) -> Gpu:
    return Gpu(
        name=this.name,
        peak=Peaks({d: _measured(this, c.best, "FLOP/s") for d, c in this.products.items()}),
        memory_bytes=_measured(this, this.memory_bytes, "B"),
        memory_bandwidth=_measured(this, this.traffic.best, "B/s"),
        link=this.name,
        host=this.name,
        matmul=None,
        note="all ranks computed at once",
    )


def _measured(this: Calibration, value: float, unit: str, sense: str = "", note: str = ""):
    return Figure(value, unit, "measured by lib/ranks/calibrate.py", this.date[:10], sense, note)


def sweep(name: str) -> Sweep:
    """Look up a published sweep of all-reduce times by name."""
    return _find("sweep", name, _sweeps())


def gpus() -> list[str]:
    """Return the names that `gpu` knows."""
    return _names(_gpus())


def links() -> list[str]:
    """Return the names that `link` knows."""
    return _names(_links())


def sweeps(*, one_node: bool | None = None) -> list[str]:
    """Return the names that `sweep` knows: all, or those of one node, or those of several."""
    names = _names(_sweeps())
    return [name for name in names if one_node in (None, sweep(name).nodes == 1)]


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _names(table: dict) -> list[str]:
    return list(dict.fromkeys(item.name for item in table.values()))


def _find(kind: str, name: str, table: dict):
    item = table.get(_plain(name)) if isinstance(name, str) else None
    if item is None:
        close = difflib.get_close_matches(_plain(str(name)), table, n=3, cutoff=0.4)
        names = [table[key].name for key in close] or _names(table)
        near = ", ".join(dict.fromkeys(names))
        raise ValueError(f"No {kind} here is called {name!r}. The closest names are {near}.")
    return item


@functools.cache
def _read(file: str):
    return yaml.safe_load((_DATA / file).read_text(encoding="utf-8"))


def _by_name(entries: list[dict], items: list) -> dict:
    return {
        _plain(name): item
        for entry, item in zip(entries, items)
        for name in [entry["name"], *entry.get("also", [])]
    }


def _figure(entry: dict, kind: str, value, *, source: str = "", dtype: str = "") -> Figure:
    """Create one figure of `entry` from the number that its source prints."""
    hardware = _read("hardware.yaml")
    scale, unit = _UNITS[hardware["units"][kind]]
    origin = hardware["sources"][source or entry.get("sources", {}).get(kind) or entry["source"]]
    note = entry.get("notes", {}).get(dtype or kind, "")
    sense = hardware["senses"].get(kind, "")
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
        name: str(entry.get(name) or "")
        for name in ("link", "tool", "source", "date", "note", "inside", "outside")
    }
    counts = {name: entry[name] for name in ("nodes", "rails") if name in entry}
    return Sweep(entry["name"], entry["ranks"], tuple(sizes), tuple(times), **words, **counts)
