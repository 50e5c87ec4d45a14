"""Gradients become ready, fill buckets, and travel while backward goes on."""

from collections.abc import Callable, Sequence

from lib.draw.parts import captions, style
from lib.draw.parts.picture import Picture
from lib.ledger import Ledger
from lib.predict import hardware
from lib.predict.data.bucket_overlap import fly
from lib.predict.data.buckets import limits_of
from lib.predict.provenance import link_of

_STEPS = 96  # of the bucket size, from one gradient to all


def buckets(
    nbytes: Sequence[int], seconds: Sequence[float] | float, *, names: Sequence[str] = (),
    bucket_bytes: int | None = None, ranks: int = 4, link: str = "NVLink4",
    alpha: float | None = None, bandwidth: float | None = None,
    ask: Callable[[int | None], Ledger] | None = None, caption: str = "",
) -> Picture:  # fmt: skip
    """Draw one backward and its all-reduces on one clock, for a bucket size that can be turned.

    `nbytes` of each parameter's gradient and backward's `seconds` for it, first layer first
    (backward begins at the end); one number of seconds is shared out by bytes. `bucket_bytes`:
    default PyTorch's, 1 MiB for the first and 25 MiB for the others. The network is a `link` of
    data/hardware.yaml, or alpha (s a round) and bandwidth (bytes/s, one way). Where a kernel runs,
    a button calls `ask(bucket_bytes)` (None: the default) and lays the ledger it returns over the
    prediction; its backward is what ran inside `span("backward")`. `caption` says where the
    seconds of backward come from.
    """
    data = _gradients(nbytes, seconds, names) | network_choices(ranks, link, alpha, bandwidth)
    usual, limits = limits_of(None), limits_of(bucket_bytes)
    stops = sorted({*_sizes(data["nbytes"]), usual, limits}, key=lambda stop: (stop[-1], stop))
    data["stops"] = [list(stop) for stop in stops]
    data["start"]["stop"], data["asks"] = stops.index(limits), ask is not None
    data["more"] = captions.joined(caption)

    def answer(_, state: dict) -> dict:
        chosen = stops[state["stop"]]
        ledger = ask(None if chosen == usual else chosen[0])
        return data | {"summary": story, "measured": {"stop": state["stop"]} | _measured(ledger)}

    story = _story(data)
    return Picture(story, ("buckets", data), ask=answer if ask else None)


def _gradients(nbytes, seconds, names) -> dict:
    """Gradients in the order in which backward makes them."""
    nbytes = [int(size) for size in nbytes]
    if not nbytes or min(nbytes) < 1:
        raise ValueError("There is nothing to draw: give the bytes of each gradient, above 0.")
    if isinstance(seconds, int | float):
        seconds = [seconds * size / sum(nbytes) for size in nbytes]
    seconds, names = [float(time) for time in seconds], [str(name) for name in names]
    if len(seconds) != len(nbytes) or len(names) not in (0, len(nbytes)):
        raise ValueError(
            f"{_many(len(nbytes), 'gradient')}, {_many(len(seconds), 'time')} and "
            f"{_many(len(names), 'name')}: give one of each for every gradient."
        )
    if not (min(seconds) >= 0 and 0 < sum(seconds) < float("inf")):
        raise ValueError("Backward takes time: give seconds of 0 or more, not all of them 0.")
    names = names or [str(n) for n in range(len(nbytes))]
    return {"nbytes": nbytes[::-1], "seconds": seconds[::-1], "names": names[::-1]}


def network_choices(ranks, link, alpha, bandwidth) -> dict:
    """Return what the sliders of a network can be set to, and where they start."""
    known = hardware.link(link)
    name = known.name
    alpha = float(known.alpha if alpha is None else alpha)
    bandwidth = float(known.bandwidth if bandwidth is None else bandwidth)
    if ranks < 1 or not (0 <= alpha < float("inf") and 0 < bandwidth < float("inf")):
        raise ValueError(
            f"{ranks} ranks, {alpha:g} s a round, {bandwidth:g} bytes/s: at least 1, 0 and above 0."
        )
    return {
        "ranks": sorted({2**n for n in range(11)} | {ranks}),
        "alphas": _around(alpha, -6, -2),
        "bandwidths": _around(bandwidth, 8, 12),
        "start": {"ranks": ranks, "alpha": alpha, "bandwidth": bandwidth},
        "link": captions.link_in_words(link_of(name, alpha, bandwidth)),
    }


def _around(value: float, first: int, last: int) -> list[float]:
    """1, 2, 5, 10, ... between two powers of ten, and `value` itself."""
    steps = {float(f"{m}e{e}") for e in range(first, last) for m in (1, 2, 5)}
    return sorted(steps | {float(f"1e{last}"), value})


def _sizes(nbytes) -> list[tuple[int]]:
    """Limits from one gradient a bucket to all in one, in even steps of their logarithm."""
    low, high = min(nbytes), sum(nbytes)
    return [(round(low * (high / low) ** (n / _STEPS)),) for n in range(_STEPS + 1)]


def _story(data: dict) -> str:
    """The same in words, without times."""
    network = dict(data["start"])
    ranks, limits = network["ranks"], data["stops"][network.pop("stop")]
    run = fly(data["nbytes"], data["seconds"], limits, **network)
    lines = [
        f"buckets: {_many(len(data['nbytes']), 'gradient')}, {sum(data['nbytes']):,} bytes, on "
        f"{_many(ranks, 'rank')}; the last layer's come first"
    ]
    for n, flight in enumerate(run.flights[:8]):
        what = f"{_many(len(flight.inside), 'gradient')}, {flight.bytes:,} bytes"
        lines.append(f"  bucket {n}: {what}")
    if len(run.flights) > 8:
        lines.append(f"  and {_many(len(run.flights) - 8, 'bucket')} more")
    return "\n".join(lines)


def _measured(ledger: Ledger) -> dict:
    """Backward and all-reduces of the first rank, in seconds from the start of its backward."""
    rank = ledger.ranks[0]
    rows = [row for row in ledger.where(lane=["compute", "comm"]) if row.rank == rank]
    back = [row for row in rows if row.lane == "compute" and style.family(row.op) == "backward"]
    zero = min((row.start for row in back), default=0.0)  # what was sent before is not its own
    sums = [row for row in rows if row.op == "all_reduce" and row.start >= zero]
    if not back or not sums:
        raise ValueError(
            f"Rank {rank} recorded {_many(len(back), 'backward')} and "
            f'{_many(len(sums), "all-reduce")}: run backward inside span("backward").'
        )
    free, bars = 0.0, []
    for row in sorted(sums, key=lambda row: row.start):
        start = max(row.start + row.waiting, free)
        free = max(row.end, start)
        bars.append([start - zero, free - zero])
    ranks = len(sums[0].members)
    facts = {"source": ledger.source, "caption": captions.phrase(ledger)}
    facts["delay"] = captions.delay(ledger[ledger.column("start") >= zero])
    return facts | {"ranks": ranks, "backward": max(row.end for row in back) - zero, "bars": bars}


def _many(number: int, noun: str) -> str:
    """A number of things: "1 bucket", "3 buckets"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
