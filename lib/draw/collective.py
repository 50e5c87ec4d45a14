"""What a collective does: before and after, or step by step."""

from lib.draw.parts import collective_grids
from lib.draw.parts.picture import Picture
from lib.draw.plans.steps import steps
from lib.predict.collectives.plans import Plan

_CAPTION = "By definition: what each rank holds, before and after."


def collective(*ops: str | Plan, ranks: int = 4, numel: int = 250_000, itemsize: int = 4,
               view: str | None = None) -> Picture:  # fmt: skip
    """Draw what each rank holds before and after a collective, or after each of several in a row.

    A0 is piece 0 of rank A = 0; Σ0 is the sum of everybody's piece 0; an empty row holds nothing.
    A Plan (lib.predict.collectives.plans) is drawn step by step, on its own number of ranks, where
    each has `numel` elements of `itemsize` bytes; `view` lays the ranks out as a "ring" or in
    "rows".
    """
    if ops and isinstance(ops[0], Plan):
        if len(ops) > 1:
            raise ValueError(f"{len(ops)} plans do not fit one picture: give them one at a time.")
        if view not in (None, "ring", "rows"):
            raise ValueError(f'Ranks stand in a "ring" or in "rows", not in {view!r}.')
        return steps(ops[0], numel, itemsize, view)
    story = collective_grids.story(ops, collective_grids.grids(ops, ranks))
    return Picture(story, ("collective", {"ops": ops, "ranks": ranks, "caption": _CAPTION}))
