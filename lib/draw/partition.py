"""How a model is cut into stages: a bar for each stage, made of its layers."""

from lib.draw.parts import captions, style
from lib.draw.parts.picture import Picture
from lib.predict.pipeline.cuts import Layer, Partition, stage_time


def partition(layers, *cuts: tuple[str, Partition], names=(), unit: str = "s",
              bandwidth: float = float("inf"), caption: str = "") -> Picture:  # fmt: skip
    """Draw one or more ways to cut `layers`: (name, Partition) each, on one scale.

    The length of a bar is the time of its stage for a microbatch; the slowest is told, since the
    whole pipeline moves at its pace. Replicas and shared channels shorten the bar of a stage.
    `caption` says where the layers' times come from.
    """
    if not cuts:
        raise ValueError("There is nothing to draw: give (name, Partition) pairs.")
    layers = [layer if isinstance(layer, Layer) else Layer(layer) for layer in layers]
    names = [str(name) for name in names] or [str(number) for number in range(len(layers))]
    if len(names) != len(layers):
        raise ValueError(f"{len(names)} names are given for {len(layers)} layers.")
    story, data = ["stages, and the time of each for a microbatch"], []
    for name, made in cuts:
        times = [stage_time(layers, stage, bandwidth) for stage in made.stages]
        story.append(f"  {name}: slowest stage {style.amount(max(times), unit)}: {made}")
        stages = [
            {"name": str(stage), "time": time, "ranks": stage.ranks,
             "layers": [{"name": names[i], "time": layers[i].time}
                        for i in range(stage.first, stage.last)]}
            for stage, time in zip(made.stages, times)
        ]  # fmt: skip
        data.append({"name": name, "stages": stages})
    told = captions.joined(_caption(bandwidth), caption)
    data = {"cuts": data, "unit": unit, "caption": told}
    return Picture("\n".join(story), ("partition", data))


def _caption(bandwidth: float) -> str:
    first = "Predicted: the sum of the times given for a stage's layers, divided among its ranks"
    if bandwidth == float("inf"):
        return f"{first}; communication takes no time"
    return f"{first}, which exchange bytes at {style.amount(bandwidth, 'B/s')}"
