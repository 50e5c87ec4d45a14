"""Small trainings on the CPU with one thread, which are the same on every machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: for small matrices, more are slower and take far more of the cores.

    The order of sums then does not depend on how many cores a machine has.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute with one thread, and make new tensors on the CPU."""
    with one_thread(), torch.device("cpu"):
        yield
