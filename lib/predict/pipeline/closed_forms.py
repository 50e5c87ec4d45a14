"""Published closed forms of a pipeline's bubble and memory, each with the domain where it is exact.

[Note: what a closed form assumes]
All stages and all microbatches take equally long, and messages take no time. `Costs` are those of
one stage, as for `play`. Within its domain a closed form equals the result of `play`; outside of it
this file refuses it, because `play` computes the time for any costs.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lib.predict.pipeline.play import Costs


class Times(NamedTuple):
    """Holds the times of each stage's actions; `pair` is that of an overlapped pair."""

    forward: float
    backward: float
    inputs: float
    weights: float
    pair: float


class Form(NamedTuple):
    """Holds a closed form: the `idle` time of p ranks with m microbatches, exact where it `holds`.

    `domain` describes in words where that is.
    """

    idle: Callable[[int, int, Times], float]
    holds: Callable[[int, int, Times], bool]
    domain: str
    source: str


def _no_longer(one: float, other: float) -> bool:
    return one <= other + 1e-9 * abs(other)  # a difference within rounding does not count


def _weights_fit(t: Times) -> bool:
    return _no_longer(t.weights, t.forward) and _no_longer(t.weights, t.inputs)


def _equal(one: float, other: float) -> bool:
    return _no_longer(one, other) and _no_longer(other, one)


def _all_equal(t: Times) -> bool:
    return _equal(t.forward, t.inputs) and _equal(t.inputs, t.weights)


def _deepseeks(p: int, m: int, t: Times) -> bool:
    level = _equal(t.forward, t.inputs) and _equal(t.backward, t.inputs + t.weights)
    fits = _no_longer(t.backward, t.pair) and _no_longer(t.pair, t.forward + t.backward)
    return m >= 2 * p and level and _weights_fit(t) and fits


def _filling(p: int, m: int, t: Times) -> float:
    """Return the time to fill and drain the pipe; v stages a rank make more, but shorter, steps."""
    return (p - 1) * (t.forward + t.backward)


FORMS = {
    "naive": Form(lambda p, m, t: m * _filling(p, m, t), lambda p, m, t: True, "for all times", ""),
    "gpipe": Form(_filling, lambda p, m, t: True, "for all times", "arXiv 1811.06965"),
    "one_f_one_b": Form(_filling, lambda p, m, t: True, "for all times", "arXiv 2104.04473"),
    "interleaved": Form(
        _filling, lambda p, m, t: m >= p, "for all times, from m = p on", "arXiv 2104.04473"
    ),
    "breadth_first": Form(
        _filling, lambda p, m, t: m >= p, "for all times, from m = p on", "arXiv 2211.05953"
    ),
    "zb_h1": Form(
        lambda p, m, t: (p - 1) * (t.forward + t.inputs - t.weights),
        lambda p, m, t: m >= p and _weights_fit(t),
        "where W is no longer than F and than I, from m = p on",
        "arXiv 2401.10241",
    ),
    "zb_h2": Form(
        lambda p, m, t: (p - 1) * (t.forward + t.inputs - 2 * t.weights),
        lambda p, m, t: m >= 2 * p - 1 and _weights_fit(t),
        "where W is no longer than F and than I, from m = 2p - 1 on",
        "arXiv 2401.10241",
    ),
    "zb_v": Form(
        lambda p, m, t: 0.0,
        lambda p, m, t: m >= 2 * p - 1 and _all_equal(t),
        "where F, I and W are equal, from m = 2p - 1 on",
        "arXiv 2401.10241",
    ),
    "dualpipe_v": Form(
        lambda p, m, t: (p - 1) * (t.pair + t.backward - 3 * t.weights),
        _deepseeks,
        "where F = I and B = I + W, W is no longer than F, a pair takes B to F + B, and m >= 2p",
        "arXiv 2412.19437",
    ),
}


def idle_time(rule: str, ranks: int, microbatches: int, costs: Costs | None = None) -> float:
    """Return the idle time of the rank that idles most, by the published closed form of `rule`.

    In the `domain` of FORMS[rule] it is exactly the makespan less that rank's work. For "zb_h2" and
    "zb_v" it is the idle time within the span of the rank with the longest span, as their authors
    count it. For a single rank every form is 0. Raises ValueError outside of the domain.
    """
    if rule not in FORMS:
        raise ValueError(f"No closed form is called {rule!r}. Choose one of {', '.join(FORMS)}.")
    form, times = FORMS[rule], _times(rule, costs or Costs())
    if ranks > 1 and not form.holds(ranks, microbatches, times):
        names = zip(("F", "B", "I", "W", "a pair"), times)
        values = ", ".join(f"{name} is {time:g}" for name, time in names)
        raise ValueError(
            f"The closed form of {rule} holds {form.domain}. Here p is {ranks}, m is "
            f"{microbatches}, {values}. Use play(), which holds for any costs."
        )
    return float(form.idle(ranks, microbatches, times)) if ranks > 1 else 0.0


def _times(rule: str, costs: Costs) -> Times:
    """Return the times that all stages share; refuse costs that no closed form covers."""
    names = ("forward", "backward_input", "backward_weight", "backward", "overlap")
    times = {n: np.unique(t) for n in names if (t := getattr(costs, n)) is not None}
    uneven = any(len(time) > 1 for time in times.values())
    if uneven or np.any(costs.send) or np.any(costs.accumulate):
        raise ValueError(
            f"The closed form of {rule} holds for equal stages, equal microbatches and messages "
            "that take no time. Use play(), which holds for any costs."
        )
    one = Costs(**{name: float(time[0]) for name, time in times.items()})
    forward, backward, inputs, weights = one.table(1)[:, 0].tolist()
    pair = forward + backward if one.overlap is None else one.overlap
    return Times(forward, backward, inputs, weights, pair)


def alive(rule: str, rank: int, ranks: int, microbatches: int, chunks: int = 1) -> int:
    """Return the most activations of a stage that a rank keeps at once, exact for all times.

    An activation is kept from F to the end of B or W. `chunks` is the number of stages on a rank.
    The form of ZB-V holds for m >= 2p - 1, that of DualPipeV for m >= 2p, and the others for every
    m that the schedule allows. Raises ValueError outside of that.
    """
    p, m, r = ranks, microbatches, rank
    least = {"zb_v": 2 * p - 1, "dualpipe_v": 2 * p}.get(rule, 1)
    if m < least:
        raise ValueError(
            f"The closed form of {rule}'s memory holds for at least {least} microbatches, but "
            f"there are {m}. Use play(), which holds for any number."
        )
    size = m // max(1, m // p)  # the microbatches of a round
    counts = {
        "naive": 1,
        "gpipe": m,
        "one_f_one_b": min(p - r, m),
        "interleaved": min((chunks - 1) * size + 2 * (p - 1 - r) + 1, chunks * m),
        "breadth_first": chunks * m,
        "zb_h1": min(p, m),
        "zb_h2": min(2 * p - 1, m),
        "zb_v": 2 * p,
        "dualpipe_v": 2 * p + 1,
    }
    if rule not in counts:
        raise ValueError(f"No closed form is called {rule!r}. Choose one of {', '.join(counts)}.")
    return counts[rule]
