"""A part of dp.py: the devices of one process, with the memory and the operations of each."""

import contextlib
import threading
import time
from collections import OrderedDict

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.ledger import Ledger, Row
from lib.ranks.memory import KINDS
from lib.ranks.process.recorder import exclusive
from lib.ranks.shared.event import COLUMNS, Event
from lib.ranks.state.default_device import is_gpu
from lib.ranks.state.gpu_clock import GpuClock
from lib.ranks.state.live_storages import HOST, Storages, parts_of, tensors_of, without_graph


class Device:
    """Represents a real or virtual device: its torch.device, and what is recorded on it."""

    def __init__(self, number: int, where: torch.device):
        self.number, self.torch = number, where
        self.events: list[Event] | None = None  # a list while a recording runs
        self.away = False  # True while its thread creates tensors for another device

    def current(self):
        """Return a context in which tensors are created on this GPU by default, if it is one."""
        real = is_gpu(self.torch)
        index = torch.accelerator.device_index
        return index(self.torch.index) if real else contextlib.nullcontext()

    def start(self) -> None:
        """Begin to record, with the GPU's own clock where this is a GPU."""
        self.events, self.changes = [], []
        self.clock = GpuClock(self.torch) if is_gpu(self.torch) else None
        self.alive = dict.fromkeys(KINDS, 0)
        self.storages = Storages(self._change)
        self.storages.open = True

    def stop(self) -> list[Event]:
        """End the recording; return the operations and the changes of memory."""
        self.storages.open = False
        events, self.events = self.events + self.changes, None
        if self.clock:
            self.clock.settle(events)
        return events

    def now(self):
        """Return the time in ns; on a GPU, a mark that the end of the recording turns into one."""
        return self.clock.now() if self.events is not None and self.clock else time.monotonic_ns()

    def did(self, lane: str, op: str, start, **more) -> None:
        """Record an operation that began at `start` and ends now."""
        if self.events is not None:
            self.events.append(Event(lane, op, start, self.now(), **more))

    def hold(self, kind: str, *tensors) -> None:
        """Count these tensors as `kind` on this device for as long as they live."""
        if self.events is not None:
            for tensor in tensors_of(tensors):
                for piece in self.storages.see(tensor):
                    self.storages.move(piece, kind)

    @contextlib.contextmanager
    def at_work(self, op: str = ""):
        """Count what this thread creates as this device's, and record its work as a row `op`."""
        if self.events is None:
            yield
            return
        start = self.now()
        keep = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )
        with _Watch(self, computed=bool(op)), keep:
            yield
        if op:
            self.did("compute", op, start)

    def _change(self, kind: str, nbytes: int, number: int) -> None:
        if kind == HOST:
            return
        self.alive[kind] += nbytes
        now, alive = self.now(), self.alive[kind]
        self.changes.append(Event("memory", kind, now, now, bytes=alive, number=number))


class _Watch(TorchDispatchMode):
    """Shows a device every tensor that this thread creates; `computed` if the model computes it."""

    def __init__(self, device: Device, computed: bool):
        super().__init__()
        self.device, self.computed = device, computed

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True, the first operation would load torch's compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        # A detached tensor has its old storage, which may be another device's.
        no_copy = self.device.away or func is torch.ops.aten.detach.default
        for tensor in () if no_copy else tensors_of(out):
            self.device.storages.see(tensor, computed=self.computed)
        return out


class _Kept:
    """Holds a tensor that autograd saves: an activation, unless it counts as another kind."""

    def __init__(self, device: Device, tensor):
        self.device, self.tensor = device, without_graph(tensor)
        self.pieces = device.storages.see(tensor)
        for piece in self.pieces:
            piece.saved += 1
            if piece.kind == "other" and (piece.computed or tensor.grad_fn is not None):
                device.storages.move(piece, "activations")

    def __del__(self):
        del self.tensor
        for piece in self.pieces:
            piece.saved -= 1
            if not piece.saved and piece.kind == "activations" and piece.alive:
                self.device.storages.move(piece, "other")


def ledger_of(devices: list[Device], results) -> Ledger:
    """Return a ledger whose ranks are devices; device 0's last event spans the whole recording."""
    rows, began = [], 0
    for device in devices:
        events = device.stop()
        done = [event for event in events if event.lane != "memory"]
        if device.number == 0:
            began, done = done[-1].start, exclusive(done)
        for event in done + [event for event in events if event.lane == "memory"]:
            named = {name: getattr(event, name) for name in COLUMNS}
            times = {k: (named[k] - began) / 1e9 for k in ("start", "end")}
            rows.append(Row(rank=device.number, **named | times))
    rows.sort(key=lambda row: row.start)
    return Ledger(rows, results=[results], meta={"devices": len(devices)})


def at_once(op: str, devices: list[Device], work) -> list:
    """Call `work(device)` in a thread for each device; an error carries a note with its device."""
    results, errors = [None] * len(devices), {}

    def run(device):
        try:
            with device.current(), device.at_work(op):
                results[device.number] = work(device)
        except Exception as error:
            error.add_note(f"This happened in {op} on device {device.number} of {len(devices)}.")
            errors[device.number] = error

    threads = [threading.Thread(target=run, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return results


@contextlib.contextmanager
def set_aside(params: list):
    """Remove the gradients of these parameters, and the reader's hooks on them, inside the context.

    The hooks are meant for the sum of all devices' gradients, and the gradients may belong to an
    earlier batch.
    """
    names = "grad", "_backward_hooks", "_post_accumulate_grad_hooks"
    saved = [(p, name, getattr(p, name)) for p in params for name in names]
    saved = [(p, name, value) for p, name, value in saved if value is not None]
    for p, name, _ in saved:
        setattr(p, name, None if name == "grad" else OrderedDict())
    try:
        yield
    finally:
        for p in params:
            p.grad = None
        for p, name, value in saved:
            setattr(p, name, value)


def moved(item, where):
    """Return a copy of a tensor on the device `where`, and anything else as it is."""
    return item.detach().to(where, copy=True) if torch.is_tensor(item) else item


def detached(item):
    """Return a tensor without its autograd graph, and anything else as it is."""
    return item.detach() if torch.is_tensor(item) else item


def nbytes(tensors) -> int:
    """Return the bytes of all tensors; a sparse tensor counts with its indices and values."""
    return sum(part.nbytes for item in tensors if torch.is_tensor(item) for part in parts_of(item))


def joined(outputs):
    """Join the devices' tensors of one output along dim 0; single numbers become a row."""
    if not torch.is_tensor(outputs[0]):
        return outputs[0]
    return torch.cat([item if item.dim() else item[None] for item in outputs])


def cut(gradient, outputs):
    """Cut the gradient of a joined output into the devices' parts."""
    if not outputs[0].dim():
        return gradient.unbind()
    return gradient.split([output.shape[0] for output in outputs])
