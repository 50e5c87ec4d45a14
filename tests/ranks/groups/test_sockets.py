"""The TCP connections of gloo, which a rank ends where a call has failed."""

import select
import socket
import sys

import pytest

from lib.ranks.groups import sockets


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_connection_that_was_shut_and_kept_is_told_of_once():
    """Case 33: gloo keeps the connection of a message whose tensor is gone; its thread spins."""
    with socket.create_server(("127.0.0.1", 0)) as door, select.epoll() as watch:
        with socket.create_connection(door.getsockname()) as near, door.accept()[0] as far:
            (kept,) = [end for end in sockets.ends() if end.descriptor == near.fileno()]
            other = kept._replace(inode=kept.inode + 1)  # of a socket that had the number before
            watch.register(near, select.EPOLLIN)
            far.send(b"rest")
            sockets.shut([kept])
            sockets.quieten([other])
            assert [len(watch.poll(0)) for _ in range(3)] == [1, 1, 1]  # as gloo would be told
            sockets.quieten([kept])
            assert [len(watch.poll(0)) for _ in range(3)] == [1, 0, 0]
            watch.unregister(near)  # as gloo does before it closes one
