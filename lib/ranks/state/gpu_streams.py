"""What a GPU's stream still waits for: a rank that has gone on may be stuck there all the same.

[Note: waits that block nobody]
On NCCL `work.wait()` and synchronous operations hold up the GPU's stream and let the processor go
on. A rank would come to the end of its call, and only reading a result would block: in C++, with
the interpreter held, where nothing can see it or end it. So a rank notes what its stream waits for,
and at the end of a call it waits in Python until all of that has come, seen on the board.
"""

import time

import torch

from lib.ranks.state.ambient import own_device
from lib.ranks.state.default_device import is_gpu
from lib.ranks.state.this_rank import this_rank

_pending: list[tuple] = []  # (tag, number, what tells whether it is over), oldest first


def waited(work, tag: int, number: int) -> None:
    """Note that the stream waits for `work` from now on, unless it is over."""
    if not work.is_completed():
        _note(tag, number, work.is_completed)


def launched(tag: int, number: int) -> None:
    """Note a synchronous operation that was just launched in the current stream of a GPU."""
    if not is_gpu(own_device()):
        return
    mark = torch.Event(device=own_device())
    mark.record()
    _note(tag, number, mark.query)


def settle() -> None:
    """Wait, seen on the board and in Python, until the stream has come to what was noted last."""
    while _pending:
        tag, number, is_over = _pending[0]
        if not is_over():
            this_rank.waiting(tag, number)
            try:
                poll(is_over)
            finally:
                this_rank.running()
        del _pending[0]


def forget() -> None:
    """Forget what was noted: its groups have ended."""
    _pending.clear()


def one_at_a_time(group=None) -> bool:
    """Tell whether messages of two ranks wait for one another, as on NCCL: each pair has one lane.

    Two opposite ones that are not launched together then block each other.
    """
    group = group or torch.distributed.group.WORLD
    return getattr(group, "streamed", False)


def _note(tag, number, is_over) -> None:
    while _pending and _pending[0][2]():
        del _pending[0]
    _pending.append((tag, number, is_over))


def poll(is_over) -> None:
    """Wait in Python, where a signal ends it, until `is_over()`."""
    pause = 0.00002
    while not is_over():
        time.sleep(pause)
        pause = min(2 * pause, 0.001)
