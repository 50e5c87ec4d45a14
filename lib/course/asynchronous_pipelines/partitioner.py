"""What PipeDream's partitioner answers for a profile, as chapter 7 prints it."""

from dataclasses import replace

from lib.predict.pipeline.cuts import Layer, with_replicas

SPEEDS = (0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0)  # GB/s


def free_messages(layers: list[Layer]) -> list[Layer]:
    """Return the layers with outputs of 0 bytes, so that messages between stages take no time."""
    return [replace(layer, activation=0) for layer in layers]


def first_stages(layers: list[Layer], speeds=SPEEDS, gpus=(4, 8, 16)) -> str:
    """Write the first stage of `with_replicas`: a row for each speed, a column for each number.

    The speeds are in GB/s.
    """
    lines = [f"{'GPUs':<12}" + "".join(f"{n:<10}" for n in gpus)]
    for speed in speeds:
        cuts = [with_replicas(layers, [(n, speed * 1e9)]) for n in gpus]
        lines.append(f"{speed:<4} GB/s   " + "".join(f"{str(cut.stages[0]):<10}" for cut in cuts))
    return "\n".join(line.rstrip() for line in lines)
