from pathlib import Path

from lib.draw import Picture

runs = [0]


def again(name, state):
    """Counts what the reader asks for."""
    runs[0] += 1
    if state["pressed"] > 4:
        raise ValueError("pressed too often")
    return {"summary": "a probe", "runs": runs[0]}


probe = str(Path("probe").resolve())
Picture("a probe", (probe, {"runs": 0}), ask=again)
