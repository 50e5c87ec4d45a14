"""What the numbers of a picture are: measured, slow motion, predicted or published, in a sentence.

A ledger knows its source, and its `meta["speeds"]` (lib.predict.provenance) the device and link.
Captions hold figures of links and devices, so they travel as data and not in the summary.
"""

import re
from collections.abc import Mapping

from lib.draw.parts import style
from lib.ledger import Ledger

_UNITS = "s", "B/s"  # of a latency and of a bandwidth
_SLIPPED = re.compile(r"slipped ([\d.]+) ([nµm]?)s\b")  # in the note of a row in slow motion
_PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0}
_MUCH = 0.02  # of a recording's length: what is less late cannot be seen


def of_ledger(ledger: Ledger, more: str = "") -> str:
    """Return the caption of a picture of one ledger; `more` is a sentence that the caller adds."""
    told = phrase(ledger)
    return joined(told[0].upper() + told[1:], delay(ledger), more)


def of_two(ledger: Ledger, over: Ledger, more: str = "") -> str:
    """Return the caption of a picture of one run with another one in outlines over it."""
    first, second = _details(ledger), _details(over)
    here, there = ledger.meta.get("speeds"), over.meta.get("speeds")
    if here and there and _same(here, there):
        second = "for the same device and link"
    elif first == second:
        second = ""
    return joined(
        f"The bars are {_phrase(ledger.source, first)}.",
        f"The {outline(over)} outlines are {_phrase(over.source, second)}.",
        delay(ledger),
        more,
    )


def of_each(runs: Mapping[str, Ledger]) -> list[str]:
    """Return what the numbers of each run are; where the same is true of runs, it is said once."""
    names: dict[str, list[str]] = {}
    for name, ledger in runs.items():
        names.setdefault(of_ledger(ledger), []).append(name)
    if len(names) == 1:
        return list(names)
    return [f"{', '.join(of)}: {text[0].lower()}{text[1:]}" for text, of in names.items()]


def outline(over: Ledger) -> str:
    """Say how a run laid over another one is drawn: only a prediction is dashed."""
    return "dashed" if over.source == "predicted" else "solid"


def phrase(ledger: Ledger) -> str:
    """Say what the numbers of a ledger are, as a part of a sentence."""
    return _phrase(ledger.source, _details(ledger))


def delay(ledger: Ledger) -> str:
    """Say by how much rows of slow motion ended late on a busy machine; "" if it cannot be seen."""
    slips = _SLIPPED.finditer("\n".join({note for note in ledger.column("note") if note}))
    late = max((float(slip[1]) * _PREFIXES[slip[2]] for slip in slips), default=0.0)
    if late <= _MUCH * ledger.makespan:
        return ""
    return f"Delays of up to {style.amount(late, 's')} come from this machine, which was busy."


def joined(*sentences: str) -> str:
    """Sentences one after the other, each with its full stop."""
    stripped = (sentence.strip() for sentence in sentences)
    return " ".join(one if one[-1] in ".!?" else f"{one}." for one in stripped if one)


def link_in_words(told: dict) -> str:
    """Describe a link with its latency and bandwidth; an invented one is called invented."""
    alpha, bandwidth = told.get("alpha"), told.get("bandwidth")
    figures = _figures(alpha, bandwidth) if bandwidth else ""
    if told.get("invented"):
        latency, real = (style.amount(value, unit) for value, unit in zip(told["real"], _UNITS))
        return f"an invented link ({figures}; {told['link']} really has {latency}, {real})"
    return f"{told['link']} ({figures})" if figures else str(told["link"])


def _figures(alpha: float, bandwidth: float) -> str:
    return f"latency {style.amount(alpha, 's')}, {style.amount(bandwidth, 'B/s')} one way"


def _phrase(source: str, details: str) -> str:
    """A source with its details: "predicted by a formula", "measured: wall clock of 2 ranks"."""
    joint = " " if details.startswith(("by ", "for ", "from ")) else ": "
    return f"{source}{joint}{details}" if details else source


def _details(ledger: Ledger) -> str:
    return {"measured": _measured, "slow motion": _slow, "predicted": _predicted}[ledger.source](
        ledger
    )


def _measured(ledger: Ledger) -> str:
    """Whose wall clock it is."""
    if "devices" in ledger.meta:
        return f"wall clock of {ledger.meta['devices']} virtual devices in one process"
    many = len(ledger.ranks)
    device = {"cpu": " (CPU)", "cuda": " (GPUs)"}.get(str(ledger.meta.get("device")), "")
    return f"wall clock of {many} rank{'s' * (many != 1)} on this machine{device}"


def _slow(ledger: Ledger) -> str:
    """The device and link of slow motion, and how many times slower it was played."""
    told = ledger.meta.get("speeds")
    if not told:
        return "order, waiting and bytes are real, durations are those of another device"
    factor = f", played {told['factor']:,.6g} times slower" if "factor" in told else ""
    whose = "order, waiting and bytes are real; durations are those of"
    if "stands_for" in told:
        whose = (
            f"order and waiting are real; durations and bytes are those of {told['stands_for']} on"
        )
    return f"{whose} {_hardware(told)}{factor}"


def _predicted(ledger: Ledger) -> str:
    """The formula of a prediction, and the device and link it is for, as far as they are known."""
    told = ledger.meta.get("speeds")
    formula = ledger.meta.get("formula", "" if told else "by a formula; nothing was run")
    device = f"from the rates of {_hardware(told)}" if told else ""
    return ", ".join(filter(None, (formula, device)))


def _hardware(told: dict) -> str:
    dtype = f" ({told['dtype']})" if "dtype" in told else ""
    device = f"the {told['gpu']}{dtype}" if "gpu" in told else ""
    if device.startswith("the this"):
        device = device.removeprefix("the ")
    link = link_in_words(told) if "link" in told else ""
    if nodes := told.get("nodes"):
        link += f", and between nodes of {nodes['ranks']} ranks of {link_in_words(nodes)}"
    return " and ".join(filter(None, (device, link)))


def _same(one: dict, other: dict) -> bool:
    """Whether two runs are timed by one device and one link, whatever they were stretched by."""
    names = (set(one) | set(other)) - {"factor", "stands_for"}
    return all(one.get(name) == other.get(name) for name in names)
