"""The kernel's ends of the connections to a rank: nothing here blocks, so the stop button is heard.

A rank may be stopped in the middle of a message, and a message may be larger than what fits into
the connection at once. What cannot be sent now waits, and what arrives in pieces is put together.
"""

import os
from collections import deque

from lib.ranks.transport import framing, packing


class Outbox:
    """Messages on their way to a rank."""

    def __init__(self, connection):
        self.descriptor, self.rest = connection.fileno(), deque()
        os.set_blocking(self.descriptor, False)

    def put(self, pieces: list[memoryview]) -> bool:
        """Add the `framing.pieces` of a message, send what can go now; True if none is left."""
        self.rest.extend(pieces)
        return self.flush()

    def flush(self) -> bool:
        """Send what can be sent now; True if nothing is left. OSError if the rank is gone."""
        while self.rest:
            try:
                sent = os.write(self.descriptor, self.rest[0])
            except BlockingIOError:
                return False
            if sent == len(self.rest[0]):
                self.rest.popleft()
            else:
                self.rest[0] = self.rest[0][sent:]
        return True


class Inbox:
    """Messages that arrive from a rank."""

    def __init__(self, connection):
        self.arriving = framing.messages(connection)
        os.set_blocking(connection.fileno(), False)

    def read(self) -> list | None:
        """Give a message, or None if none is complete.

        Raises EOFError or OSError at the end of the connection, and framing.TooLarge for a message
        that has no room here; the next one can then be read.
        """
        message = next(self.arriving)
        if isinstance(message, framing.TooLarge):
            raise message
        return message


def unpacked(buffers: list):
    """Unpack what a rank sent; where that fails, give an answer that says so."""
    try:
        return packing.unpack(buffers)
    except Exception as error:  # it could be packed there, and cannot be unpacked here
        reason = f"it arrived, but cannot be unpacked here: {type(error).__name__}: {error}"
        return failed("unpicklable", reason)


def failed(kind: str, text: str) -> tuple:
    """Write the answer of a rank whose own answer cannot be had."""
    return (None, "raised", {"type": kind, "text": text}, [])
