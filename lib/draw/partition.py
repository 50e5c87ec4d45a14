"""How a model is cut into stages: a bar for each stage, made of its layers."""

from lib.draw import style
from lib.draw.labels import tint
from lib.draw.picture import Mark, Picture
from lib.draw.plain import plain
from lib.draw.scales import axis
from lib.predict.partition import Layer, Partition, stage_time

_RIGHT, _TALL, _GAP, _HEAD = 24, 20, 4, 24  # px


def partition(layers, *cuts: tuple[str, Partition], names=(), unit: str = "s",
              bandwidth: float = float("inf")) -> Picture:  # fmt: skip
    """Draw one or more ways to cut `layers`: (name, Partition) each, on one scale.

    The length of a bar is the time of its stage for a microbatch; the slowest is told, since the
    whole pipeline moves at its pace. Replicas and shared channels shorten the bar of a stage.
    """
    if not cuts:
        raise ValueError("There is nothing to draw: give (name, Partition) pairs.")
    layers = [layer if isinstance(layer, Layer) else Layer(layer) for layer in layers]
    names = list(names) or [str(number) for number in range(len(layers))]
    if len(names) != len(layers):
        raise ValueError(f"{len(names)} names are given for {len(layers)} layers.")
    every = [[stage_time(layers, s, bandwidth) for s in made.stages] for _, made in cuts]
    most = max(max(times) for times in every)
    left = 40 + max(len(str(stage)) for _, made in cuts for stage in made.stages) * style.LETTER
    pixels = (style.WIDTH - left - _RIGHT) / most
    marks, y, story = [], 0.0, ["stages, and the time of each for a microbatch"]
    for (name, made), times in zip(cuts, every):
        slowest = max(times)
        told = f"{name}: slowest stage {style.amount(slowest, unit)}"
        marks.append(Mark("text", 8, y + _HEAD / 2, fill=style.INK, text=told))
        y += _HEAD
        for stage, time in zip(made.stages, times):
            marks.append(Mark("text", left - 8, y + _TALL / 2, fill=style.FAINT, text=str(stage),
                              align="right"))  # fmt: skip
            marks += _bar(layers[stage.first : stage.last], names[stage.first : stage.last],
                          left, y, time * pixels, stage)  # fmt: skip
            y += _TALL + _GAP
        x = left + slowest * pixels
        top = y - (_TALL + _GAP) * len(made.stages)
        marks.append(Mark("line", edge=style.INK, dash=True, points=((x, top), (x, y - _GAP))))
        story.append(f"  {told}: {made}")
        y += 6
    marks += axis(left, style.WIDTH - _RIGHT, y, most, unit)
    return plain(
        marks, y + 2 * style.LINE, "\n".join(story), "Stages and their layers", left=left - 1
    )


def _bar(layers, names, x: float, y: float, wide: float, stage) -> list[Mark]:
    """The layers of a stage side by side, each as long as its share of the stage's time."""
    marks, total = [], sum(layer.time for layer in layers) or 1.0
    ranks = f", on {stage.ranks} ranks" if stage.ranks > 1 else ""
    for number, (layer, name) in enumerate(zip(layers, names)):
        w = wide * layer.time / total
        shade = tint(style.colour("forward"), 1.0 if number % 2 == 0 else 0.72)
        about = f"{name}: {layer.time / total:.0%} of stage {stage}{ranks}"
        marks.append(Mark("box", x, y, w, _TALL, fill=shade, edge=style.PAPER, about=about))
        if w > len(name) * style.LETTER + 6:
            marks.append(Mark("text", x + w / 2, y + _TALL / 2, fill=style.on(shade), text=name,
                              align="middle"))  # fmt: skip
        x += w
    return marks
