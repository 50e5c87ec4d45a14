"""Which version of the weights each microbatch sees on each stage."""

from lib.draw import style
from lib.draw.labels import tint
from lib.draw.picture import Mark, Picture
from lib.draw.plain import plain

_LEFT, _TOP, _TALL, _RIGHT, _WIDEST = 92, 26, 26, 14, 44  # px
MOST = 40  # microbatches that fit beside one another


def versions(seen) -> Picture:
    """Draw versions as a grid: a row for each stage, a column for each microbatch.

    `seen[stage][microbatch]` is a pair, the version (a number of updates) that its forward and its
    backward see: lib.predict.versions.weight_versions gives it, and PipeDream records it. Where the
    two differ both are written, as 2|5, in a frame.
    """
    if not seen or not seen[0] or any(len(row) != len(seen[0]) for row in seen):
        raise ValueError("Versions are a row for each stage, a pair for each microbatch in it.")
    many = len(seen[0])
    if many > MOST:
        raise ValueError(f"{many} microbatches do not fit beside one another: at most {MOST} do.")
    cell = min(_WIDEST, (style.WIDTH - _LEFT - _RIGHT) / many)
    newest = max(max(pair) for row in seen for pair in row)
    marks = [Mark("text", _LEFT - 8, _TOP / 2, fill=style.FAINT, text="microbatch", align="right")]
    every = 1 if cell > 18 else 5
    for j in range(0, many, every):
        x = _LEFT + (j + 0.5) * cell
        marks.append(Mark("text", x, _TOP / 2, fill=style.INK, text=str(j), align="middle"))
    for stage, row in enumerate(seen):
        y = _TOP + stage * _TALL
        marks.append(Mark("text", _LEFT - 8, y + _TALL / 2, fill=style.INK, text=f"stage {stage}",
                          align="right"))  # fmt: skip
        for j, (forward, backward) in enumerate(row):
            shade = tint(style.colour("forward"), 0.08 + 0.92 * forward / max(newest, 1))
            odd = forward != backward
            about = f"stage {stage}, microbatch {j}: forward sees version {forward}, "
            about += f"backward {backward if odd else 'the same'}"
            marks.append(Mark("box", _LEFT + j * cell, y, cell - 2, _TALL - 3, fill=shade,
                              edge=style.INK if odd else None, dash=odd, about=about))  # fmt: skip
            text = f"{forward}|{backward}" if odd else str(forward)
            if len(text) * style.LETTER < cell:
                marks.append(Mark("text", _LEFT + (j + 0.5) * cell - 1, y + _TALL / 2 - 1,
                                  fill=style.on(shade), text=text, align="middle"))  # fmt: skip
    width = max(_LEFT + many * cell + _RIGHT, 300)
    title = "Versions of the weights, by stage and microbatch"
    return plain(marks, _TOP + len(seen) * _TALL + 6, _story(seen), title, width, _LEFT - 1)


def _story(seen) -> str:
    lines = ["versions of the weights that each microbatch sees"]
    for stage, row in enumerate(seen):
        told = [str(f) if f == b else f"{f}|{b}" for f, b in row]
        lines.append(f"  stage {stage}: {' '.join(told)}")
    return "\n".join(lines)
