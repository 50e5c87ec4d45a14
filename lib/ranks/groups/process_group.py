"""The process group of a rank: made on loopback, closed to strangers, ended at once if needed."""

import datetime
import os
import sys
import time
import warnings
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo

from lib.ranks.gpus.devices import accelerator
from lib.ranks.groups import backend_names, gloo_connections, gpu_backend, sockets, subgroups
from lib.ranks.groups.addresses import own_address
from lib.ranks.groups.store import FolderStore
from lib.ranks.observed import coalescing
from lib.ranks.observed.observed_group import ObservedGroup
from lib.ranks.shared.notice_board import tag_of
from lib.ranks.shared.notice_slots import Kind, Launch
from lib.ranks.state import gpu_streams, torch_device
from lib.ranks.state.default_device import lead_threads, make_default
from lib.ranks.state.this_rank import this_rank, user_line

# Long on purpose: a wait that cannot end is found on the board, not by this clock.
_TIMEOUT = datetime.timedelta(hours=6)
_groups: list[weakref.ref] = []  # weak: a group that was destroyed must not stay because of us
_never_ended: list = []


def _create(options, _):
    """Make one observed group; torch calls this for the world and for every subgroup."""
    rank, size = options.group_rank, options.group_size
    members = tuple(options.global_ranks_in_group) or tuple(range(size))
    key = tag_of("join", options.group_id, members)
    if this_rank.board:  # joining is a collective too: who never comes is named
        launch, line = (
            Launch(Kind.JOIN, "new_group", str(list(members))),
            user_line(sys._getframe(1)),
        )
        this_rank.board.post(this_rank.rank, key, 0, launch, line, time.monotonic_ns())
        this_rank.board.count(this_rank.rank, key, 1, members, "joining", Kind.JOIN)
        this_rank.waiting(key, 0)
    inner = ProcessGroup(options.store, rank, size)
    group = ObservedGroup(inner, rank, size, members, options.group_id)
    if this_rank.board:
        group.message_limit = _TIMEOUT
        gloo, group.connections = gloo_connections.members_only(options.store, rank, size, _TIMEOUT)
    else:
        gloo = gloo_connections.gloo(options.store, rank, size, _launched_device(), _limit(options))
    carriers = {"cpu": (ProcessGroup.BackendType.GLOO, gloo)}
    gpus = accelerator()
    if gpus and _wants_nccl:
        carriers[gpus] = gpu_backend.make(gpus, options.store, rank, size, _limit(options))
    elif gpus:
        carriers[gpus] = carriers["cpu"]
    for device, (kind, backend) in carriers.items():
        for owner in (inner, group):
            owner._register_backend(torch.device(device), kind, backend)
    for owner in (inner, group):
        owner._set_default_backend(carriers[gpus or "cpu"][0])
    group.sliced, group.streamed = not _wants_nccl, _wants_nccl
    group.staged = bool(gpus) and not _wants_nccl
    this_rank.running()
    _groups[:] = [known for known in _groups if known()] + [weakref.ref(group)]
    return group


def _launched_device():
    """Listen where the other hosts can come; on loopback where there is no launcher."""
    if "MASTER_ADDR" not in os.environ:
        return ProcessGroupGloo.create_device(hostname="127.0.0.1")
    if "GLOO_SOCKET_IFNAME" in os.environ:  # PyTorch takes several, such as eth0,eth1
        first = os.environ["GLOO_SOCKET_IFNAME"].split(",")[0]
        return ProcessGroupGloo.create_device(interface=first)
    return ProcessGroupGloo.create_device(hostname=own_address(os.environ["MASTER_ADDR"]))


def _limit(options) -> datetime.timedelta:
    """Give how long a wait in a group may take: what was chosen for it, where no board watches."""
    if this_rank.board:
        return _TIMEOUT
    unsaid = options.timeout == dist.constants.default_pg_timeout
    return _launched_timeout if unsaid else options.timeout


