"""Curves: a time against a size (or a number of ranks), both axes in powers of ten."""

from math import log10

from lib.draw import style
from lib.draw.picture import Mark, Picture
from lib.draw.scales import decades, legend

_LEFT, _RIGHT, _TOP, _TALL = 74, 16, 30, 260  # px


def curve(measured=None, predicted=None, *, x=("size", "B"), y=("time", "s"), dial=None) -> Picture:
    """Draw measured points and predicted lines, log-log: {name: (xs, ys)} each.

    A prediction may also be a Fit (lib.predict.traffic): its line is drawn along the points of the
    same name, in a band as wide as its worst error. `x` and `y` are (name, unit). `dial=(name,
    {line: what to say})` is a slider that picks one line after the other out of them all.
    """
    measured, predicted = measured or {}, predicted or {}
    points = {name: _pairs(name, xs, ys) for name, (xs, ys) in measured.items()}
    lines = {name: _line(name, what, points) for name, what in predicted.items()}
    everything = [pair for pairs in [*points.values(), *lines.values()] for pair in pairs]
    if not everything:
        raise ValueError("There is nothing to draw: give {name: (sizes, times)}.")
    if dial and not set(dial[1]) <= {*points, *lines}:
        raise ValueError(f"The dial {dial[0]!r} has a place for what is no line: {list(dial[1])}.")
    # 1. scales: whole decades around all that is drawn
    across, up = (decades(min(v), max(v)) for v in zip(*everything))
    width, bottom = style.WIDTH - _LEFT - _RIGHT, _TOP + _TALL

    def at(pair):
        parts = [
            (log10(v) - log10(ends[0])) / (log10(ends[-1]) - log10(ends[0]))
            for v, ends in zip(pair, (across, up))
        ]
        return _LEFT + parts[0] * width, bottom - min(max(parts[1], 0), 1) * _TALL

    # 2. grid, then bands, lines and points in the colour of their name
    marks = [Mark("text", 8, 12, fill=style.INK, text=y[0])]
    marks += _grid(across, up, at, x[1], y[1])
    names = list(dict.fromkeys([*points, *lines]))
    for place, name in enumerate(names):
        shade, worst = style.piece(place), getattr(predicted.get(name), "worst", 0.0)
        line = lines.get(name, [])
        if worst:
            # worst is |predicted - measured| / measured: it bounds what may be measured
            edges = [at((a, b / max(1 - worst, 0.01))) for a, b in line]
            edges += [at((a, b / (1 + worst))) for a, b in reversed(line)]
            about = f"{name}: within {worst:.0%}"
            marks.append(Mark("area", fill=shade, points=tuple(edges), about=about))
        if line:
            about = f"{name}: predicted"
            marks.append(Mark("line", edge=shade, points=tuple(map(at, line)), about=about))
        for pair in points.get(name, []):
            px, py = at(pair)
            marks.append(Mark("box", px - 3, py - 3, 6, 6, fill=shade, about=f"{name}: measured"))
    # 3. what the colours mean
    told = {n: f"{n}: {_words(f)}" for n, f in predicted.items() if hasattr(f, "worst")}
    keys = [(told.get(name, name), style.piece(i), False) for i, name in enumerate(names)]
    end = Mark("text", style.WIDTH - _RIGHT, bottom + 2 * style.LINE, fill=style.INK, text=x[0],
               align="right")  # fmt: skip
    more, height = legend(keys, _LEFT, bottom + 3 * style.LINE - 4)
    live = {
        "x": x, "y": y, "points": points, "lines": lines, "told": told, "dial": dial,
        "fits": {n: [f.alpha, f.beta, f.worst] for n, f in predicted.items() if n in told},
    }  # fmt: skip
    story = _story(points, lines, predicted, x, y)
    return Picture([*marks, end, *more], height, story, live=("curve", live))


def _grid(across, up, at, xunit, yunit) -> list[Mark]:
    marks = []
    every = -(-len(across) // 7)
    for place, value in enumerate(across):
        (px, low), (_, high) = at((value, up[0])), at((value, up[-1]))
        marks.append(Mark("line", edge=style.GRID, points=((px, low), (px, high))))
        if place % every == 0:
            side = "middle" if px < style.WIDTH - 30 else "right"
            text = style.amount(value, xunit)
            marks.append(Mark("text", px, low + 16, fill=style.INK, text=text, align=side))
    for value in up:
        (left, py), (right, _) = at((across[0], value)), at((across[-1], value))
        marks.append(Mark("line", edge=style.GRID, points=((left, py), (right, py))))
        text = style.amount(value, yunit)
        marks.append(Mark("text", left - 6, py, fill=style.INK, text=text, align="right"))
    return marks


def _pairs(name: str, xs, ys) -> list[tuple[float, float]]:
    xs, ys = [float(v) for v in xs], [float(v) for v in ys]
    if len(xs) != len(ys):
        raise ValueError(f"{name!r} has {len(xs)} sizes and {len(ys)} times: one for each.")
    if min([*xs, *ys], default=1) <= 0:
        raise ValueError(f"{name!r} has a value that is not above 0: both axes are logarithms.")
    return list(zip(xs, ys))


def _line(name: str, what, points) -> list[tuple[float, float]]:
    if not hasattr(what, "seconds"):
        return _pairs(name, *what)
    if name not in points:
        raise ValueError(f"A fit is drawn along its points: none are called {name!r}.")
    low, high = min(a for a, _ in points[name]), max(a for a, _ in points[name])
    steps = [low * (high / low) ** (i / 48) for i in range(49)]
    return [(step, what.seconds(step)) for step in steps]


def _words(fit) -> str:
    rate = f" + bytes at {style.amount(1 / fit.beta, 'B/s')}" if fit.beta else ""
    return f"{style.amount(fit.alpha, 's')}{rate}, off by at most {fit.worst:.0%}"


def _story(points, lines, predicted, x, y) -> str:
    """The same in words, without times: they differ from run to run."""
    told = [f"curve: {y[0]} against {x[0]}, both in powers of ten"]
    for name in dict.fromkeys([*points, *lines]):
        have = points.get(name) or lines[name]
        low, high = min(a for a, _ in have), max(a for a, _ in have)
        what = [f"{len(points[name])} points"] if name in points else []
        if name in lines:
            band = " in its error band" if getattr(predicted[name], "worst", 0) else ""
            what.append(f"a predicted line{band}")
        reach = f"{style.amount(low, x[1])} to {style.amount(high, x[1])}"
        told.append(f"  {name}: {' and '.join(what)}, from {reach}")
    return "\n".join(told)
