"""Which version of the weights each microbatch sees on each stage."""

from lib.draw.parts.picture import Picture

MOST = 40  # microbatches that fit beside one another

_CAPTION = "Predicted: how many updates the weights have had follows from the schedule's order."


def versions(seen, *, caption: str = "") -> Picture:
    """Draw versions as a grid: a row for each stage, a column for each microbatch.

    `seen[stage][microbatch]` is a pair, the version (a number of updates) that its forward and its
    backward see: lib.predict.pipeline.versions.weight_versions gives it, and PipeDream records it.
    Where the two differ both are written, as 2|5, in a frame. `caption` says where they come from,
    if not from the order of the schedule alone.
    """
    if not seen or not seen[0] or any(len(row) != len(seen[0]) for row in seen):
        raise ValueError("Versions are a row for each stage, a pair for each microbatch in it.")
    many = len(seen[0])
    if many > MOST:
        raise ValueError(f"{many} microbatches do not fit beside one another: at most {MOST} do.")
    data = {"seen": [[[int(version) for version in pair] for pair in row] for row in seen]}
    data["caption"] = caption or _CAPTION
    return Picture(_story(seen), ("versions", data))


def _story(seen) -> str:
    lines = ["versions of the weights that each microbatch sees"]
    for stage, row in enumerate(seen):
        versions = [str(f) if f == b else f"{f}|{b}" for f, b in row]
        lines.append(f"  stage {stage}: {' '.join(versions)}")
    return "\n".join(lines)
