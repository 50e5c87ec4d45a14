"""The memory of the host, a second one beside the device's, and the link between the two.

On a GPU the host's tensors are pinned and copies run in streams of their own. On the CPU there is
one memory and a copy is done at once; which tensors would be the host's is still known, so
`lib.ranks.memory.Memory` counts them apart, and in slow motion copies and steps take the time of
the link and of the host (give `HostMemory` a `lib.ranks.host_lanes.HostLanes`).
"""

import contextlib
from collections.abc import Sequence

import torch

from lib.ledger.host import as_the_host


class Copy:
    """A copy that is under way, or over."""

    def __init__(self, task, event=None, *, to_device: bool = False):
        self.task, self.event, self.to_device = task, event, to_device

    def wait(self) -> None:
        """Let whoever uses the destination next come after the copy.

        Of a copy to the device that is the device's current stream, of one to the host this thread.
        """
        if self.to_device:
            self.wait_on_device()
        elif self.event is not None:
            self.event.synchronize()

    def wait_on_device(self) -> None:
        """Let what the device is asked to do from now on come after the copy."""
        self.task.wait()
        if self.event is not None:
            self.event.wait()


class _Task:
    """Stands for what an observer gives, where nothing is observed."""

    def wait(self) -> None:
        """Return at once."""


class _Unobserved:
    """Observes nothing."""

    @contextlib.contextmanager
    def copying(self, op: str, nbytes: int, after=()):
        yield _Task()

    @contextlib.contextmanager
    def working(self, op: str, after=(), background: bool = False):
        yield _Task()


class HostMemory:
    """The memory of the host and its link to the device, one stream for each direction.

    `observer` records what happens and stretches it in slow motion; None where nobody looks.
    """

    def __init__(self, observer=None):
        self.observer = observer or _Unobserved()
        self.streams: dict[tuple, torch.Stream] = {}

    def empty(self, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor of the same shape in the host's memory; a GPU's is pinned there."""
        where = {"device": "meta"} if like.is_meta else {"device": "cpu", "pin_memory": _far(like)}
        with as_the_host():
            tensor = torch.empty(like.shape, dtype=dtype or like.dtype, **where)
        return self.keep(tensor)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Say that a tensor lies in the host's memory from now on; returns it."""
        tensor.untyped_storage().in_host_memory = True
        return tensor

    def to_host(self, destination: torch.Tensor, source: torch.Tensor) -> Copy:
        """Start to copy a tensor of the device into one of the host."""
        return self._copy("to_host", destination, source, ())

    def to_device(self, destination: torch.Tensor, source: torch.Tensor, after=()) -> Copy:
        """Start to copy a tensor of the host into one of the device, after these tasks."""
        return self._copy("to_device", destination, source, after)

    @contextlib.contextmanager
    def working(self, op: str, after=(), background: bool = False):
        """Run what is inside as the host's work, after these tasks; gives a task.

        With `background` it began as early as it could, beside what the device did since.
        """
        with self.observer.working(op, after, background) as task, as_the_host():
            yield task

    def together(
        self, op: str, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after=()
    ) -> Copy:
        """Start to copy several tensors one behind the other, as one row with one latency.

        `op` is "to_host" or "to_device", and the pairs are (destination, source). The device's
        tensors must live until the device has waited for the copy (`wait_on_device`).
        """
        far = pairs[0][1 if op == "to_host" else 0]  # the device's
        nbytes, stream = sum(destination.nbytes for destination, _ in pairs), None
        with contextlib.ExitStack() as stack:
            if _far(far):
                stream = self._stream(op, far.device)
                # What the device has been asked to do with any of them comes first.
                stream.wait_stream(torch.accelerator.current_stream(far.device))
                stack.enter_context(stream)
            task = stack.enter_context(self.observer.copying(op, nbytes, after))
            with as_the_host(), torch.no_grad():
                for destination, source in pairs:
                    destination.copy_(source, non_blocking=True)
        event = stream.record_event() if stream else None
        return Copy(task, event, to_device=op == "to_device")

    def _copy(self, op: str, destination, source, after) -> Copy:
        copy = self.together(op, [(destination, source)], after)
        if copy.event is not None:  # its memory is not given to others before the copy is over
            far = destination if copy.to_device else source
            far.record_stream(self._stream(op, far.device))
        return copy

    def _stream(self, op: str, device: torch.device) -> torch.Stream:
        if (op, device) not in self.streams:
            self.streams[op, device] = torch.Stream(device=device)
        return self.streams[op, device]


def _far(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies on a device with a memory of its own."""
    return tensor.device.type not in ("cpu", "meta")
