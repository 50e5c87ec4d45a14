"""The ledger's columns: NumPy arrays of numbers, and words kept once with a code for each row."""

from typing import NamedTuple

import numpy as np


class Words(NamedTuple):
    """A column of repeated values: row i holds `words[codes[i]]`."""

    words: list
    codes: np.ndarray  # int32

    def tolist(self) -> list:
        """Spell every row out."""
        return list(map(self.words.__getitem__, self.codes.tolist()))

    def mask(self, test) -> np.ndarray:
        """True for the rows whose word passes `test`, which is asked once for each word."""
        return np.array([bool(test(word)) for word in self.words], bool)[self.codes]

    def ordered(self) -> "Words":
        """The same column with its words sorted and none unused, so that codes compare as words."""
        used = np.unique(self.codes).tolist()
        words = sorted({self.words[code] for code in used})
        place = {word: code for code, word in enumerate(words)}
        new = np.zeros(len(self.words), np.int32)
        new[used] = [place[self.words[code]] for code in used]
        return Words(words, new[self.codes])


def intern(values) -> Words:
    """Keep each different value once."""
    table: dict = {}
    codes = np.fromiter((table.setdefault(v, len(table)) for v in values), np.int32, len(values))
    return Words(list(table), codes)


def numbers(name: str, values, dtype) -> np.ndarray:
    """Read one column of numbers; a fraction in a column of whole numbers is refused."""
    array = np.array(values, np.float64 if dtype is np.float64 else None)
    if array.ndim != 1:
        raise ValueError(f"Column {name!r} has {array.ndim} dims: give one number a row.")
    if array.size and dtype is not np.float64 and array.dtype.kind not in "iu":
        raise ValueError(f"Column {name!r} counts in whole numbers: {array.dtype} is not that.")
    return array.astype(dtype, copy=False)


def take(column, index):
    """Keep the rows that `index` (positions, a mask or a slice) selects."""
    return Words(column.words, column.codes[index]) if isinstance(column, Words) else column[index]


def join(parts: list):
    """Put the same column of several ledgers end to end."""
    if not isinstance(parts[0], Words):
        return np.concatenate(parts)
    table: dict = {}
    codes = [
        np.array([table.setdefault(w, len(table)) for w in part.words], np.int32)[part.codes]
        for part in parts
    ]
    return Words(list(table), np.concatenate(codes))


def keys(columns: list) -> np.ndarray:
    """One int64 for each row, equal where all columns are equal, in the order of the columns."""
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
        if sizes * size >= 2**63:  # too wide for 64 bits: number the keys met so far, and go on
            met, key = np.unique(key, return_inverse=True)
            sizes = len(met)
        key, sizes = key * size + code, sizes * max(size, 1)
    return key
