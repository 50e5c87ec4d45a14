"""What is alive on each rank over time, by kind."""

from lib.draw import style
from lib.draw.picture import Mark, Picture
from lib.draw.scales import axis, legend
from lib.draw.stacks import BAND, MOST, in_words, kinds_of, packed, panel, stacks
from lib.draw.ticks import tick_of
from lib.draw.words import in_words as ranks_in_words
from lib.ledger import Ledger

RANKS = 64  # that fit on a page
_LEFT, _RIGHT, _TOP, _GAP = 62, 14, 4, 10  # px


def memory(ledger: Ledger) -> Picture:
    """Draw the bytes alive on each rank by kind, stacked; time as in the ledger's timeline.

    All ranks have one scale. Each one's peak is marked; what made it is told in words. The rows
    are those of lane "memory": a recording in which lib.ranks.memory.Memory counts has them, and
    so has a played schedule with `activation` bytes.
    """
    has_memory(ledger)
    # 1. the ranks, the scales, the states
    kinds = kinds_of(ledger)
    zero, span = float(ledger.column("start").min()), ledger.makespan or 1e-9
    shown = stacks(ledger, ledger.ranks, zero)
    states = sum(len(stack.time) for stack in shown)
    tick = tick_of(span, states)
    thin = states < len(ledger.where(lane="memory"))
    data = packed(shown, kinds, tick) | {
        "tick": tick, "span": max(1, round(span / tick)), "source": ledger.source, "thin": thin,
    }  # fmt: skip
    # 2. the still
    top = data["top"]
    tall = height_of(len(shown))
    left, right = left_of(ledger.ranks), style.WIDTH - _RIGHT
    marks, y = [], _TOP
    for stack in shown:
        y += BAND
        marks.append(Mark("text", left - 8, y + tall / 2, fill=style.INK,
                          text=f"rank {stack.rank}", align="right"))  # fmt: skip
        x = lambda seconds: left + seconds / span * (right - left)
        marks += panel(stack, kinds, x, right, y, tall, top)
        y += tall + _GAP
    marks += axis(left, right, y, span)
    more, height = legend([(kind, style.memory(kind), False) for kind in kinds], left,
                          y + 2 * style.LINE + 10)  # fmt: skip
    story = _story(ledger, shown, thin)
    return Picture(marks + more, height, story, live=("memory", data))


def height_of(ranks: int) -> int:
    """How tall (px) each rank's stack is: fewer ranks have more room."""
    return next((tall for most, tall in ((2, 88), (4, 60), (8, 40)) if ranks <= most), 28)


def left_of(ranks) -> int:
    """Where time begins (px): right of the longest "rank 12"."""
    return _LEFT + 8 * max(0, len(str(max(ranks))) - 2)


def has_memory(ledger) -> None:
    """Refuse, in a sentence, what is no ledger, has no rows of memory, or too many ranks."""
    if not isinstance(ledger, Ledger):
        kind = type(ledger).__name__
        raise TypeError(f"Memory is drawn from a Ledger, not from {kind}: use world.record(...).")
    rows = ledger.where(lane="memory")
    if not len(rows):
        raise ValueError(
            "There is nothing to draw: this ledger has no rows of memory. Count in the step, "
            "`with Memory(model, optimizer):`, or play a schedule with Costs(activation=...)."
        )
    if len(rows.ranks) > RANKS:
        raise ValueError(
            f"The memory of {len(rows.ranks)} ranks fits no page: choose up to {RANKS} of them, "
            f"as in memory(ledger.where(rank=range({RANKS})))."
        )


def _story(ledger: Ledger, shown, thin: bool) -> str:
    lines = [f"memory, {ledger.source}: bytes alive on each rank by kind, time to the right"]
    lines += [f"  {ranks_in_words(ranks)}: {text}" for ranks, text in in_words(shown)]
    without = sorted(set(ledger.ranks) - {stack.rank for stack in shown})
    if without:
        lines.append(f"  {ranks_in_words(without)}: no rows of memory")
    if thin:
        lines.append(f"  thinned: at most {MOST:,} moments; every peak is kept")
    return "\n".join(lines)
