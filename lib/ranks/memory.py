"""What is alive on a rank, to the byte and by kind, over time.

[Note: what counts as what]
Each storage counts once, with its whole size, however many tensors look into it, from the operation
that makes it until nothing holds it any more. Its kind is what it is to the model at that moment:

    parameters   one of model.parameters(), or whole ones that FSDP has gathered
    buffers      one of model.buffers()
    gradients    the .grad of a parameter
    optimizer    in optimizer.state
    activations  computed in forward and kept by autograd for backward (seen where it saves them),
                 or computed anew during backward by checkpointing
    other        the rest: inputs, results, what lives between two operations, buffers to send from

What existed before counts from its first use. What a kernel takes and returns inside one operation,
and what an allocator adds by rounding, are not seen; a GPU's own allocator sees them.
"""

import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.ledger import Row
from lib.ledger.host import on_host
from lib.ranks.state.default_device import is_gpu
from lib.ranks.state.live_storages import (
    HOST,
    Piece,
    Storages,
    foreign,
    imagined,
    tensors_of,
    without_graph,
)
from lib.ranks.state.this_rank import this_rank

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")


class _Saved:
    """What autograd keeps instead of a tensor, so that we learn when it lets go."""

    def __init__(self, memory, tensor):
        self.memory, self.pieces = memory, memory._saved(tensor)
        self.tensor = without_graph(tensor)

    def __del__(self):
        del self.tensor  # if it dies here, it leaves as an activation
        self.memory._released(self.pieces)


