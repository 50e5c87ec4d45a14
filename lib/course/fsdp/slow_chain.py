"""The chain of chapter 3 in slow motion: four small ranks stand for four H100s, with FSDP.

The chain has eight layers of width 4,096 and a ReLU between them. A rank has 4,096 rows of input.
"""

from typing import NamedTuple

from lib.course.fsdp import lessons
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.larger import Larger
from lib.predict.sharded.fsdp_step import fsdp_step, hidden
from lib.predict.sharded.units import alive, units_of
from lib.ranks import World, span
from lib.ranks.slow_motion import SlowMotion

RANKS = 4


def speeds(factor: float = 300) -> SlowMotion:
    """Return the rates of an H100 with NVLink 4, at which the small chain stands for the large one.

    What a rank does takes `factor` times as long as on an H100.
    """
    batch = (lessons.FEW, lessons.ROWS)
    # Sizes that are divided by the number of ranks are those of shards.
    stands = Larger(lessons.SMALL, lessons.LARGE, batch=batch, shared_by=(RANKS,))
    return SlowMotion("H100", link="NVLink4", factor=factor, stands_for=stands)


def start(factor: float = 300) -> tuple[World, list[Ledger]]:
    """Start four ranks in slow motion; predict a step of the chain with prefetch 0 and with 1."""
    slow = speeds(factor)
    rows = [lessons.ROWS] * RANKS
    steps = [fsdp_step(lessons.LARGE, rows, slow, prefetch=limit) for limit in (0, 1)]
    return World(RANKS, slow_motion=slow), steps


def waited_for(step: Ledger) -> int:
    """Return for how many gathers' time rank 0 waits in a predicted step of the chain.

    All gathers are equally long, so the exposed share of their time is counted in gathers.
    """
    gathers = len(step.where(rank=0, lane="comm", op="all_gather"))
    return round(gathers * (1 - hidden(step, speeds())))


def beside(slow: World, predicted: list[Ledger], limit: int):
    """Record a step with prefetch `limit`, and draw rank 0 over `predicted[limit]`'s collectives.

    Each collective is drawn from when its bytes move. The pictures of both limits have one scale.
    """
    run = lessons.after_barrier(slow.record(lessons.chain_step, limit, span))
    recorded, outlines = (
        lessons.while_moving(rows, speeds())
        for rows in (run.where(rank=0), predicted[limit].where(rank=0, lane="comm"))
    )
    return timeline(recorded, over=outlines, until=predicted[0].makespan)


class Cut(NamedTuple):
    """Holds what a rank of the chain pays for units of some size, with prefetch 1."""

    held: int  # bytes of whole weights and gradients beside the shards, at most
    seconds: float  # of forward and backward, predicted, without the update


def cut(layers: int) -> Cut:
    """Predict the chain in units of `layers` layers each, which must divide its eight."""
    blocks = [layers] * (8 // layers)
    step = fsdp_step(lessons.LARGE, [lessons.ROWS] * RANKS, speeds(), blocks=blocks)
    held = max(state.total for state in alive(units_of(lessons.LARGE, blocks), RANKS))
    return Cut(held, lessons.until_update(step))


def unit_times(step: Ledger) -> tuple[list[float], list[float]]:
    """Return the seconds of forward and of backward of each unit of a predicted step."""
    return lessons.times_of_units(step, lessons.LARGE)
