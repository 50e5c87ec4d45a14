"""How packed values travel along a connection: how many buffers, how long each is, the buffers."""

import os
import struct

_COUNT = struct.Struct("<I")
_CHUNK = 1 << 16  # bytes that one read brings at most, unless a buffer needs more


class TooLarge(MemoryError):
    """A message had no room in this process; `received` are the buffers that came before that."""

    def __init__(self, size: int, received: list):
        super().__init__(f"{size / 1e9:.1f} GB do not fit into the memory of this process.")
        self.received = received


def pieces(buffers: list) -> list[memoryview]:
    """Give the bytes of one message: how many buffers, how long each is, then the buffers."""
    head = struct.pack(f"<I{len(buffers)}Q", len(buffers), *(len(b) for b in buffers))
    if sum(map(len, buffers)) < _CHUNK:  # small ones cost one system call
        return [memoryview(head + b"".join(buffers))]
    return [memoryview(part).cast("B") for part in (head, *buffers) if len(part)]


def send(connection, buffers: list) -> None:
    """Write packed buffers to a connection as one message."""
    for piece in pieces(buffers):
        while piece:
            piece = piece[os.write(connection.fileno(), piece) :]


def receive(arriving) -> list:
    """Wait for the next of the `messages` of a connection that blocks; raise TooLarge."""
    while (message := next(arriving)) is None:
        pass
    if isinstance(message, TooLarge):
        raise message
    return message


def messages(connection):
    """Yield the messages that arrive, as lists of buffers; TooLarge for one that has no room.

    Yields None whenever all that was read is used up, and, where the connection does not block,
    whenever nothing more has come.
    """
    descriptor, ahead = connection.fileno(), bytearray()
    while True:
        if not ahead:
            try:
                ahead += os.read(descriptor, _CHUNK)
            except BlockingIOError:
                yield None
                continue
            if not ahead:
                raise EOFError
        if (message := _whole(ahead)) is not None:
            yield message
            if not ahead:
                yield None
            continue
        (count,) = struct.unpack("<I", (yield from _take(descriptor, ahead, 4)))
        sizes = struct.unpack(f"<{count}Q", (yield from _take(descriptor, ahead, 8 * count)))
        message = []
        for i, size in enumerate(sizes):
            try:
                message.append((yield from _take(descriptor, ahead, size)))
            except MemoryError:
                yield from _skip(descriptor, ahead, sum(sizes[i:]))
                message = TooLarge(sum(sizes), message)
                break
        yield message
        if not ahead:
            yield None


def _whole(ahead: bytearray) -> list | None:
    """Take the first message out of what has been read, if all of it is there."""
    if len(ahead) < 4:
        return None
    (count,) = _COUNT.unpack_from(ahead)
    start = 4 + 8 * count
    if len(ahead) < start:
        return None
    sizes = struct.unpack_from(f"<{count}Q", ahead, 4)
    if len(ahead) < start + sum(sizes):
        return None
    message = []
    for size in sizes:
        message.append(ahead[start : start + size])
        start += size
    del ahead[:start]
    return message


def _take(descriptor: int, ahead: bytearray, size: int):
    """Read `size` bytes; a small read takes along what comes behind them, into `ahead`."""
    if size <= len(ahead):
        buffer = ahead[:size]
        del ahead[:size]
        return buffer
    buffer = bytearray(size)
    rest = memoryview(buffer)
    while rest:
        try:
            if len(rest) >= _CHUNK and not ahead:
                read = os.readv(descriptor, [rest])
                if not read:
                    raise EOFError
                rest = rest[read:]
                continue
            if not ahead:
                ahead += os.read(descriptor, _CHUNK)
                if not ahead:
                    raise EOFError
        except BlockingIOError:
            yield None
            continue
        n = min(len(rest), len(ahead))
        rest[:n] = ahead[:n]
        del ahead[:n]
        rest = rest[n:]
    return buffer


def _skip(descriptor: int, ahead: bytearray, size: int):
    """Read `size` bytes and forget them."""
    while size:
        part = min(size, _CHUNK)
        yield from _take(descriptor, ahead, part)
        size -= part