_wants_nccl = False
_launched_timeout = dist.constants.default_pg_timeout
_store: FolderStore | None = None


def _join(rank: int, size: int, store: dist.Store, timeout=_TIMEOUT) -> None:
    if "ranks" not in dist.Backend.backend_list:
        devices = list(filter(None, ["cpu", accelerator()]))
        dist.Backend.register_backend("ranks", _create, extended_api=True, devices=devices)
    coalescing.install()
    subgroups.install()
    backend_names.install()
    dist.init_process_group("ranks", rank=rank, world_size=size, timeout=timeout, store=store)


def _take_gpu(device: str, number: int) -> None:
    """Take one GPU, before anything else touches one: a rank must use no other."""
    torch.accelerator.set_device_index(number)
    # The thread of backward has no context before its first product, which is as it should be.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA")
    make_default(f"{device}:{number}")
    lead_threads(f"{device}:{number}")


def join_launched(rank: int, size: int, number: int, device: str, store, timeout) -> None:
    """Join the world that a launcher started, in an observed group; on a GPU it is `number`.

    Without a `timeout` it is PyTorch's own: no board finds a wait that cannot end.
    """
    global _wants_nccl, _launched_timeout
    _wants_nccl = device != "cpu"
    torch_device.follow(device)
    if _wants_nccl:
        _take_gpu(device, number)
    nccl = dist.constants.default_pg_nccl_timeout if _wants_nccl else None
    _launched_timeout = timeout or nccl or dist.constants.default_pg_timeout
    _join(rank, size, store, _launched_timeout)


def rejoin(
    path: str, rank: int, size: int, device: str, nccl: bool, why: str, gpu: int | None = None
) -> None:
    """Leave every group; meet the other ranks in the folder `path`, which only its owner can open.

    Whatever still holds an old group is told `why` when it is used. `gpu` is the number of this
    rank's GPU, None on the CPU.
    """
    global _wants_nccl, _store
    if gpu is not None:
        _take_gpu(device, gpu)
    leave(why)
    this_rank.board.clear(rank)
    torch_device.follow(device)
    _wants_nccl, _store = nccl, FolderStore(path)
    _join(rank, size, _store)


def _open_groups() -> list[ObservedGroup]:
    return [group for known in list(_groups) if (group := known())]


def _is_over(group: ObservedGroup, patience=0.2) -> bool:
    """Tell whether gloo's threads have ended all that they were given, once connections are shut.

    Some never do, and the end of their group would wait for them: wherever the last that holds the
    group lets go of it, which may be the collector of garbage in the middle of another call.
    """
    deadline = time.monotonic() + patience
    while not all(work.is_completed() for work in group.unfinished):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    group.unfinished.clear()
    return True


def leave(why: str) -> None:
    """Leave every group; whatever still holds one is told `why` when it is used."""
    for group in _open_groups():
        group.closed = why
        sockets.shut(group.connections)  # gloo's end waits for whatever a call left unfinished
        if group.streamed and not group.aborted:
            group.abort()
    gpu_streams.forget()
    shut = [end for group in _open_groups() for end in group.connections]
    for group in _open_groups():
        if this_rank.abandoned or not _is_over(group):
            _never_ended.append((group, group.inner))
    this_rank.abandoned = False
    _groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    sockets.quieten(shut)
    # A meeting that was broken off has counted too, and names are made from the count: on a rank
    # that was started anew since, the next group would have another name.
    dist.distributed_c10d._world.group_count = 0


def cut() -> None:
    """End every wait of this rank at once, and through it its partners'; Python state survives.

    Gloo has no way to be interrupted, but a connection that closes ends a wait within milliseconds.
    """
    if _store is not None:
        _store.stop()
    if this_rank.slow:
        this_rank.slow.close()  # waits that slow motion has made longer
    for group in _open_groups():
        sockets.shut(group.connections)
        if group.streamed and not group.aborted:
            group.abort()
