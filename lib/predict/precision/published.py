"""Published throughput in two number formats on the same GPU, beside what is predicted.

The figures are in data/precision.yaml, as their sources print them.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import yaml

from lib.predict.precision.step import of_step
from lib.predict.shape import GPTShape

_FILE = Path(__file__).parents[3] / "data" / "precision.yaml"


@functools.cache
def tables() -> dict:
    """Return the whole file; its keys are the models, each with its source and its rows."""
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


class Compared(NamedTuple):
    """Holds samples per second in a wide and a half format: measured by others, and predicted."""

    gpu: str
    sequence: int
    formats: tuple[str, str]
    batches: tuple[int, int]
    measured: tuple[float, float]
    predicted: tuple[float, float]

    @property
    def ratios(self) -> tuple[float, float]:
        """Return how many times as fast the half format is: measured, predicted."""
        return self.measured[1] / self.measured[0], self.predicted[1] / self.predicted[0]

    @property
    def error(self) -> float:
        """Return by which share the predicted ratio is too large; below 0 it is too small."""
        measured, predicted = self.ratios
        return predicted / measured - 1


def bert_large() -> list[Compared]:
    """Return NVIDIA's measurements of pre-training BERT-Large on one GPU, beside ours.

    BERT is counted as the GPT with its sizes, whose attention is computed whole and keeps its
    scores for dropout; the last layer is counted for every token. The update, of another optimizer,
    comes once in so many microbatches that it is left out of neither.
    """
    table = tables()["bert_large"]
    shape = GPTShape(**table["sizes"])
    return [_compared(shape, row) for row in table["rows"]]


def _compared(shape: GPTShape, row: dict) -> Compared:
    predicted = []
    for precision, batch, times in zip(row["formats"], row["batches"], row["microbatches"]):
        cost = of_step(
            shape, batch, row["gpu"], precision, sequence=row["sequence"], microbatches=times
        )
        predicted.append(times * batch / cost.seconds)
    pairs = (tuple(row[name]) for name in ("formats", "batches", "throughput"))
    return Compared(row["gpu"], row["sequence"], *pairs, tuple(predicted))
