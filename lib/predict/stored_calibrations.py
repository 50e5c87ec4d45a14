"""Calibrations in the reader's own folder: where they are kept, read, found by name, and stale.

They are YAML files in `my-chapters`, beside the reader's copies of the chapters, one for each
number of ranks and kind of device: my-chapters/this-machine-2-ranks.yaml.
"""

import os
import platform
from dataclasses import asdict
from pathlib import Path

import yaml

from lib.predict import readers_folder
from lib.predict.calibration import NAME, Calibration, Curve, MeasuredSweep, counted

FOLDER = readers_folder.folder()
_HEADER = """\
# What this machine can do, as calibrate(world) of lib/ranks/calibrate.py measured it. Times are in
# seconds, sizes in bytes; a matrix product of size n is one of two n × n matrices. The times of a
# collective are those of its sweeps, one line for each. You can delete this file: calibrate
# measures again.
"""


def path(ranks: int, device: str = "cpu") -> Path:
    """Return where the calibration of so many ranks is kept: in `my-chapters`, beside your copies.

    The file is YAML, for example my-chapters/this-machine-2-ranks.yaml.
    """
    kind = "" if device == "cpu" else f"-{device}"
    return FOLDER / f"this-machine-{counted(ranks).replace(' ', '-')}{kind}.yaml"


def write(this: Calibration, file: Path) -> None:
    """Write a calibration as YAML. Raises OSError where the folder cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    options = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 100}
    text = _HEADER + yaml.safe_dump(_plain(asdict(this)), **options)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    os.replace(unfinished, file)  # a reader meanwhile sees all of it or nothing


def read(file: Path) -> Calibration:
    """Read a calibration. Raises ValueError, in a sentence, where the file holds none."""
    try:
        entry = yaml.safe_load(file.read_text(encoding="utf-8"))
        entry["products"] = {dtype: _curve(curve) for dtype, curve in entry["products"].items()}
        entry["traffic"] = _curve(entry["traffic"])
        entry["sweeps"] = tuple(
            MeasuredSweep(s["op"], s["ranks"], tuple(s["bytes"]), tuple(map(tuple, s["rounds"])))
            for s in entry["sweeps"]
        )
        this = Calibration(**entry)
        str(this), this.compute(1, 1)  # whatever is missing is missed here
        return this
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, yaml.YAMLError,
            StopIteration, ZeroDivisionError) as error:  # fmt: skip
        raise ValueError(f"{file} holds no calibration that can be read ({error}).") from None


def _curve(entry: dict) -> Curve:
    return Curve(tuple(entry["sizes"]), tuple(entry["seconds"]))


def _plain(value):
    """Return the same with lists for tuples, as YAML has them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def stale(this: Calibration, facts: dict) -> list[str]:
    """Return why a calibration does not hold for these facts, in sentences; [] where it does."""
    words = {
        "machine": "It was measured on another machine, {}; this is {}.",
        "gpus": "It was measured on other GPUs, {}; these are {}.",
        "ranks": "It was measured with {} ranks; this World has {}.",
        "device": "It was measured on {}; these ranks run on {}.",
        "backend": "It was measured over {}; these ranks use {}.",
        "torch": "It was measured with torch {}; this is torch {}.",
        "threads": "It was measured with {} threads on each rank; now each has {}.",
    }
    return [
        sentence.format(this.facts.get(fact), facts[fact])
        for fact, sentence in words.items()
        if fact in facts and this.facts.get(fact) != facts[fact]
    ]


def machine() -> str:
    """Return the name of this machine's processor and how many of its cores may be used."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    cores = len(usable(0))
    return f"{model}, {cores} core{'s' if cores > 1 else ''}"


# Finding it by name.

_measured: list[Calibration] = []  # in this process, the last one last


def remember(this: Calibration) -> None:
    """Let `find` give this calibration from now on, also where it could not be written."""
    _measured.append(this)


def find(name: str = NAME) -> Calibration:
    """Return the calibration called "this machine", the newest, or "this machine, 2 ranks".

    Raises ValueError where there is none, or where the stored one is another machine's.
    """
    digits = "".join(c for c in name if c.isdigit())
    fits = lambda this: not digits or this.facts["ranks"] == int(digits)
    for this in reversed(_measured):
        if fits(this):
            return this
    for file in sorted(FOLDER.glob("this-machine-*.yaml"), key=os.path.getmtime, reverse=True):
        this = read(file)
        if fits(this):
            if reasons := stale(this, {"machine": machine()}):
                raise ValueError(f"{file} is stale. {reasons[0]} Run calibrate(world) again.")
            return this
    raise ValueError(
        f"No calibration of {name!r} is stored in {FOLDER}. Measure one: "
        "from lib.ranks.calibrate import calibrate; calibrate(world)."
    )


def is_name(name) -> bool:
    """Return True for "this machine" and "this machine, 2 ranks", however they are written."""
    return isinstance(name, str) and "".join(name.lower().split()).startswith("thismachine")
