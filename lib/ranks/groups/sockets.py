"""The TCP connections of a gloo group: which they are, and that both their ends are members.

[Note: strangers]
While a group is made, gloo listens on a loopback port that every user of the machine can reach, and
takes whoever says a small number for the member that it expects. So the members compare notes
before the group is first used: each writes into the world's private folder which connections its
group holds, as (own address, peer's). One between two members stands there twice, once from
each end. One to a stranger stands there once, since no other process can hold its far end.
"""

import contextlib
import ctypes
import os
import platform
import re
import select
import socket
import stat
import struct
import sys
from typing import NamedTuple

_TIME = struct.calcsize("ll")  # bytes of a struct timeval


class End(NamedTuple):
    """This process's end of a connection, or a listening socket, whose `peer` is None."""

    descriptor: int
    own: str  # an address, `127.0.0.1:40001`
    peer: str | None
    taken: bool  # gloo has made it the connection to a member: it then sets a limit on reading
    inode: int  # of the socket: descriptors are given again, this number is not


def ends() -> set[End]:
    """Give the TCP sockets of this process that listen or are connected."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as end:
                    found |= _end(int(name), end)
    return found


def _end(descriptor: int, end: socket.socket) -> set[End]:
    if end.type != socket.SOCK_STREAM or end.family not in (socket.AF_INET, socket.AF_INET6):
        return set()
    own, inode = _address(end.getsockname()), os.fstat(end.fileno()).st_ino
    if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return {End(descriptor, own, None, False, inode)}
    limit = any(end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME))
    taken = limit or not sys.platform.startswith("linux")  # gloo sets no limit on macOS
    return {End(descriptor, own, _address(end.getpeername()), taken, inode)}


def _address(name: tuple) -> str:
    return f"{name[0]}:{name[1]}"


def through(door: End, doors: set[str]) -> list[End]:
    """Give this process's connections that came in at its own `door` or lead to one of `doors`."""
    return [end for end in ends() if end.peer and (end.own == door.own or end.peer in doors)]


def only_members(links: list[list | None]) -> bool:
    """True if each two members hold one connection, with one end each, and there are no others.

    `links[r]` are the connections of member r as (own address, peer's); None if it failed.
    """
    if None in links:
        return False
    holder = {(own, peer): r for r, held in enumerate(links) for own, peer in held}
    pairs = {(r, holder.get((peer, own))) for (own, peer), r in holder.items()}
    size = len(links)
    every = {(a, b) for a in range(size) for b in range(size) if a != b}
    return pairs == every and sum(map(len, links)) == len(every)


def close_door(door: End, folder: str) -> None:
    """Stop listening, since all members are connected and nobody else may connect.

    Gloo keeps its listening port open for ever. Another socket laid over the descriptor closes the
    port, and gloo may still close the descriptor when it ends. The other socket listens too, where
    nobody can find it: gloo may be about to ask it for a connection, and ends the process where
    there is none to be had. On macOS the port stays open: who comes there is taken for nobody.
    """
    if not sys.platform.startswith("linux"):
        return
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as deaf:
            name = f"door-{os.getpid()}-{door.descriptor}"
            deaf.bind(f"/proc/self/fd/{directory}/{name}")  # short, however long the folder's name
            os.unlink(name, dir_fd=directory)
            deaf.setblocking(False)
            deaf.listen(1)
            if door in ends():
                os.dup2(deaf.fileno(), door.descriptor, inheritable=False)
    finally:
        os.close(directory)


def shut(connections: list[End]) -> None:
    """End connections: whoever waits on one, at either end, stops waiting within milliseconds."""
    for known in connections:
        with contextlib.suppress(OSError):  # closed already: nobody waits on it
            if not stat.S_ISSOCK(os.fstat(known.descriptor).st_mode):
                continue  # the number is another file's by now
            with socket.socket(fileno=os.dup(known.descriptor)) as end:
                if _end(known.descriptor, end) == {known}:
                    end.shutdown(socket.SHUT_RDWR)


def quieten(connections: list[End]) -> None:
    """Let gloo hear once, and not for ever, of connections that were shut and that it has kept.

    Where a rank stopped in the middle of a message, the tensor that took it is gone, and gloo never
    reads the rest. Its thread is told at once, again and again, that there is something to read,
    and takes a whole core until the rank ends (gloo in PyTorch 2.13). Told only of what is new, it
    sleeps. What gloo keeps beside the descriptor stays, so gloo may still close the connection.
    """
    if not sys.platform.startswith("linux"):
        return
    kept = {(end.descriptor, end.inode) for end in connections}
    libc = ctypes.CDLL(None, use_errno=True)
    for name in os.listdir("/proc/self/fdinfo"):
        for descriptor, data, inode in _watched(name):
            if (descriptor, inode) in kept:
                event = _Event(select.EPOLLIN | select.EPOLLET, data)
                libc.epoll_ctl(int(name), _CHANGE, descriptor, ctypes.byref(event))


_CHANGE = 3  # EPOLL_CTL_MOD
_WATCHED = re.compile(r"tfd:\s*(\d+)\s+events:.*?data:\s*([0-9a-f]+).*?ino:([0-9a-f]+)")


class _Event(ctypes.Structure):
    """The kernel's struct epoll_event, which is packed on x86 alone."""

    _pack_ = 1 if platform.machine() in ("x86_64", "AMD64", "i686") else 0
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


def _watched(name: str) -> list[tuple[int, int, int]]:
    """Give what one of this process's descriptors watches, if it is an epoll's."""
    try:
        with open(f"/proc/self/fdinfo/{name}", encoding="ascii") as about:
            found = _WATCHED.findall(about.read())
    except OSError:  # closed meanwhile
        return []
    return [(int(number), int(data, 16), int(inode, 16)) for number, data, inode in found]
