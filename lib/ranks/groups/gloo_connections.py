"""Gloo's part of a group on one machine: connected with the other members, and with nobody else."""

import datetime
import json
import os

import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from lib.ranks.groups import sockets
from lib.ranks.state.this_rank import this_rank

# Once all are there, connecting takes milliseconds; a member that died meanwhile is not waited for.
_LIMIT = datetime.timedelta(seconds=3)
_ATTEMPTS = 30


def members_only(store, rank: int, size: int, timeout) -> tuple[ProcessGroupGloo, list]:
    """Connect with the other members; give gloo and its connections (see [Note: strangers]).

    Where a stranger took a member's place all start anew. Gloo opens its port only when all are
    there: it is open for milliseconds, however late one of them comes. Raises RuntimeError when the
    call is ended, or when strangers came between again and again.
    """
    folder = os.path.dirname(this_rank.board.path)
    for attempt in range(_ATTEMPTS):
        meeting = dist.PrefixStore(f"attempt {attempt}", store)
        _exchange(meeting, "here", rank, size, True)
        device, door = _listen()
        try:
            _tell(meeting, "door", rank, door.own)
            backend = gloo(meeting, rank, size, device, _LIMIT)
        except RuntimeError:
            backend = None
        finally:
            sockets.close_door(door, folder)  # who comes from now on stays outside
        held = sockets.through(door, set(_exchange(meeting, "door", rank, size, door.own)))
        links = [(end.own, end.peer) for end in held if end.taken] if backend else None
        if sockets.only_members(_exchange(meeting, "links", rank, size, links)):
            sockets.shut([end for end in held if not end.taken])  # strangers
            backend.set_timeout(timeout)
            return backend, [end for end in held if end.taken]
    raise RuntimeError(
        f"The ranks could not connect with each other alone in {_ATTEMPTS} attempts. Another "
        "program on this machine keeps connecting to the ports that are open on loopback while a "
        "group is made. It got no answer, and nothing of it was used. Look for that program "
        "(`ss -tnp` lists connections), and run the cell again."
    )


def gloo(store, rank: int, size: int, device, timeout) -> ProcessGroupGloo:
    """Make gloo's backend on one device."""
    options = ProcessGroupGloo._Options()
    options._timeout, options._devices = timeout, [device]
    return ProcessGroupGloo(store, rank, size, options)


def _listen():
    """Open gloo's port on loopback; give the device and its listening socket."""
    while True:
        before = sockets.ends()
        device = ProcessGroupGloo.create_device(hostname="127.0.0.1")
        doors = [end for end in sockets.ends() - before if not end.peer]
        if len(doors) == 1:  # else a thread of the reader's opened one at the same moment
            return device, doors[0]


def _tell(store, what: str, rank: int, value) -> None:
    store.set(f"{what} {rank}", json.dumps(value))


def _exchange(store, what: str, rank: int, size: int, value) -> list:
    """Give every member's value, by rank; wait until all have told theirs."""
    _tell(store, what, rank, value)
    return [json.loads(store.get(f"{what} {other}")) for other in range(size)]
