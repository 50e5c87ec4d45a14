"""Batches of tokens from a text: which samples come when depends on the seed and nothing else.

    tokens [B, S], targets [B, S]: the next byte at each place; a vocabulary of 256

Whoever shares a batch takes rows of it, so that the shares put together are the batch itself.
"""

from pathlib import Path

import torch

COURSE = Path(__file__).parents[2] / "data" / "course.txt"  # the course's own words, frozen


class Batches:
    """`batches[n]` is the n-th batch, (tokens [B, S], targets [B, S]); `share(batches[n], 0, 4)`.

    The text is cut into samples of `sequence` bytes and the one after. An epoch takes every sample
    once, in an order drawn from `seed` and the epoch's number; what is too little for a batch at
    its end is left out. Raises ValueError for a text that does not fill one batch.
    """

    def __init__(self, batch: int, sequence: int = 64, *, text: str | Path = COURSE, seed: int = 0):
        raw = text.read_bytes() if isinstance(text, Path) else text.encode()
        data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        self.samples = data.unfold(0, sequence + 1, sequence) if len(data) > sequence else data[:0]
        self.batch, self.sequence, self.seed = batch, sequence, seed
        self.epoch = len(self.samples) // batch if batch > 0 else 0  # batches in an epoch
        if not self.epoch:
            raise ValueError(
                f"{len(raw)} bytes are {len(self.samples)} samples of {sequence}: they do not "
                f"fill a batch of {batch}"
            )

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number < 0:
            raise IndexError(f"batches count from 0, and go on for ever: there is no {number}")
        rows = self.samples[self.places(number)].long()
        rows = rows.to(torch.get_default_device())
        return rows[:, :-1], rows[:, 1:]

    def places(self, number: int) -> torch.Tensor:
        """Say which samples of the text, by number, make up batch `number`: [B]."""
        epoch, place = divmod(number, self.epoch)
        generator = torch.Generator("cpu").manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.samples), generator=generator, device="cpu")
        return order[place * self.batch : (place + 1) * self.batch]


def share(batch, part: int, parts: int):
    """Give rows `part`·B/parts up to the next part's of every tensor in `batch`: [B/parts, ...].

    Takes one tensor, or nested lists, tuples and dicts of them. Raises ValueError if they do not
    share equally.
    """
    if isinstance(batch, dict):
        return {key: share(value, part, parts) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        pieces = [share(value, part, parts) for value in batch]
        return type(batch)(*pieces) if hasattr(batch, "_fields") else type(batch)(pieces)
    if not isinstance(batch, torch.Tensor):
        return batch
    if not 0 <= part < parts:
        raise ValueError(f"there is no part {part} of {parts}: they count from 0")
    rows = batch.shape[0] if batch.dim() else 1
    if not batch.dim() or rows % parts:
        raise ValueError(f"dim 0 has {rows} entries: {parts} cannot share them equally")
    return batch[part * rows // parts : (part + 1) * rows // parts]
