"""What is alive on a rank, to the byte and by kind, over time.

[Note: what counts as what]
Each storage counts once, with its whole size, however many tensors look into it, from the operation
that makes it until nothing holds it any more. Its kind is what it is to the model at that moment:

    parameters   one of model.parameters()
    buffers      one of model.buffers()
    gradients    the .grad of a parameter
    optimizer    in optimizer.state
    activations  computed in forward and kept by autograd for backward (seen where it saves them),
                 or computed anew during backward by checkpointing
    other        the rest: inputs, results, what lives between two operations, buffers to send from

What existed before counts from its first use. What a kernel takes and returns inside one operation,
and what an allocator adds by rounding, are not seen; `torch.cuda` sees them.
"""

import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.ledger import Row
from lib.ranks.desk import desk
from lib.ranks.storages import Piece, Storages, foreign, imagined, storages_of, tensors_of

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")


class _Saved:
    """What autograd keeps instead of a tensor, so that we learn when it lets go."""

    def __init__(self, memory, tensor):
        self.memory, self.tensor = memory, tensor
        self.pieces = memory._saved(tensor)

    def __del__(self):
        del self.tensor  # if it dies here, it leaves as an activation
        self.memory._released(self.pieces)


class Memory(TorchDispatchMode):
    """Count the bytes alive by kind: `with Memory(model, optimizer) as memory: step()`.

    `memory.now` and `memory.at_peak` are dicts of bytes by kind, `memory.peak` is the largest sum,
    `memory.peak_at` what made it ("mm in backward"), `memory.rows` the changes as ledger rows; a
    recording that runs gets them too. Exact on the CPU; see the note above for what is not seen.
    """

    def __init__(self, model: torch.nn.Module, optimizer=None):
        super().__init__()
        self.model, self.optimizer = model, optimizer
        self.peak, self.at_peak, self.peak_at = 0, dict.fromkeys(KINDS, 0), ""
        self._alive = dict.fromkeys(KINDS, 0)
        self._storages = Storages(self._change)
        self._changes: list[tuple[int, str, int, str]] = []
        self._open, self._depth, self._stepping, self._states = False, 0, False, 0
        self._doing, self._began, self._hooks = "entering", 0, []

    @property
    def now(self) -> dict[str, int]:
        """Bytes alive by kind at this moment (after the block: at its end)."""
        if self._open:
            self._sort()
        return dict(self._alive)

    @property
    def rows(self) -> list[Row]:
        """Each change as a row of lane "memory": bytes of that kind alive after it; from 0 s."""
        return [
            Row(desk.rank, "memory", kind, at / 1e9, at / 1e9, bytes=alive, note=note)
            for at, kind, alive, note in self._changes
        ]

    @property
    def gpu(self) -> dict[str, int] | None:
        """What torch.cuda counts beside ours, in bytes: now, and at its peak since we entered."""
        if not torch.cuda.is_initialized():
            return None
        cuda = torch.cuda
        return {"now": cuda.memory_allocated(), "peak": cuda.max_memory_allocated()}

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
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        self._storages.__enter__()
        self._sort()
        model, hooks = self.model, self._hooks
        hooks.append(model.register_forward_pre_hook(self._enter_forward))
        hooks.append(model.register_forward_hook(self._leave_forward, always_call=True))
        for parameter in model.parameters():
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
        self._storages.__exit__()
        self._open = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation loads torch's compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(foreign(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if imagined(types, out):
            return out
        if func.namespace != "profiler":
            self._doing = func._overloadpacket.__name__
        for tensor in tensors_of((args, kwargs or {})):
            self._storages.see(tensor)
        again = torch.is_grad_enabled() and _backward() is not None  # checkpointing computes anew
        kind = "activations" if again else "other"
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

    def _change(self, kind: str, nbytes: int) -> None:
        """Note that the bytes alive of one kind have changed."""
        if not nbytes:
            return
        self._alive[kind] += nbytes
        total, now = sum(self._alive.values()), time.monotonic_ns()
        what = self._what() if nbytes > 0 else ""
        if total > self.peak:
            self.peak, self.peak_at = total, what
        if total == self.peak:  # also when only a kind has changed: the better name
            self.at_peak = dict(self._alive)
        self._changes.append((now - self._began, kind, self._alive[kind], what))
        if desk.events is not None:
            row = {"lane": "memory", "op": kind, "start": now, "end": now}
            desk.events.append(row | {"bytes": self._alive[kind], "note": what})

    def _what(self) -> str:
        node = _backward()
        phase = f"backward ({node.name()})" if node is not None else ""
        phase = phase or ("optimizer" if self._stepping else "forward" if self._depth else "")
        where = " in ".join(part for part in (phase, *desk.spans[-1:]) if part)
        return f"{self._doing} in {where}" if where else self._doing

    # What a storage is to the model.

    def _sort(self) -> None:
        """Give every storage the kind it has by identity now."""
        kinds: dict[int, str] = {}
        states = self.optimizer.state if self.optimizer is not None else {}
        self._states = sum(map(len, states.values()))
        for kind, tensors in (
            ("optimizer", [t for state in states.values() for t in tensors_of(state)]),
            ("gradients", [p.grad for p in self.model.parameters() if p.grad is not None]),
            ("buffers", self.model.buffers()),
            ("parameters", self.model.parameters()),
        ):
            for tensor in tensors:
                self._storages.see(tensor, kind)
                kinds.update((storage._cdata, kind) for storage in storages_of(tensor))
        for key, piece in list(self._storages.pieces.items()):
            left = "activations" if piece.saved and piece.computed else "other"
            kept = piece.kind if piece.kind in ("activations", "other") else left
            self._storages.move(piece, kinds.get(key, kept))

    def _has_gradient(self, parameter) -> None:
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
