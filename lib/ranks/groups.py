"""The process group of a rank: made on loopback, behind closed doors; ended at once if need be."""

import datetime
import os
import socket
import stat
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo

from lib.ranks import batch
from lib.ranks.board import tag_of
from lib.ranks.desk import desk
from lib.ranks.observe import ObservedGroup

# Long on purpose: a wait that cannot end is found on the board, not by this clock.
_TIMEOUT = datetime.timedelta(hours=6)
_open_groups: list[ObservedGroup] = []
_never_ended: list = []


class PatientStore(dist.Store):
    """A file store whose waits are Python, so that the stop button reaches them."""

    def __init__(self, path: str, size: int):
        super().__init__()
        self.inner = dist.FileStore(path, size)
        self.stopped = False

    def get(self, key):
        self.wait([key])
        return self.inner.get(key)

    def wait(self, keys, timeout=None):
        pause = 0.0001
        while not self.inner.check(keys):
            if self.stopped:
                raise RuntimeError("stopped while waiting for the other ranks to join a group")
            time.sleep(pause)
            pause = min(2 * pause, 0.005)

    def set(self, key, value):
        return self.inner.set(key, value)

    def add(self, key, amount):
        return self.inner.add(key, amount)

    def check(self, keys):
        return self.inner.check(keys)

    def compare_set(self, key, expected, desired):
        return self.inner.compare_set(key, expected, desired)

    def delete_key(self, key):
        return self.inner.delete_key(key)

    def num_keys(self):
        return self.inner.num_keys()

    def set_timeout(self, timeout):
        pass


def _create(options, _):
    """Make one observed group; torch calls this for the world and for every subgroup."""
    rank, size = options.group_rank, options.group_size
    members = tuple(options.global_ranks_in_group) or tuple(range(size))
    key = tag_of("join", options.group_id, members)
    if desk.board:  # joining is a collective too: who never comes is named
        desk.board.post(desk.rank, key, 0, f"new_group {list(members)}", "", time.monotonic_ns())
        desk.board.count(desk.rank, key, 1, members, "joining")
        desk.waiting(key, 0)
    inner = ProcessGroup(options.store, rank, size)
    gloo_options = ProcessGroupGloo._Options()
    gloo_options._timeout = _TIMEOUT
    gloo_options._devices = [_gloo_device()]
    gloo = ProcessGroupGloo(options.store, rank, size, gloo_options)
    group = ObservedGroup(inner, rank, size, members, options.group_id)
    kinds = {"cpu": (ProcessGroup.BackendType.GLOO, gloo)}
    if torch.cuda.is_available():
        kinds["cuda"] = kinds["cpu"]
        if _wants_nccl:
            kinds["cuda"] = (ProcessGroup.BackendType.NCCL, _nccl(options.store, rank, size))
    for device, (kind, backend) in kinds.items():
        for owner in (inner, group):
            owner._register_backend(torch.device(device), kind, backend)
    for owner in (inner, group):
        owner._set_default_backend(kinds[max(kinds)][0])
    group.sliced = not _wants_nccl
    group.staged = "cuda" in kinds and kinds["cuda"] is kinds["cpu"]
    if desk.board:
        close_doors()
        desk.running()
    _open_groups.append(group)
    return group


def _gloo_device():
    """Listen on loopback alone; under a launcher, on the address that faces the first host."""
    master = os.environ.get("MASTER_ADDR")
    if desk.board or not master:
        return ProcessGroupGloo.create_device(hostname="127.0.0.1")
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return ProcessGroupGloo.create_device(interface=os.environ["GLOO_SOCKET_IFNAME"])
    family, kind, *_, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as end:
        end.connect(address)  # sends nothing: it asks which way the packets would leave
        return ProcessGroupGloo.create_device(hostname=end.getsockname()[0])


def _nccl(store, rank, size):
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


_wants_nccl = False
_store: PatientStore | None = None


def _join(rank: int, size: int, **meeting) -> None:
    if "ranks" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ranks", _create, extended_api=True, devices=["cpu", "cuda"])
    if _wants_nccl:
        batch.install()
    dist.init_process_group("ranks", rank=rank, world_size=size, timeout=_TIMEOUT, **meeting)


def _take_gpu(number: int) -> None:
    torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_default_device(f"cuda:{number % torch.cuda.device_count()}")


def join_launched(rank: int, size: int, local: int, device: str) -> None:
    """Join the world that a launcher describes in the environment, in an observed group."""
    global _wants_nccl
    _wants_nccl = device == "cuda"
    if _wants_nccl:
        _take_gpu(local)
    _join(rank, size, init_method="env://")


def rejoin(path: str, rank: int, size: int, device: str, nccl: bool, why: str) -> None:
    """Leave every group; meet the other ranks at the file `path`, which only its owner can open.

    Whatever still holds an old group is told `why` when it is used.
    """
    global _wants_nccl, _store
    leave(why)
    desk.board.clear(rank)
    if device == "cuda":
        _take_gpu(rank)
    _wants_nccl, _store = nccl, PatientStore(path, size)
    _join(rank, size, store=_store)


def leave(why: str) -> None:
    """Leave every group; whatever still holds one is told `why` when it is used."""
    for group in _open_groups:
        group.closed = why
    if desk.abandoned:  # their end would wait for threads that never come back
        _never_ended.extend((group, group.inner) for group in _open_groups)
        desk.abandoned = False
    _open_groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def cut() -> None:
    """End every wait of this rank at once, and through it its partners'; Python state survives.

    Gloo has no way to be interrupted, but a connection that closes ends a wait within milliseconds.
    """
    if _store is not None:
        _store.stopped = True
    if desk.slow:
        desk.slow.close()  # waits that slow motion has made longer
    for _, end in _tcp_sockets():
        with end:
            try:
                end.getpeername()
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected: nobody waits on it
    if _wants_nccl:
        for group in list(_open_groups):
            group.inner.abort()


def _tcp_sockets() -> list[tuple[int, socket.socket]]:
    """Give this process's TCP sockets as (descriptor, a duplicate of it)."""
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            end = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
            found.append((int(name), end))
        else:
            end.close()
    return found


def close_doors() -> None:
    """Stop listening: once all members are connected nobody else has a reason to knock.

    Gloo keeps its listening port open for ever. Another socket laid over the descriptor closes the
    port, and gloo may still close the descriptor when it ends.
    """
    if not sys.platform.startswith("linux"):
        return
    for descriptor, end in _tcp_sockets():
        with end, socket.socket() as idle:
            if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                os.dup2(idle.fileno(), descriptor)
