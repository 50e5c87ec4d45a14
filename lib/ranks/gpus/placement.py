"""Where the ranks of a World run: on the CPU or on which GPUs, with which backend, and why."""

from dataclasses import dataclass, field

from lib.ranks.gpus import devices, gpu_locks
from lib.ranks.gpus.requests import Request, counted


@dataclass
class Placement:
    """Device, backend and GPUs of one World; it holds the locks of the GPUs until `release`."""

    device: str = "cpu"  # the type alone
    backend: str = "gloo"
    gpus: tuple[int, ...] = ()
    why: str = ""  # it is the CPU although nobody asked for it
    note: str = ""  # what the reader should be told at once
    locks: list[gpu_locks.GpuLock] = field(default_factory=list)

    def gpu_of(self, rank: int) -> int | None:
        """Give PyTorch's number of the GPU that a rank takes; None on the CPU."""
        return self.gpus[rank % len(self.gpus)] // devices.shares() if self.gpus else None

    def release(self) -> None:
        """Give the locks back; a second call does nothing."""
        while self.locks:
            self.locks.pop().release()

    def refuse_slow_motion(self) -> None:
        """Raise ValueError where the ranks run on GPUs: slow motion stretches CPU ranks."""
        if self.gpus:
            raise ValueError(
                f"Slow motion runs on CPU ranks, and this World runs {self}. "
                "Make another one with World(..., slow_motion=...): it takes the CPU."
            )

    def __str__(self):
        place = devices.numbered(self.device, self.gpus) if self.gpus else "the CPU"
        name = self.backend.upper() if self.backend.endswith("ccl") else self.backend
        return f"on {place}, {name}" + (f" ({self.why})" if self.why else "")


def choose(size, device=None, backend=None, gpus=None, slow_motion=None) -> Placement:
    """Choose device, backend and GPUs for `size` ranks, and lock the GPUs until `release`.

    A caller who asks for nothing gets GPUs and their own backend where at least `size` of them are
    free, else gloo on the CPU. A caller who asks for GPUs also gets some that are not free where
    there are too few; `note` says so then. Raises ValueError, in a sentence, for a request that
    this machine cannot meet.
    """
    kind = devices.accelerator()
    own = devices.own_backend(kind) if kind else None
    request = Request(size, device, backend, gpus, kind, own)
    request.check_words()
    if request.for_gpus:
        request.check_machine(bool(slow_motion))
    else:
        why = request.why_cpu(bool(slow_motion))
        if why is not None:
            return Placement(why=why)
    found = devices.visible(kind)
    if request.for_gpus:
        request.check_numbers(len(found))
    elif len(found) < size:
        return Placement(why=f"this machine has {counted(len(found))}")
    with gpu_locks.choosing():  # no other World chooses meanwhile
        locks = [gpu_locks.GpuLock(gpu.name) for gpu in found]
        placement = _placed(request, found, devices.busy(found, locks))
        for index, lock in enumerate(locks):
            if index in placement.gpus:
                lock.hold()
                placement.locks.append(lock)
            else:
                lock.release()
    return placement


def _placed(request: Request, found: list[devices.Gpu], taken: dict[int, str]) -> Placement:
    """Choose among the GPUs that were found, those last that are not free."""
    alone = request.own and request.backend != "gloo" and len(request.gpus or found) >= request.size
    most = request.size if alone else min(request.size, len(found))
    free = len(found) - len(taken)
    if not request.for_gpus and free < request.size:
        why, reasons = f"{free} of {len(found)} GPUs are free", devices.reasons(request.kind, taken)
        note = f"World({request.size}) runs on the CPU, since {why}: {reasons}. "
        note += f"World({request.size}, device={request.kind!r}) shares them."
        return Placement(why=why, note=note)
    if request.gpus is not None:
        chosen = tuple(request.gpus)
    else:
        # those that are free by number, then the others by what is left of their memory
        emptiest = sorted(found, key=lambda gpu: gpu.index in taken and 1 + (gpu.used or 0))
        most = most if alone or not free else min(most, free)
        chosen = tuple(sorted(gpu.index for gpu in emptiest[:most]))
    shared = {index: why for index, why in taken.items() if index in chosen}
    note = f"{request} shares {devices.reasons(request.kind, shared)}." if shared else ""
    return Placement(request.kind, request.own if alone else "gloo", chosen, note=note)
