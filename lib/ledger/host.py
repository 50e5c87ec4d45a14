"""Says whether what runs now runs on the host, and not on the device that is recorded.

[Note: two memories]
A GPU and the machine around it have a memory each, and a link between them (PCIe). On the CPU both
are one, so a recording cannot see the difference by itself. `lib/single/host_memory.py` says it
here: while `on_host` is true, what is made lies in the host's memory and what is computed takes the
time of the host's processor. `lib/ranks/memory.py` and slow motion ask. A storage that belongs to
the host for good carries the attribute `in_host_memory`.
"""

from contextlib import contextmanager
from contextvars import ContextVar

on_host: ContextVar[bool] = ContextVar("on_host", default=False)


@contextmanager
def as_the_host():
    """Count what runs inside as the host's."""
    token = on_host.set(True)
    try:
        yield
    finally:
        on_host.reset(token)
