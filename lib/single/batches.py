"""Batches of tokens from a text, in an order that depends on the seed alone.

    tokens [B, S], targets [B, S]: the next byte at each position; the vocabulary has 256 entries

A share of a batch consists of rows, so all shares together are the batch itself.
"""

from pathlib import Path

import torch

from lib.predict.arguments import equal_share

COURSE = Path(__file__).parents[2] / "data" / "course.txt"  # a fixed copy of the course's own text


class Batches:
    """An endless sequence in which `batches[n]` is the n-th batch, (tokens, targets), [B, S] each.

    The text is cut into samples of `sequence` bytes and the byte after. An epoch uses every sample
    once, in an order drawn from `seed` and the epoch's number; samples at its end that do not fill
    a batch are left out. Raises ValueError for a text that does not fill one batch.
    """

    def __init__(self, batch: int, sequence: int = 64, *, text: str | Path = COURSE, seed: int = 0):
        raw = text.read_bytes() if isinstance(text, Path) else text.encode()
        data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        self.samples = data.unfold(0, sequence + 1, sequence) if len(data) > sequence else data[:0]
        self.batch, self.sequence, self.seed = batch, sequence, seed
        self.epoch = len(self.samples) // batch if batch > 0 else 0  # batches in an epoch
        if not self.epoch:
            raise ValueError(
                f"The text's {len(raw)} bytes make {len(self.samples)} samples of {sequence}, "
                f"which do not fill a batch of {batch}. Use a longer text or a smaller batch."
            )

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number < 0:
            raise IndexError(f"There is no batch {number}: batches count from 0.")
        rows = self.samples[self.sample_numbers(number).to(self.samples.device)].long()
        rows = rows.to(torch.get_default_device())
        return rows[:, :-1], rows[:, 1:]

    def sample_numbers(self, number: int) -> torch.Tensor:
        """Return the numbers of the text's samples that make up batch `number`: [B]."""
        epoch, position = divmod(number, self.epoch)
        generator = torch.Generator("cpu").manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.samples), generator=generator, device="cpu")
        return order[position * self.batch : (position + 1) * self.batch]


def share(batch, part: int, parts: int):
    """Return the rows of one of `parts` equal shares of every tensor in `batch`: [B/parts, ...].

    `batch` is one tensor, or nested lists, tuples and dicts of tensors; `part` counts from 0.
    Raises ValueError if the rows cannot be shared equally.
    """
    if isinstance(batch, dict):
        return {key: share(value, part, parts) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        pieces = [share(value, part, parts) for value in batch]
        return type(batch)(*pieces) if hasattr(batch, "_fields") else type(batch)(pieces)
    if not isinstance(batch, torch.Tensor):
        return batch
    if not 0 <= part < parts:
        raise ValueError(f"There is no part {part} of {parts}: parts count from 0.")
    if not batch.dim():
        raise ValueError("A batch of a single number, a tensor without dims, cannot be shared.")
    size = equal_share(batch.shape[0], parts, sharers="{} ranks or devices")
    return batch[part * size : (part + 1) * size]
