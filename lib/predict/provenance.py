"""Whose times a run or a prediction has: plain data for a ledger's `meta`, which captions read."""

from lib.predict import hardware, stored_calibrations

_NAMES = ("gpu", "dtype", "link", "alpha", "bandwidth", "factor", "stands_for")
_CLOSE = 1e-9  # two figures that differ by less than this share are the same


def speeds_of(speeds) -> dict:
    """Return the device and link behind `speeds` (a SlowMotion, for example) as plain data.

    `invented` is True where the latency (`alpha`, s) or the bandwidth (bytes/s, one way) is not
    the one that data/hardware.yaml has for the link of that name; `real` then holds both of its
    figures. `stands_for` says for which large model a run stands, and with which sizes it is run.
    `nodes` has the link between nodes, and the ranks of each.
    """
    facts = {name: getattr(speeds, name) for name in _NAMES if getattr(speeds, name, None)}
    if "stands_for" in facts:
        facts["stands_for"] = str(facts["stands_for"])
    if nodes := getattr(speeds, "nodes", None):
        facts["nodes"] = nodes._asdict()
    return facts | link_of(facts.get("link"), facts.get("alpha"), facts.get("bandwidth"))


def of_prediction(speeds) -> dict:
    """Return the `meta` of a prediction from `speeds`: empty where these have no names."""
    facts = speeds_of(speeds)
    kept = {name: value for name, value in facts.items() if name not in ("factor", "stands_for")}
    return {"speeds": kept} if {"gpu", "link"} <= set(kept) else {}


def link_of(link: str | None, alpha: float | None, bandwidth: float | None) -> dict:
    """Return a link as plain data: its name, latency (s), bandwidth, and whether it is invented."""
    as_given = {"link": link, "alpha": alpha, "bandwidth": bandwidth}
    measured = stored_calibrations.is_name(link)  # here, so nobody invented it
    if link is None or alpha is None or bandwidth is None or measured:
        return {name: value for name, value in as_given.items() if value is not None}
    try:
        known = hardware.link(link)
    except ValueError:  # a link that the table does not know
        return as_given
    real = [float(known.alpha), float(known.bandwidth)]
    pairs = zip((alpha, bandwidth), real)
    if all(abs(one - other) <= _CLOSE * other for one, other in pairs):
        return as_given | {"link": known.name}
    return as_given | {"link": known.name, "invented": True, "real": real}
