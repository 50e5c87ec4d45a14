"""A played schedule as marks, and in words; lib/draw/js/schedule_rows.js draws the same alive."""

import numpy as np

from lib.draw import style
from lib.draw._schedule_words import batches, figure, kept_by, meets, waited_for, worth
from lib.draw.labels import tint
from lib.draw.picture import Mark
from lib.draw.scales import axis, legend
from lib.predict.play import Run

_LEFT, _RIGHT, _BETWEEN = 62, 14, 18  # px around the times, and between them and the memory
_ROW, _GAP = 20, 3  # px of a rank, and paper below
_MEMORY = 109  # px: 17 % of the width
_SHARES = (1, 0.5, 0.3, 0.15)  # how full the colour is of a rank's first stage, its second ...
_NAMES = ("forward", "backward", "backward for the input", "backward for the weights")
_ORDINALS = ("1st", "2nd", "3rd", "4th and later")


def layout(run: Run, unit: str, par: float | None, limit: float | None):
    """(marks, height) of the still picture."""
    memory = style.WIDTH - _RIGHT - _MEMORY
    marks, top = _numbers(run, unit, par, memory - 8)
    right, bottom = memory - _BETWEEN, top + len(run.schedule) * (_ROW + _GAP)
    span = max(run.makespan, par or 0)
    pixels = (right - _LEFT) / span
    marks += _bars(run, top, pixels, unit)
    if par:
        x = _LEFT + par * pixels
        marks.append(Mark("line", edge=style.INK, dash=True, points=((x, top - 3), (x, bottom)),
                          about=f"par {figure(par, unit)}"))  # fmt: skip
    marks += axis(_LEFT, right, bottom, span, unit)
    marks += _memory(run, limit, memory, top, bottom)
    keys, height = legend(_keys(run), _LEFT, bottom + 2 * style.LINE + 10)
    return marks + keys, height


def _numbers(run: Run, unit: str, par: float | None, right: float):
    """Makespan and the three bubbles, each with its formula behind it; (marks, y below them)."""
    marks, x, y, line = [], _LEFT, 0.0, style.LINE
    for name, value, about in worth(run, unit, par):
        w = max(len(name), len(value)) * style.LETTER
        if x > _LEFT and x + w > right:
            x, y = _LEFT, y + 2 * line + 6
        marks.append(Mark("text", x, y + line / 2, fill=style.FAINT, text=name))
        marks.append(Mark("text", x, y + 1.5 * line, fill=style.INK, text=value))
        marks.append(Mark("box", x, y, w, 2 * line, about=about))
        x += w + 20
    return marks, y + 2 * line + 10


def _levels(run: Run) -> list[int]:
    """For each stage, whether it is the first (0), second (1) ... of its rank."""
    seen: dict[int, int] = {}
    levels = []
    for rank in run.schedule.placement:
        levels.append(min(seen.get(rank, 0), len(_SHARES) - 1))
        seen[rank] = seen.get(rank, 0) + 1
    return levels


