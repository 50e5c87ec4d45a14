"""Data parallelism in one process with a thread for each device, the predecessor of DDP.

    x [B, ...] -> x [B/devices, ...] · W, a copy on each device -> y [B/devices, ...] -> y [B, ...]

[Note: five exchanges]
Everything starts and ends on device 0, in every batch:
    1. scatter     the batch, a share to each device
    2. broadcast   the parameters and buffers, a copy to each device; freed after the step
       forward     on all devices at once
    3. gather      the outputs, back on device 0, where the loss is computed
    4. scatter     the outputs' gradients
       backward    on all devices at once
    5. reduce      the parameters' gradients, summed on device 0, where the optimizer is
Device 0 holds what the others hold, and in addition the whole batch, all outputs, all gradients and
the optimizer. One Python process serves all devices. PyTorch calls this class `nn.DataParallel` and
advises against it; on CPUs, where ours uses virtual devices, that class only calls the model.
"""

import copy

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.ledger import Ledger
from lib.parallel.data import broadcast, virtual_devices
from lib.parallel.data.one_batch import OneBatch
from lib.ranks.state.default_device import is_gpu
from lib.ranks.state.live_storages import tensors_of
from lib.ranks.state.this_rank import this_rank


class DataParallel(nn.Module):
    """A model that runs each batch on several devices of this process, with the plain gradients.

    `devices` is a number (of virtual devices where the model is on the CPU, else of GPUs), or a
    list of names. Outputs are tensors, or nested lists, tuples and dicts of tensors, and are
    gathered along dim 0; outputs of a single number become a row. Raises ValueError for more
    GPUs than there are, and for a batch that the devices cannot share equally.
    """

    def __init__(self, module: nn.Module, devices: int | list):
        super().__init__()
        broadcast.check_made(module)
        self.module = module
        home = [*module.parameters(), *module.buffers(), torch.empty(0)][0].device
        if isinstance(devices, int):
            there = torch.accelerator.device_count() if is_gpu(home) else devices
            if devices > there:
                raise ValueError(
                    f"The model is on {home}, and this process sees {there} of the {devices} GPUs "
                    f"that it shall run on. Give a list, such as {[str(home)] * 2}, in which a GPU "
                    "may stand several times."
                )
            gpus = [f"{home.type}:{n}" for n in range(devices)]
            devices = gpus if is_gpu(home) else [home] * devices
        self.devices = [
            virtual_devices.Device(n, torch.device(where)) for n, where in enumerate(devices)
        ]
        if not self.devices or self.devices[0].torch != home:
            raise ValueError(
                f"The model is on {home}, which must be the first of the devices, but these are "
                f"{list(devices)}."
            )

    def forward(self, *args, **kwargs):
        tensors, spec = tree_flatten((args, kwargs))
        nesting: list = []  # the tree structure of the outputs, which OneBatch appends
        training = torch.is_grad_enabled()
        outputs = OneBatch.apply(
            self, spec, training, nesting, len(tensors), *tensors, *self.module.parameters()
        )
        return tree_unflatten(list(outputs), nesting[0])

    def record(self, step, *args, **kwargs) -> Ledger:
        """Run `step(...)`, which uses this model; return a ledger whose ranks are the devices.

        Memory that autograd, the optimizer and the step hold outside the model counts as device
        0's.
        """
        for device in self.devices:
            device.start()
        first = self.devices[0]
        began = first.now()
        first.hold("parameters", list(self.module.parameters()))
        first.hold("buffers", list(self.module.buffers()))
        first.hold("gradients", [p.grad for p in self.module.parameters()])
        optimizers = [item for item in (*args, *kwargs.values()) if isinstance(item, Optimizer)]
        first.hold("optimizer", [list(optimizer.state.values()) for optimizer in optimizers])
        after_step = register_optimizer_step_post_hook(
            lambda optimizer, *_: first.hold("optimizer", list(optimizer.state.values()))
        )
        hooks = [after_step] + [
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
        first.did("compute", "compute", began)
        return virtual_devices.ledger_of(self.devices, result)

    def state_dict(self, *args, **kwargs):
        """Return the plain model's state dict, whose names do not begin with "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load a state dict of the plain model."""
        return self.module.load_state_dict(*args, **kwargs)

    # The five exchanges, and the work between them.

    def _exchange(self, op: str, nbytes: int, move) -> list:
        """Call `move(device)` for one device after the other, and record the exchange."""
        members, began, moved = tuple(range(len(self.devices))), this_rank.now(), []
        row = {"bytes": nbytes, "group": "devices", "members": members, "peer": 0}
        for device in self.devices:
            start = device.now()
            self.devices[0].away = device.number > 0 and op in ("scatter", "broadcast")
            moved.append(move(device))
            device.did("comm", op, start, **row)
        self.devices[0].away = False
        if recording := this_rank.recording:  # of a World, for whom all devices are one row
            note = f"{len(members)} devices"
            more = {"bytes": nbytes, "group": "devices", "note": note}
            recording.note("comm", op, began, recording.now(), **more)
        return moved

    def _scatter(self, parts: list[list]) -> list[list]:
        """Copy to each device its list of tensors, device 0's too."""

        def part(device):
            copies = [virtual_devices.moved(item, device.torch) for item in parts[device.number]]
            device.hold("other", copies)
            return copies

        return self._exchange("scatter", sum(map(virtual_devices.nbytes, parts)), part)

    def _replicate(self) -> list[nn.Module]:
        """Copy the model to all devices but the first, whose buffers so keep what they learn."""
        parameters, buffers = list(self.module.parameters()), list(self.module.buffers())

        def replica(device):
            if device.number == 0:
                return self.module
            copies = {id(p): nn.Parameter(virtual_devices.moved(p, device.torch), p.requires_grad)
                      for p in parameters}  # fmt: skip
            device.hold("parameters", list(copies.values()))
            # What forward has computed and kept (`self.last = y`) cannot be copied with its graph.
            kept = [t for m in self.module.modules() for t in tensors_of(vars(m)) if not t.is_leaf]
            copies |= {id(b): virtual_devices.moved(b, device.torch) for b in [*kept, *buffers]}
            device.hold("buffers", [copies[id(b)] for b in buffers])
            return copy.deepcopy(self.module, copies)  # what is in `copies` is not copied again

        return self._exchange("broadcast", virtual_devices.nbytes(parameters + buffers), replica)

    def _home(self, op: str, nbytes: int, parts: list[list], join) -> list:
        """Copy each device's tensors to device 0, and join those of the same position there."""
        home = self.devices[0]

        def bring_home(device):
            keep = device is home
            copies = [
                item if keep else virtual_devices.moved(item, home.torch)
                for item in parts[device.number]
            ]
            home.hold("other", [] if keep else copies)
            return copies

        return [join(outputs) for outputs in zip(*self._exchange(op, nbytes, bring_home))]

    def _reduce(self, parts: list[list]) -> list:
        """Sum the devices' gradients on device 0, one copy at a time; None where none has one."""
        home, total = self.devices[0].torch, list(parts[0])

        def add(device):
            for n, item in enumerate(parts[device.number] if device.number else ()):
                copied = None if item is None else virtual_devices.moved(item, home)
                if total[n] is None:
                    total[n] = copied
                elif copied is not None:  # not in place, as two parameters may share one gradient
                    total[n] = total[n] + copied
            self.devices[0].hold("gradients", total)

        self._exchange("reduce", virtual_devices.nbytes(parts[0]), add)
        return total
