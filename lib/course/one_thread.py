"""Small trainings on the CPU with one thread, which are the same on every machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute on the CPU with one thread: for small matrices, more are far slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_num_threads(threads)