class Memory(TorchDispatchMode):
    """Count the bytes alive by kind: `with Memory(model, optimizer) as memory: step()`.

    `memory.now` and `memory.at_peak` are dicts of bytes by kind, `memory.peak` is the largest sum,
    `memory.peak_at` what made it ("mm in backward"), `memory.rows` the changes as ledger rows; a
    recording that runs gets them too. What is offloaded counts apart, in `memory.host` and
    `memory.host_peak`. Exact on the CPU; see the note above for what is not seen.
    A model on the device "meta" has sizes and no data, so the step of a large one is counted too.
    """

    def __init__(self, model: torch.nn.Module, optimizer=None):
        super().__init__()
        self.model, self.optimizer = model, optimizer
        self.peak, self.at_peak, self.peak_at = 0, dict.fromkeys(KINDS, 0), ""
        self._alive = dict.fromkeys(KINDS, 0)
        self._at_peak, self._last = False, (0, 0)  # is it still that moment; the last change
        self.host = self.host_peak = 0  # bytes in the host's memory, where something is offloaded
        self._changes: list[tuple[int, str, int, int, str]] = []
        self._open, self._depth, self._stepping, self._states = False, 0, False, 0
        self._doing, self._began, self._hooks = "entering", 0, []
        parameters = list(model.parameters())
        self._without_data = bool(parameters) and all(one.is_meta for one in parameters)
        self._storages = Storages(self._change, self._without_data)

    @property
    def now(self) -> dict[str, int]:
        """Bytes alive by kind at this moment (after the block: at its end)."""
        if self._open:
            self._sort()
        return dict(self._alive)

    @property
    def rows(self) -> list[Row]:
        """Each change as a row of lane "memory": bytes of that kind alive after it; from 0 s.

        `number` is that of the storage that came or went (lib/ledger/lives.py reads it).
        """
        return [
            Row(
                this_rank.rank, "memory", kind, at / 1e9, at / 1e9, bytes=alive, number=n, note=note
            )
            for at, kind, alive, n, note in self._changes
        ]

    @property
    def gpu(self) -> dict[str, int] | None:
        """What the GPU's allocator counts, in bytes: now, and at its peak since we entered.

        None where the model is on the CPU.
        """
        if (device := self._gpu()) is None:
            return None
        counts = torch.accelerator
        return {
            "now": counts.memory_allocated(device),
            "peak": counts.max_memory_allocated(device),
        }

    def _gpu(self) -> torch.device | None:
        """Give the GPU that the model is on, None where it is on none."""
        devices = {p.device for p in (*self.model.parameters(), *self.model.buffers())}
        return next((device for device in devices if is_gpu(device)), None)

    def __str__(self):
        lines = [f"{'':12}{'now':>16}{'at the peak':>16}"]
        now = self.now
        for kind in KINDS:
            lines.append(f"{kind:12}{now[kind]:>16,}{self.at_peak[kind]:>16,}")
        lines.append(f"{'bytes':12}{sum(now.values()):>16,}{self.peak:>16,}")
        return "\n".join(lines) + f"\nthe peak came with {self.peak_at}"

    # In and out.

    def __enter__(self):
        self._began, self._open = time.monotonic_ns(), True
        if (device := self._gpu()) is not None:
            torch.accelerator.reset_peak_memory_stats(device)
        self._storages.__enter__()
        self._around, this_rank.counted = this_rank.counted, self._storages
        self._sort()
        model, hooks = self.model, self._hooks
        hooks.append(model.register_forward_pre_hook(self._enter_forward))
        hooks.append(model.register_forward_hook(self._leave_forward, always_call=True))
        kept = getattr(model, "kept_tensors", dict)().get("parameters", ())
        for parameter in (*model.parameters(), *kept):
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(self._has_gradient))
        if self.optimizer is not None:
            hooks.append(self.optimizer.register_step_pre_hook(self._enter_step))
            hooks.append(self.optimizer.register_step_post_hook(self._leave_step))
        self._saving = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Saved(self, tensor), lambda saved: saved.tensor
        )
        self._saving.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._saving.__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._sort()
        this_rank.counted = self._around
        self._storages.__exit__()
        self._open = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation loads torch's compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(foreign(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if imagined(types, out) and not self._without_data:
            return out
        if func.namespace != "profiler":
            self._doing = func._overloadpacket.__name__
        made = HOST if on_host.get() and self._doing == "lift_fresh" else "other"  # torch.tensor(0)
        for tensor in tensors_of((args, kwargs or {})):
            self._storages.see(tensor, made)
        again = torch.is_grad_enabled() and _backward() is not None  # checkpointing computes anew
        kind = HOST if on_host.get() else "activations" if again else "other"
        for tensor in tensors_of(out):
            self._storages.see(tensor, kind, computed=self._depth > 0)
        if self._stepping and self._states != sum(map(len, self.optimizer.state.values())):
            self._sort()
        return out

    # What happens to a storage.

    def _saved(self, tensor) -> list[Piece]:
        """Hear that autograd keeps a tensor: an activation, if forward has computed it."""
        pieces = self._storages.see(tensor)
        for piece in pieces:
            piece.saved += 1
            if piece.kind == "other" and (tensor.grad_fn is not None or piece.computed):
                self._storages.move(piece, "activations")
        return pieces

    def _released(self, pieces) -> None:
        for piece in pieces:
            piece.saved -= 1
            if not piece.saved and piece.kind == "activations" and self._open and piece.alive:
                self._storages.move(piece, "other")  # the reader's code still holds it

    def _change(self, kind: str, nbytes: int, number: int) -> None:
        """Note that the bytes alive of one kind have changed, by the storage of this number."""
        if kind == HOST:
            self.host += nbytes
            self.host_peak = max(self.host_peak, self.host)
        if not nbytes or kind == HOST:
            return
        self._alive[kind] += nbytes
        total, now = sum(self._alive.values()), time.monotonic_ns()
        what = self._what() if nbytes > 0 else ""
        moved = nbytes > 0 and self._last == (number, -nbytes)  # out of one kind and into another
        if total > self.peak:
            self.peak, self.peak_at, self._at_peak = total, what, True
        elif nbytes > 0 and not moved or nbytes < 0 and self._last[1] < 0:
            self._at_peak = False  # as many bytes later on are another moment
        if total == self.peak and self._at_peak:  # also when a kind has changed: the better name
            self.at_peak = dict(self._alive)
        self._last = (0, 0) if moved else (number, nbytes)
        self._changes.append((now - self._began, kind, self._alive[kind], number, what))
        if recording := this_rank.recording:
            at = recording.now()  # it has one clock, which is the GPU's where there is one
            alive = self._alive[kind]
            recording.note("memory", kind, at, at, bytes=alive, number=number, note=what)

    def _what(self) -> str:
        node = _backward()
        phase = f"backward ({node.name()})" if node is not None else ""
        phase = phase or ("optimizer" if self._stepping else "forward" if self._depth else "")
        where = " in ".join(part for part in (phase, *this_rank.spans[-1:]) if part)
        return f"{self._doing} in {where}" if where else self._doing

    # What a storage is to the model.

    def _sort(self) -> None:
        """Give every storage the kind it has by identity now."""
        kinds: dict[int, str] = {}
        kept = getattr(self.model, "kept_tensors", dict)()  # of kinds that no parameter shows
        states = self.optimizer.state if self.optimizer is not None else {}
        self._states = sum(map(len, states.values()))
        for kind, tensors in (
            ("optimizer", [t for state in states.values() for t in tensors_of(state)]),
            *kept.items(),
            ("gradients", [p.grad for p in self.model.parameters() if p.grad is not None]),
            ("buffers", self.model.buffers()),
            ("parameters", self.model.parameters()),
        ):
            for tensor in tensors:
                self._storages.see(tensor, kind)
                kinds.update((storage._cdata, kind) for storage in self._storages.behind(tensor))
        # A copy, made without new objects: the collector of garbage would take some out meanwhile.
        for key, piece in self._storages.pieces.copy().items():
            left = "activations" if piece.saved and piece.computed else "other"
            default = piece.kind if piece.kind in ("activations", "other") else left
            self._storages.move(piece, kinds.get(key, default))

    def _has_gradient(self, parameter) -> None:
        if parameter.grad is not None:  # another hook may have sent it away already
            for piece in self._storages.see(parameter.grad):
                self._storages.move(piece, "gradients")

    def _enter_forward(self, *_) -> None:
        self._depth += 1
        self._sort()  # gradients may have been dropped since

    def _leave_forward(self, *_) -> None:
        self._depth -= 1

    def _enter_step(self, *_) -> None:
        self._sort()
        self._stepping = True

    def _leave_step(self, *_) -> None:
        self._stepping = False
        self._sort()


def _backward():
    """Give the autograd node that runs in this thread, None outside backward."""
    return torch._C._current_autograd_node()
