from pathlib import Path

from lib.draw import Picture, style
from lib.draw.picture import Mark

runs = [0]


def again(name, state):
    """Counts what the reader asks for."""
    runs[0] += 1
    if state["pressed"] > 4:
        raise ValueError("pressed too often")
    return {"summary": "a probe", "runs": runs[0]}


box = Mark("box", 4, 10, 72, 40, fill=style.colour("forward"), about="box 0")
probe = str(Path("probe").resolve())
Picture([box], 60, "a probe", live=(probe, {"runs": 0}), ask=again)
