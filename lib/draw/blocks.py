"""The allocator's blocks over time: where each storage lay, and how large the largest hole was."""

import re
from collections.abc import Mapping

import numpy as np

from lib.draw.parts import captions, style
from lib.draw.parts.packing import column
from lib.draw.parts.picture import Picture
from lib.predict.allocator.caching import MIN_BLOCK
from lib.predict.allocator.replay import Replay

MOST = 2_000  # blocks that a picture keeps: those that take the most room for the longest time

_CAPTION = (
    "Predicted by a model of PyTorch's caching allocator; the storages and the order in which they "
    "come and go are those of the recording. Time is counted in these events, and the driver may "
    "lay the segments out in another order."
)
_STATES = "allocated", "reserved", "free", "largest_free", "inactive_split"
_PHASES = {"forward": "forward", "backward": "backward", "optimizer": "step"}


def blocks(runs: Replay | Mapping[str, Replay], *, caption: str = "") -> Picture:
    """Draw addresses upwards and events to the right: a box for each storage, by kind.

    What is hatched belongs to a segment and is free. Below are all free bytes, and the largest free
    block, which says how large a tensor may be that still fits. Several replays,
    {"best fit": run, "first fit": run}, have one scale, and the reader chooses between them.
    `caption` is a sentence more for the caption. Raises ValueError where there is nothing to draw.
    """
    runs = {"": runs} if isinstance(runs, Replay) else dict(runs)
    if not runs or not all(isinstance(run, Replay) and run.states for run in runs.values()):
        raise ValueError(
            "Blocks are drawn from replays that have an event, as in blocks(replay(lives(rows)))."
        )
    kinds = _kinds(runs.values())
    ends = [s.address + s.size for run in runs.values() for s in run.segments]
    data = {
        "kinds": kinds, "top": max(ends), "unit": MIN_BLOCK,
        "free": max(state.free for run in runs.values() for state in run.states),
        "span": max(len(run.states) for run in runs.values()),
        "runs": [{"name": name} | _packed(run, kinds) for name, run in runs.items()],
        "caption": captions.joined(_CAPTION, caption),
    }  # fmt: skip
    return Picture(_story(runs), ("blocks", data))


def _kinds(runs) -> list[str]:
    present = {one.life.kind for run in runs for one in run.placed}
    return [kind for kind in style.MEMORY if kind in present] + sorted(present - set(style.MEMORY))


def _packed(run: Replay, kinds: list[str]) -> dict:
    """One replay as columns: sizes in units of 512 bytes, what grows as its steps."""
    chosen = sorted(run.placed, key=lambda one: -one.size * (one.died - one.life.born))[:MOST]
    chosen.sort(key=lambda one: one.life.born)
    makers = sorted({one.life.made_by for one in chosen})
    code = {maker: n for n, maker in enumerate(makers)}
    states = {name: [getattr(state, name) // MIN_BLOCK for state in run.states] for name in _STATES}
    return {
        "n": len(chosen), "left": len(run.placed) - len(chosen), "events": len(run.states),
        "address": column([one.address // MIN_BLOCK for one in chosen]),
        "size": column([one.size // MIN_BLOCK for one in chosen]),
        "rounded": column([one.size - one.life.nbytes for one in chosen]),
        "born": column(np.diff([one.life.born for one in chosen], prepend=0)),
        "length": column([one.died - one.life.born for one in chosen]),
        "kind": column([kinds.index(one.life.kind) for one in chosen]),
        "maker": column([code[one.life.made_by] for one in chosen]), "makers": makers,
        "segments": [[*one] for one in run.segments],
        "states": {name: column(np.diff(values, prepend=0)) for name, values in states.items()},
        "scattered": run.most_scattered(), "phases": phases_of(run), "failure": run.failure,
    }  # fmt: skip


def phases_of(run: Replay) -> list[list]:
    """Return [event, name] wherever forward, backward or the optimizer's step begins."""
    found: list[list] = []
    for one in run.placed:
        match = re.search(r" in (forward|backward|optimizer)\b", one.life.made_by)
        if match and (not found or found[-1][1] != _PHASES[match[1]]):
            found.append([one.life.born, _PHASES[match[1]]])
    return found


def _story(runs: Mapping[str, Replay]) -> str:
    lines = ["the allocator's blocks over time: addresses upwards, births and deaths to the right"]
    for name, run in runs.items():
        worst = run.states[run.most_scattered()]
        lines.append(
            f"  {name or run.fit + ' fit'}: {len(run.placed):,} storages in "
            f"{len(run.segments):,} segments, at most {run.peak_allocated:,} bytes allocated and "
            f"{run.peak_reserved:,} reserved"
        )
        lines.append(
            f"    when most scattered: {worst.free:,} bytes free, the largest free block with "
            f"{worst.largest_free:,}"
        )
        if run.failure:
            lines.append(f"    {run.failure}")
    return "\n".join(lines)
