"""Profiles of models that their authors measured and published (data/vgg16.csv)."""

import csv
from pathlib import Path

from lib.predict.pipeline.cuts import Layer

_DATA = Path(__file__).parents[4] / "data"


def vgg16() -> dict[str, Layer]:
    """Return the input and the 36 layers of VGG-16, as the authors of PipeDream profiled them.

    One GPU, which they do not name, with 128 images in a microbatch. Sources and units stand at the
    top of data/vgg16.csv. The input takes no time here: their partitioner leaves it out, since it
    always belongs to the first stage (optimizer/optimizer_graph_hierarchical.py, `main`).
    """
    lines = (_DATA / "vgg16.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    layers = {}
    for row in rows:
        seconds = (float(row["forward_ms"]) + float(row["backward_ms"])) / 1e3
        layers[row["layer"]] = Layer(
            0.0 if row["layer"] == "input" else seconds,
            float(row["activation_bytes"]),
            float(row["weight_bytes"]),
        )
    return layers
