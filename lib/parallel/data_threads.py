"""Data parallel in one process, a thread for each device: how it was done before there were ranks.

    x [B, ...] -> x [B/devices, ...] · W, a copy on each device -> y [B/devices, ...] -> y [B, ...]

[Note: five exchanges]
Everything starts and ends on device 0, in every batch:
    1. scatter     the batch, a share to each device
    2. broadcast   the parameters and buffers, to each device a copy; gone after the step
       forward     on all devices at once
    3. gather      the outputs, back on device 0, where the loss is computed
    4. scatter     the outputs' gradients
       backward    on all devices at once
    5. reduce      the parameters' gradients, added up on device 0, where the optimizer is
Device 0 holds what the others hold, and besides the whole batch, all outputs, all gradients, the
optimizer. One Python process serves all devices. PyTorch calls this class `nn.DataParallel` and
advises against it; on CPUs, where ours takes virtual devices, that class does nothing at all.
"""

import copy
import time

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.ledger import Ledger
from lib.parallel import _devices
from lib.ranks.desk import desk
from lib.single.batches import share


class DataParallel(nn.Module):
    """A model that runs each batch on several devices of this process; gradients as the plain one.

    `devices`: how many (virtual ones where the model is on the CPU, else GPUs), or a list of names.
    Outputs are tensors, or nested lists, tuples, dicts of them, gathered along dim 0; one number
    from each device becomes a row. Raises ValueError for a batch that does not share equally.
    """

    def __init__(self, module: nn.Module, devices: int | list):
        super().__init__()
        self.module = module
        home = next(module.parameters()).device
        if isinstance(devices, int):
            names = [f"cuda:{n}" for n in range(devices)] if home.type == "cuda" else [home]
            devices = names if home.type == "cuda" else names * devices
        self.devices = [_devices.Device(n, torch.device(where)) for n, where in enumerate(devices)]
        if not self.devices or self.devices[0].torch != home:
            raise ValueError(f"the model is on {home}: that must be device 0 of {list(devices)}")

    def forward(self, *args, **kwargs):
        tensors, spec = tree_flatten((args, kwargs))
        kinds: list = []  # how the outputs were nested
        training = torch.is_grad_enabled()
        outputs = _Apply.apply(
            self, spec, training, kinds, len(tensors), *tensors, *self.module.parameters()
        )
        return tree_unflatten(list(outputs), kinds[0])

    def record(self, step, *args, **kwargs) -> Ledger:
        """Run `step(...)`, which uses this model; give the ledger, whose ranks are the devices.

        What autograd, the optimizer and the step itself hold outside the model is on device 0.
        """
        for device in self.devices:
            device.start()
        first, began = self.devices[0], time.monotonic_ns()
        first.hold("parameters", list(self.module.parameters()))
        first.hold("buffers", list(self.module.buffers()))
        first.hold("gradients", [p.grad for p in self.module.parameters()])
        known = [item for item in (*args, *kwargs.values()) if isinstance(item, Optimizer)]
        first.hold("optimizer", [list(optimizer.state.values()) for optimizer in known])
        new = register_optimizer_step_post_hook(
            lambda optimizer, *_: first.hold("optimizer", list(optimizer.state.values()))
        )
        hooks = [new] + [
            p.register_post_accumulate_grad_hook(lambda p: first.hold("gradients", p.grad))
            for p in self.module.parameters()
            if p.requires_grad
        ]
        try:
            with first.at_work():
                result = step(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        return _devices.ledger_of(self.devices, began, result)

    def state_dict(self, *args, **kwargs):
        """Give the plain model's own state dict: names without "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state dict of the plain model."""
        return self.module.load_state_dict(*args, **kwargs)

    # The five exchanges, and the work between them.

    def _exchange(self, op: str, nbytes: int, move) -> list:
        """Call `move(device)` for one device after the other; note the exchange of `nbytes`."""
        members, began, moved = tuple(range(len(self.devices))), desk.now(), []
        row = {"bytes": nbytes, "group": "devices", "members": members, "peer": 0}
        for device in self.devices:
            start = time.monotonic_ns()
            self.devices[0].away = device.number > 0 and op in ("scatter", "broadcast")
            moved.append(move(device))
            device.did("comm", op, start, **row)
        self.devices[0].away = False
        if desk.events is not None:  # a World records this process too: one row for all devices
            event = {"lane": "comm", "op": op, "start": began, "end": desk.now(), "bytes": nbytes}
            desk.events.append(event | {"group": "devices", "note": f"{len(members)} devices"})
        return moved

    def _scatter(self, parts: list[list]) -> list[list]:
        """Copy to each device its list of tensors, device 0's too."""

        def part(device):
            mine = [_devices.moved(item, device.torch) for item in parts[device.number]]
            device.hold("other", mine)
            return mine

        return self._exchange("scatter", sum(map(_devices.nbytes, parts)), part)

    def _replicate(self) -> list[nn.Module]:
        """Copy the model to all devices but the first, whose buffers so keep what they learn."""
        parameters, buffers = list(self.module.parameters()), list(self.module.buffers())

        def replica(device):
            if device.number == 0:
                return self.module
            copies = {id(p): nn.Parameter(_devices.moved(p, device.torch), p.requires_grad)
                      for p in parameters}  # fmt: skip
            device.hold("parameters", list(copies.values()))
            copies |= {id(b): _devices.moved(b, device.torch) for b in buffers}
            device.hold("buffers", [copies[id(b)] for b in buffers])
            return copy.deepcopy(self.module, copies)  # what is in `copies` is not copied again

        return self._exchange("broadcast", _devices.nbytes(parameters + buffers), replica)

    def _home(self, op: str, nbytes: int, parts: list[list], join) -> list:
        """Copy each device's tensors to device 0 and join those of one place there."""
        home = self.devices[0]

        def there(device):
            keep = device is home
            copies = [
                item if keep else _devices.moved(item, home.torch) for item in parts[device.number]
            ]
            home.hold("other", [] if keep else copies)
            return copies

        return [join(place) for place in zip(*self._exchange(op, nbytes, there))]

    def _reduce(self, parts: list[list]) -> list:
        """Add up the devices' gradients on device 0, one copy at a time; None where none is."""
        home, total = self.devices[0].torch, list(parts[0])

        def add(device):
            for n, item in enumerate(parts[device.number] if device.number else ()):
                copied = None if item is None else _devices.moved(item, home)
                if total[n] is None:
                    total[n] = copied
                elif copied is not None:  # two parameters may share one gradient: not in place
                    total[n] = total[n] + copied
            self.devices[0].hold("gradients", total)

        self._exchange("reduce", _devices.nbytes(parts[0]), add)
        return total


class _Apply(torch.autograd.Function):
    """One batch through all devices, forward and backward."""

    @staticmethod
    def forward(ctx, parallel, spec, training, kinds, count, *tensors):
        inputs, devices = list(tensors[:count]), parallel.devices
        shares = [share(inputs, n, len(devices)) for n in range(len(devices))]
        shares = parallel._scatter(shares)
        replicas = parallel._replicate()
        asked = [n for n in range(count) if ctx.needs_input_grad[5 + n]]
        kind = devices[0].torch.type  # autocast is each thread's own
        half = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        def run(device):
            mine = shares[device.number]
            with torch.set_grad_enabled(training), torch.autocast(kind, *half):
                for n in asked:
                    mine[n].requires_grad_()
                args, kwargs = tree_unflatten(mine, spec)
                return tree_flatten(replicas[device.number](*args, **kwargs))

        answers = _devices.at_once("forward", parallel.devices, run)
        kinds.append(answers[0][1])
        outputs = [answer for answer, _ in answers]
        ctx.state = parallel, replicas, shares, outputs, asked
        flat = [[_devices.detached(item) for item in part] for part in outputs]
        gathered = parallel._home("gather", sum(map(_devices.nbytes, flat)), flat, _devices.joined)
        ctx.mark_non_differentiable(
            *[t for t in gathered if torch.is_tensor(t) and not t.is_floating_point()]
        )
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients):
        if ctx.state is None:
            raise RuntimeError("the copies of this batch are gone: backward runs once for a batch")
        (parallel, replicas, shares, outputs, asked), ctx.state = ctx.state, None
        # 1. Each device's outputs that have a gradient, and that gradient.
        places = [n for n, g in enumerate(gradients)
                  if g is not None and outputs[0][n].requires_grad]  # fmt: skip
        parts = [_devices.cut(gradients[n], [part[n] for part in outputs]) for n in places]
        parts = parallel._scatter([list(part) for part in zip(*parts)])
        ends = [[part[n] for n in places] for part in outputs]
        trained = [[p for p in r.parameters() if p.requires_grad] for r in replicas]
        wanted = [[s[n] for n in asked] + own for s, own in zip(shares, trained)]

        # 2. Backward on all devices: autograd has a thread of its own for each GPU, one for CPUs.
        def run(device):
            n = device.number
            found = torch.autograd.grad(ends[n], wanted[n], parts[n], allow_unused=True)
            device.hold("gradients", found[len(asked) :])
            return found

        if parallel.devices[0].torch.type == "cpu":
            found = _devices.at_once("backward", parallel.devices, run)
        else:
            ends, wanted, parts = (sum(lists, []) for lists in (ends, wanted, parts))
            flat = torch.autograd.grad(ends, wanted, parts, allow_unused=True)
            size = len(flat) // len(replicas)
            found = [flat[n * size : (n + 1) * size] for n in range(len(replicas))]
        # 3. The sum of the parameters' gradients, on device 0; the inputs' side by side.
        own = [list(f[len(asked) :]) for f in found]
        summed = iter(parallel._reduce(own))
        mine = [next(summed) if p.requires_grad else None for p in parallel.module.parameters()]
        given = [None] * len(shares[0])
        if asked:
            theirs = [list(f[: len(asked)]) for f in found]
            nbytes = sum(map(_devices.nbytes, theirs))
            for n, joined in zip(asked, parallel._home("gather", nbytes, theirs, _devices.joined)):
                given[n] = joined
        return None, None, None, None, None, *given, *mine
