"""Columns of the ledger: NumPy arrays of numbers, and words with a code for each row."""

from typing import NamedTuple

import numpy as np

TUPLES = ("members", "parts")  # columns whose values are tuples of numbers


class Words(NamedTuple):
    """Holds a column of repeated values: the value of row i is `words[codes[i]]`."""

    words: list
    codes: np.ndarray  # int32

    def tolist(self) -> list:
        """Return the value of every row as a list."""
        return list(map(self.words.__getitem__, self.codes.tolist()))

    def mask(self, test) -> np.ndarray:
        """Return True for rows whose word passes `test`, which is called once a word."""
        return np.array([bool(test(word)) for word in self.words], bool)[self.codes]

    def ordered(self) -> "Words":
        """Return the column with its words sorted and no unused ones: codes then sort as words."""
        used = np.unique(self.codes).tolist()
        words = sorted({self.words[code] for code in used})
        code_of = {word: code for code, word in enumerate(words)}
        new = np.zeros(len(self.words), np.int32)
        new[used] = [code_of[self.words[code]] for code in used]
        return Words(words, new[self.codes])


def intern(values) -> Words:
    """Return `values` as a Words, which keeps each distinct value once."""
    table: dict = {}
    codes = np.fromiter((table.setdefault(v, len(table)) for v in values), np.int32, len(values))
    return Words(list(table), codes)


def numbers(name: str, values, dtype) -> np.ndarray:
    """Return one column of numbers; raise ValueError for fractions in a column of whole numbers."""
    array = np.array(values, np.float64 if dtype is np.float64 else None)
    if array.ndim != 1:
        raise ValueError(f"Column {name!r} has {array.ndim} dims. Give one number for each row.")
    if array.size and dtype is not np.float64 and array.dtype.kind not in "iu":
        raise ValueError(
            f"Column {name!r} must hold whole numbers, but its dtype is {array.dtype}."
        )
    return array.astype(dtype, copy=False)


def take(column, index):
    """Return the rows that `index` (positions, a mask or a slice) selects."""
    return Words(column.words, column.codes[index]) if isinstance(column, Words) else column[index]


def join(parts: list):
    """Join the same column of several ledgers end to end."""
    if not isinstance(parts[0], Words):
        return np.concatenate(parts)
    table: dict = {}
    codes = [
        np.array([table.setdefault(w, len(table)) for w in part.words], np.int32)[part.codes]
        for part in parts
    ]
    return Words(list(table), np.concatenate(codes))


def keys(columns: list) -> np.ndarray:
    """Return an int64 for each row: equal where all columns are equal, and in their order."""
    key, sizes = np.int64(0), 1
    for column in columns:
        if isinstance(column, Words):
            code, size = column.codes.astype(np.int64), len(column.words)
        elif column.dtype.kind == "i":
            code = column - column.min(initial=0)
            size = int(code.max(initial=0)) + 1
        else:
            values, code = np.unique(column, return_inverse=True)
            size = len(values)
        if sizes * size >= 2**63:  # 64 bits are too few: renumber the keys so far without gaps
            distinct, key = np.unique(key, return_inverse=True)
            sizes = len(distinct)
        key, sizes = key * size + code, sizes * max(size, 1)
    return key
