"""Profiles of models that their authors measured and published (data/vgg16.csv)."""

import csv
from pathlib import Path

from lib.predict.pipeline.cuts import Layer

_DATA = Path(__file__).parents[4] / "data"


def vgg16() -> dict[str, Layer]:
    """Return the 37 layers of VGG-16 by name, as the authors of PipeDream profiled them.

    One GPU, which they do not name, with 128 images in a microbatch. Sources and units stand at the
    top of data/vgg16.csv.
    """
    lines = (_DATA / "vgg16.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        row["layer"]: Layer(
            (float(row["forward_ms"]) + float(row["backward_ms"])) / 1e3,
            float(row["activation_bytes"]),
            float(row["weight_bytes"]),
        )
        for row in rows
    }
