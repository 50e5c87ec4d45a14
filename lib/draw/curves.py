"""Curves: a time against a size (or a number of ranks), measured and predicted."""

from math import isfinite

from lib.draw.parts import style
from lib.draw.parts.picture import Picture

DECADES = 30  # an axis whose largest value is so many times its smallest is logarithmic


def curve(measured=None, predicted=None, *, x=("size", "B"), y=("time", "s"), dial=None,
          caption: str = "", lines_are: str = "predicted") -> Picture:  # fmt: skip
    """Draw measured points and predicted lines: {name: (xs, ys)} each.

    An axis is logarithmic, and says so, where its values span more than a factor of 30 and all are
    above 0; otherwise it is linear. Of lines that coincide the lower one is drawn wider.

    A prediction may also be a Fit (lib.predict.collectives.formulas): its line is drawn along the
    points of the same name, in a band as wide as its worst error. `x` and `y` are (name, unit).
    `dial=(name, {line: what to say})` is a slider that picks one line after the other out of them
    all. `caption` says what the numbers are: where points come from a publication, name it.
    `lines_are` is "measured" where the lines join what was measured.
    """
    measured, predicted = measured or {}, predicted or {}
    points = {name: _pairs(name, xs, ys) for name, (xs, ys) in measured.items()}
    lines = {name: _line(name, what, points) for name, what in predicted.items()}
    if not any([*points.values(), *lines.values()]):
        raise ValueError("There is nothing to draw: give {name: (sizes, times)}.")
    if dial and not set(dial[1]) <= {*points, *lines}:
        raise ValueError(f"The dial {dial[0]!r} has a place for what is no line: {list(dial[1])}.")
    told = {n: f"{n}: {_words(f)}" for n, f in predicted.items() if hasattr(f, "worst")}
    data = {
        "x": x, "y": y, "points": points, "lines": lines, "told": told, "dial": dial,
        "lines_are": lines_are, "caption": caption or _caption(points, lines),
        "log": _logarithmic(points, lines),
        "fits": {n: [f.alpha, f.beta, f.worst] for n, f in predicted.items() if n in told},
    }  # fmt: skip
    return Picture(_story(points, lines, predicted, x, y, lines_are), ("curves", data))


def _caption(points, lines) -> str:
    if not points:
        return "Lines: predicted by a formula; nothing was run."
    return "Points: measured." + (" Lines: predicted by a formula." if lines else "")


def _logarithmic(points, lines) -> list[bool]:
    """Which of the two axes spans decades."""
    pairs = [pair for each in (*points.values(), *lines.values()) for pair in each]
    ends = [(min(values), max(values)) for values in zip(*pairs)]
    return [low > 0 and high >= DECADES * low for low, high in ends]


def _pairs(name: str, xs, ys) -> list[tuple[float, float]]:
    xs, ys = [float(v) for v in xs], [float(v) for v in ys]
    if len(xs) != len(ys):
        raise ValueError(f"{name!r} has {len(xs)} sizes and {len(ys)} times: one for each.")
    if not all(map(isfinite, (*xs, *ys))):
        raise ValueError(f"{name!r} has a value that is not finite: it has no place on an axis.")
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


def _story(points, lines, predicted, x, y, lines_are: str) -> str:
    """The same in words, without times: they differ from run to run."""
    lines_of_text = [f"curve: {y[0]} against {x[0]}"]
    for name in dict.fromkeys([*points, *lines]):
        have = points.get(name) or lines[name]
        low, high = min(a for a, _ in have), max(a for a, _ in have)
        what = [f"{len(points[name])} points"] if name in points else []
        if name in lines:
            band = " in its error band" if getattr(predicted[name], "worst", 0) else ""
            what.append(f"a {lines_are} line{band}")
        reach = f"{style.amount(low, x[1])} to {style.amount(high, x[1])}"
        lines_of_text.append(f"  {name}: {' and '.join(what)}, from {reach}")
    return "\n".join(lines_of_text)
