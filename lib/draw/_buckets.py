"""The marks of a `buckets` picture, from what its browser side is given: as in js/buckets.js."""

from math import log

from lib.draw import labels, style
from lib.draw.picture import Mark
from lib.draw.scales import axis, legend
from lib.draw.words import lines_of
from lib.predict.flight import Flights, best, fly

_LEFT, _RIGHT, _TOP = 84, 14, 8  # px around it
_BAR, _FILL, _GAP, _FALL = 24, 60, 12, 20  # px: a lane, how high a bucket, between, the way down
_CURVE = 56  # px, how high the curve of sizes


def network(data: dict) -> dict:
    """Ranks, alpha and bandwidth that a picture starts with."""
    return {name: data["start"][name] for name in ("ranks", "alpha", "bandwidth")}


def first_run(data: dict) -> Flights:
    """The backward that a picture shows at first."""
    return fly(data["nbytes"], data["seconds"], data["stops"][data["start"]["stop"]],
               **network(data))  # fmt: skip


def layout(data: dict) -> tuple[list[Mark], float]:
    """The lanes on their clock, the numbers, and the curve of bucket sizes; (marks, height)."""
    run, right = first_run(data), style.WIDTH - _RIGHT
    pixels = (right - _LEFT) / run.end
    marks, y = _lanes(data, run, pixels)
    marks += axis(_LEFT, right, y, run.end)
    y += 2 * style.LINE + 8
    for line in _numbers(data, run, right - _LEFT):
        marks.append(Mark("text", _LEFT, y, fill=style.INK, text=line))
        y += style.LINE
    if len(data["nbytes"]) > 1:
        more, y = _curve(data, run, y + 16, right)
        marks += more
    waits = run.exposed * pixels > 1
    keys = [("waiting for the last bucket", None, True)] if waits else []
    more, y = legend(keys, _LEFT, y + 4)
    return marks + more, y


def _lanes(data, run, pixels) -> tuple[list[Mark], float]:
    """Backward, the buckets it fills, and their way to the other ranks."""
    top, fill = _TOP, _TOP + _BAR + _GAP
    base, lane = fill + _FILL, fill + _FILL + _FALL
    named = ("backward", top + _BAR / 2), ("buckets", fill + _FILL / 2)
    marks = [
        Mark("text", _LEFT - 8, y, fill=style.INK, text=text, align="right")
        for text, y in (*named, ("all-reduce", lane + _BAR / 2))
    ]
    most, zero = max(flight.bytes for flight in run.flights), (0.0, *run.ready)
    for n, flight in enumerate(run.flights):
        shade, held = style.piece(n), 0
        points = [(_LEFT + zero[flight.inside[0]] * pixels, base)]
        for i in flight.inside:  # 1. its gradients, and how they fill it
            x, w = _LEFT + zero[i] * pixels, data["seconds"][i] * pixels
            marks += _bar(x, top, w, shade, (data["names"][i],))
            held += data["nbytes"][i]
            points.append((x + w, base - held / most * _FILL))
        x, start = (_LEFT + time * pixels for time in (flight.full, flight.start))
        points.append((x, base))
        marks.append(Mark("area", fill=labels.tint(shade, 0.3), alpha=1, points=tuple(points),
                          about=f"bucket {n}"))  # fmt: skip
        marks.append(Mark("line", edge=shade, points=tuple(points)))
        if flight.seconds:  # 2. its way: straight down, or aslant while it waits for the lane
            marks.append(Mark("line", edge=shade, points=((x, base), (start, lane))))
            words = f"{n}: {in_bytes(flight.bytes)}", str(n)
            marks += _bar(start, lane, flight.seconds * pixels, shade, words)
    x, w = _LEFT + run.backward * pixels, run.exposed * pixels
    if w > 1:
        marks.append(Mark("box", x, top, w, _BAR, edge=style.FAINT, hatch=True, about="exposed"))
    marks.append(Mark("line", edge=style.FAINT, dash=True, points=((x, top), (x, lane + _BAR + 4))))
    return marks, lane + _BAR + 8