def _bars(run: Run, top: float, pixels: float, unit: str) -> list[Mark]:
    grid, levels = run.schedule.grid, _levels(run)
    together = (
        set(run.schedule.grid.overlapped.tolist()) if run.costs.overlap is not None else set()
    )
    columns = (grid.kind, grid.stage, grid.cell // grid.stages, run.starts, run.ends)
    kinds, stages, numbers, starts, ends = (column.tolist() for column in columns)
    marks = []

    def idle(start, end, why):
        if (w := (end - start) * pixels) > 0.5:
            about = f"rank {rank} idle from {figure(start, unit)} to {figure(end, unit)}: {why()}"
            marks.append(Mark("box", _LEFT + start * pixels, y, w, _ROW, about=about))

    for rank, (first, last) in enumerate(zip(grid.first, grid.first[1:])):
        y, free = top + rank * (_ROW + _GAP), 0.0
        marks.append(Mark("text", _LEFT - 8, y + _ROW / 2, fill=style.INK, text=f"rank {rank}",
                          align="right"))  # fmt: skip
        for at in range(first, last):
            idle(free, starts[at], lambda at=at: f"waits for {waited_for(run, at)}")
            free = max(free, ends[at])
            half = (at in together) - (at - 1 in together)  # 1 above, -1 below, 0 the whole row
            if ends[at] > starts[at]:
                text = f"{stages[at]}{'FBIW'[kinds[at]]}{numbers[at]}"
                about = (
                    f"{text} on rank {rank}: {_NAMES[kinds[at]]}, stage {stages[at]}, microbatch "
                    f"{numbers[at]}, from {figure(starts[at], unit)} to {figure(ends[at], unit)}"
                )
                x, w = _LEFT + starts[at] * pixels, max((ends[at] - starts[at]) * pixels, 0.6)
                look = "FBIW"[kinds[at]], levels[stages[at]], str(numbers[at]), about
                marks += _bar(x, y, w, half, *look)
        idle(free, run.makespan, lambda: "has done all it has to do")
    return marks


def _bar(x, y, w, half, letter, level, text, about) -> list[Mark]:
    """One action: full colour for a rank's first stage, paler with an edge for its others."""
    full = style.colour(letter)
    fill = tint(full, _SHARES[level]) if level else full
    h = _ROW / 2 - 0.5 if half else _ROW
    top = y + _ROW / 2 + 0.5 if half < 0 else y
    if level and w > 5:
        box = Mark("box", x + 0.5, top + 0.5, w - 1, h - 1, fill=fill, edge=full, about=about)
    else:
        box = Mark("box", x, top, w, h, fill=fill, edge=style.PAPER if w > 3 else None, about=about)
    if half or w <= len(text) * style.LETTER + 1:
        return [box]
    middle = Mark("text", x + w / 2, y + _ROW / 2, fill=style.on(fill), text=text, align="middle")
    return [box, middle]


def _memory(run: Run, limit: float | None, left: float, top: float, bottom: float) -> list[Mark]:
    kept = kept_by(run)
    scale = (_MEMORY - 30) / max(*kept, limit or 0)
    fill = tint(style.COMPUTE["forward"], 0.45)
    faint = lambda y, text: Mark("text", left, y, fill=style.FAINT, text=text)
    marks = [faint(top - 12, "peak memory"), faint(bottom + 14, "microbatches")]
    placement = np.array(run.schedule.placement)
    for rank, amount in enumerate(kept):
        y, h = top + rank * (_ROW + _GAP) + 3, _ROW - 6
        inside = min(amount, limit or amount)
        peaks = (
            f"stage {s}: {run.peak_microbatches[s]}" for s in np.flatnonzero(placement == rank)
        )
        about = f"rank {rank} keeps the activations of at most {batches(amount)}; "
        marks.append(Mark("box", left, y, inside * scale, h, fill=fill,
                          about=about + ", ".join(peaks)))  # fmt: skip
        if amount > inside:
            marks.append(Mark("box", left + inside * scale, y, (amount - inside) * scale, h,
                              edge=style.INK, dash=True))  # fmt: skip
        marks.append(Mark("text", left + amount * scale + 6, y + h / 2, fill=style.INK,
                          text=figure(amount)))  # fmt: skip
    if limit:
        sign = "✓" if all(meets(amount, limit) for amount in kept) else "✗"
        x = left + limit * scale
        marks.append(Mark("line", edge=style.INK, dash=True, points=((x, top), (x, bottom - _GAP)),
                          about=f"limit {figure(limit)}"))  # fmt: skip
        marks.append(faint(bottom + 14 + style.LINE, f"limit {figure(limit)} {sign}"))
    return marks


def _keys(run: Run):
    there = sorted(set(run.schedule.grid.kind.tolist()))
    keys = [(_NAMES[kind], style.colour("FBIW"[kind]), False) for kind in there]
    most, forward = max(_levels(run)), style.COMPUTE["forward"]
    for level in range(1, most + 1):
        keys.append((f"{_ORDINALS[level]} stage of a rank", tint(forward, _SHARES[level]), False))
    return keys
