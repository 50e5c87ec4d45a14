"""Columns of a picture as they travel to the browser: whole numbers, as small as they can be."""

from math import ceil, log10

import numpy as np


def tick_of(span: float, events: int) -> float:
    """Return the unit of times that travel: a power of ten of a second, finer for few events."""
    steps = 2e7 if events <= 500 else 2e6 if events <= 2_000 else 2e5
    return 10.0 ** ceil(log10(span / steps) - 1e-9)


def whole(seconds: np.ndarray, tick: float) -> np.ndarray:
    """Seconds in whole ticks."""
    return np.rint(seconds / tick).astype(np.int64)


def column(values: np.ndarray):
    """Return a list of whole numbers; one number if all are the same."""
    values = np.asarray(values)
    if not len(values) or (values == values[0]).all():
        return int(values[0]) if len(values) else 0
    return values.tolist()


def coded(values: np.ndarray) -> dict:
    """Return a column of few different numbers: each once, and its place for each row."""
    known, codes = np.unique(values, return_inverse=True)
    return {"of": known.tolist(), "at": column(codes)}


def pairs(values: np.ndarray) -> list:
    """Return a sorted column as [value, how many, value, how many, ...]."""
    known, counts = np.unique(values, return_counts=True)
    return np.stack([known, counts], 1).ravel().tolist()
