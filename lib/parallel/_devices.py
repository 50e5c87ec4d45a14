"""A part of data_threads.py: one device of several in a process, its memory and what it did."""

import contextlib
import threading
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.ledger import Ledger, Row
from lib.ranks.memory import KINDS
from lib.ranks.recorder import exclusive
from lib.ranks.storages import Storages, tensors_of


class Device:
    """One device, real or virtual: `torch` says where it is, `rows` what was recorded on it."""

    def __init__(self, number: int, where: torch.device):
        self.number, self.torch = number, where
        self.events: list[dict] | None = None  # a list while a recording runs
        self.away = False  # its thread makes something for another device

    def current(self):
        """Let what this thread makes without naming a GPU be on this one."""
        real = self.torch.type == "cuda"
        return torch.cuda.device(self.torch) if real else contextlib.nullcontext()

    def start(self) -> None:
        """Begin to record."""
        self.events, self.changes = [], []
        self.alive = dict.fromkeys(KINDS, 0)
        self.storages = Storages(self._change)
        self.storages.open = True

    def stop(self) -> list[dict]:
        """End the recording: what was done, and how memory changed."""
        self.storages.open = False
        events, self.events = self.events, None
        return events + self.changes

    def did(self, lane: str, op: str, start: int, **more) -> None:
        """Note something that ends now."""
        if self.events is not None:
            event = {"lane": lane, "op": op, "start": start, "end": time.monotonic_ns()}
            self.events.append(event | more)

    def hold(self, kind: str, *tensors) -> None:
        """Count these tensors as `kind` on this device for as long as they live."""
        if self.events is not None:
            for tensor in tensors_of(tensors):
                for piece in self.storages.see(tensor):
                    self.storages.move(piece, kind)

    @contextlib.contextmanager
    def at_work(self, op: str = ""):
        """Count what this thread makes as this device's; note it as a row `op`."""
        if self.events is None:
            yield
            return
        start = time.monotonic_ns()
        keep = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )
        with _Watch(self, computed=bool(op)), keep:
            yield
        if op:
            self.did("compute", op, start)

    def _change(self, kind: str, nbytes: int) -> None:
        self.alive[kind] += nbytes
        now = time.monotonic_ns()
        row = {"lane": "memory", "op": kind, "start": now, "end": now}
        self.changes.append(row | {"bytes": self.alive[kind]})


class _Watch(TorchDispatchMode):
    """Shows a device every tensor that this thread makes; `computed` by the model, or beside it."""

    def __init__(self, device: Device, computed: bool):
        super().__init__()
        self.device, self.computed = device, computed

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation loads torch's compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in () if self.device.away else tensors_of(out):
            self.device.storages.see(tensor, computed=self.computed)
        return out


class _Kept:
    """What autograd keeps for backward: an activation, unless it has another name already."""

    def __init__(self, device: Device, tensor):
        self.device, self.tensor = device, tensor
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


def ledger_of(devices: list[Device], began: int, results) -> Ledger:
    """Make a ledger whose ranks are devices; what device 0's thread did besides is `compute`."""
    rows = []
    for device in devices:
        events = device.stop()
        done = [event for event in events if event["lane"] != "memory"]
        if device.number == 0:
            whole = {"lane": "compute", "op": "compute", "start": began}
            done = exclusive([whole | {"end": time.monotonic_ns()}, *done])
        for event in done + [event for event in events if event["lane"] == "memory"]:
            named = {k: v for k, v in event.items() if k not in ("flop", "late")}
            times = {k: (named[k] - began) / 1e9 for k in ("start", "end")}
            rows.append(Row(rank=device.number, **named | times))
    rows.sort(key=lambda row: row.start)
    return Ledger(rows, results=[results], meta={"devices": len(devices)})


def at_once(op: str, devices: list[Device], work) -> list:
    """Call `work(device)` in a thread for each device; an error says on which device."""
    answers, errors = [None] * len(devices), {}

    def run(device):
        try:
            with device.current(), device.at_work(op):
                answers[device.number] = work(device)
        except Exception as error:
            error.add_note(f"in {op} on device {device.number} of {len(devices)}")
            errors[device.number] = error

    threads = [threading.Thread(target=run, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return answers


def moved(item, where):
    """Copy what is a tensor; leave what is not."""
    return item.detach().to(where, copy=True) if torch.is_tensor(item) else item


def detached(item):
    """Leave autograd's graph behind, where the item is a tensor."""
    return item.detach() if torch.is_tensor(item) else item


def nbytes(tensors) -> int:
    """Add up the bytes of what is a tensor."""
    return sum(item.nbytes for item in tensors if torch.is_tensor(item))


def joined(place):
    """Join one output of all devices along dim 0; numbers become a row."""
    if not torch.is_tensor(place[0]):
        return place[0]
    return torch.cat([item if item.dim() else item[None] for item in place])


def cut(gradient, outputs):
    """Cut the gradient of a joined output into the devices' parts."""
    if not outputs[0].dim():
        return gradient.unbind()
    return gradient.split([output.shape[0] for output in outputs])