def _bar(x, y, w, shade, words) -> list[Mark]:
    """A bar and the first of `words` that fits into it."""
    edge = style.PAPER if w > 3 else None
    marks = [Mark("box", x, y, w, _BAR, fill=shade, edge=edge, about=words[0])]
    label = next((text for text in words if w > len(text) * style.LETTER + 4), None)
    if label:
        marks.append(Mark("text", x + w / 2, y + _BAR / 2, fill=style.on(shade), text=label,
                          align="middle"))  # fmt: skip
    return marks


def _numbers(data, run, room) -> list[str]:
    limits, share = data["stops"][data["start"]["stop"]], run.exposed / (run.moving or 1)
    shown, whole = style.amount(run.exposed, "s"), style.amount(run.moving, "s")
    return [
        *lines_of(f"{many(len(run.flights), 'bucket')}; {in_limits(limits)}", room),
        *lines_of(f"exposed {shown} of {whole} communication ({round(100 * share)} %)", room),
    ]


def _curve(data, run, y, right) -> tuple[list[Mark], float]:
    """What is exposed at each bucket size; where we are, and where it is least."""
    nbytes, seconds, stops = data["nbytes"], data["seconds"], data["stops"]
    heights = [fly(nbytes, seconds, limits, **network(data)).exposed for limits in stops]
    most, low, high = max(heights), min(nbytes), sum(nbytes)
    top, base = y + style.LINE, y + style.LINE + _CURVE

    def place(n):
        size = min(max(stops[n][-1], low), high)
        return _LEFT + log(size / low) / log(high / low) * (right - _LEFT)

    def tall(n):
        return base - heights[n] / (most or 1) * _CURVE

    # 1. axes
    marks = [Mark("text", _LEFT, y, fill=style.INK, text="exposed, by bucket size")]
    for text, at in ((style.amount(most, "s"), top), ("0", base))[not most :]:
        marks.append(Mark("text", _LEFT - 8, at, fill=style.INK, text=text, align="right"))
    marks.append(Mark("line", edge=style.FAINT, points=((_LEFT, base), (right, base))))
    steps = (1,) if high / low > 300 else (1, 2, 5)
    powers = [m * 10**e for e in range(18) for m in steps if low <= m * 10**e <= high]
    for power in powers[:: -(-len(powers) * 70 // int(right - _LEFT)) or 1]:
        x = _LEFT + log(power / low) / log(high / low) * (right - _LEFT)
        marks.append(Mark("line", edge=style.FAINT, points=((x, base), (x, base + 4))))
        side = "right" if x > right - 24 else "middle"
        x = right if side == "right" else x
        text = style.amount(power, "B")
        marks.append(Mark("text", x, base + 14, fill=style.INK, text=text, align=side))
    # 2. the curve, the best, and where we are
    line = tuple((place(n), tall(n)) for n, limits in enumerate(stops) if len(limits) == 1)
    marks.append(Mark("line", edge=style.COMM["all_reduce"], points=line, about="exposed"))
    found = best(nbytes, seconds, stops, **network(data))
    x = place(found)
    marks.append(Mark("line", edge=style.INK, dash=True, points=((x, top), (x, base))))
    side, x = ("right", x - 6) if x > right - 130 else ("left", x + 6)
    text = f"best: {in_bytes(stops[found][-1])}"
    marks.append(Mark("text", x, top, fill=style.INK, text=text, align=side))
    n = data["start"]["stop"]
    marks.append(Mark("box", place(n) - 4, tall(n) - 4, 8, 8, fill=style.INK, edge=style.PAPER,
                      about=in_limits(stops[n])))  # fmt: skip
    return marks, base + 14 + style.LINE


def many(number: int, noun: str) -> str:
    """A number of things: "1 bucket", "3 buckets"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def in_bytes(size: int) -> str:
    """A size as people say it: "25 MiB" where it is whole, else "26.3 MB"."""
    return f"{size >> 20} MiB" if size % 2**20 == 0 else style.amount(size, "B")


def in_limits(limits) -> str:
    """The limits of buckets in words."""
    words = [in_bytes(size) for size in limits]
    return f"full at {words[0]}" + (f", later ones at {words[1]}" if len(words) > 1 else "")
