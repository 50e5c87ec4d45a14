"""Units are gathered, compute and are freed; a prefetch limit trades memory for exposed time."""

from collections.abc import Sequence

from lib.draw.buckets import network_choices
from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.predict.arguments import real, whole
from lib.predict.sharded.prefetch import play_units

_MOST = 6  # the largest prefetch limit that can be chosen
_SHOWN = 12  # bars that the words list


def units(
    nbytes: Sequence[int], forward: Sequence[float] | float,
    backward: Sequence[float] | float | None = None, *, names: Sequence[str] = (),
    prefetch: int = 1, resharded: bool = True, ranks: int = 8, link: str = "NVLink4",
    alpha: float | None = None, bandwidth: float | None = None, caption: str = "",
) -> Picture:  # fmt: skip
    """Draw a step of FSDP on one clock: its units' computation, its collectives, and what is held.

    `nbytes` of each whole unit, and its seconds of forward and backward, first unit first; a single
    number of seconds is shared out by bytes, and backward takes twice as long as forward if it is
    not given. Prefetch limit, `resharded` (reshard_after_forward) and the network can be turned;
    the network is a `link` of data/hardware.yaml, or alpha (s a round) and bandwidth (bytes/s, one
    way). `caption` says where the seconds come from.
    """
    nbytes = [whole(size, "The bytes of a unit") for size in nbytes]
    names = [str(name) for name in names] or [str(n) for n in range(len(nbytes))]
    if not nbytes or len(names) != len(nbytes):
        raise ValueError(
            f"There are {len(nbytes)} units and {len(names)} names. Give the bytes of at least one "
            "unit, and a name for each or none."
        )
    forward = _seconds(forward, nbytes, "forward")
    backward = [2 * time for time in forward] if backward is None else backward
    limit = whole(prefetch, "prefetch", 0)
    data = network_choices(ranks, link, alpha, bandwidth) | {
        "nbytes": nbytes, "forward": forward, "names": names,
        "backward": _seconds(backward, nbytes, "backward"),
        "most": max(limit, min(_MOST, len(nbytes))), "more": captions.joined(caption),
    }  # fmt: skip
    data["start"] |= {"prefetch": limit, "resharded": bool(resharded)}
    return Picture(_story(data), ("units", data))


def _seconds(given, nbytes: list[int], what: str) -> list[float]:
    """Return the seconds of each unit; one number is shared out by bytes."""
    if isinstance(given, int | float):
        given = [given * size / sum(nbytes) for size in nbytes]
    if len(given) != len(nbytes):
        raise ValueError(
            f"There are {len(nbytes)} units and {len(given)} times of {what}. Give a time for "
            "each unit, or one number for all."
        )
    return [real(time, f"A time of {what}", zero=False) for time in given]


def _story(data: dict) -> str:
    """The same in words, without times."""
    start = dict(data["start"])
    times = {name: data[name] for name in ("nbytes", "forward", "backward")}
    run, names, count = play_units(**times, **start), data["names"], len(data["nbytes"])
    order = [f"{bar.kind} {names[bar.unit]}" for bar in run.bars]
    mode = "" if start["resharded"] else ", not resharded"
    return "\n".join([
        f"units: {count} unit{'s' * (count != 1)}, {sum(data['nbytes']):,} bytes, on "
        f"{start['ranks']:,} rank{'s' * (start['ranks'] != 1)}, prefetch {start['prefetch']}{mode}",
        f"  in order: {', '.join(order[:_SHOWN])}{', …' * (len(order) > _SHOWN)}",
        f"  held beside the shards: at most {run.peak:,} bytes",
    ])  # fmt: skip
