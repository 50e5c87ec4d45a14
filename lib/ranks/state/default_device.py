"""The default device of a rank: its GPU, for all that is made without naming a device.

[Note: the default device]
What a cell makes on a rank, and what the notebook sends there, is on the rank's GPU; answers come
back on the CPU. Some things belong to the CPU in PyTorch and stay there: the states of random
generators, and an optimizer's count of steps. A generator of the CPU draws there, and its numbers
are then moved, so a DataLoader that shuffles works. A DataLoader's worker processes make their
batches on the CPU: a forked process cannot use a GPU. What they read must be there too
(`tensor.cpu()`).
"""

import os
import threading

import torch
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._pytree import tree_map_only

_start = threading.Thread.start


class _Default(DeviceContext):
    """Torch's own default device, but that each generator draws where it is.

    Torch (2.13) asks the GPU to draw with a generator of the CPU, which fails.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if generator is None or generator.device.type != "cpu" or not is_gpu(self.device):
            return super().__torch_function__(func, types, args, kwargs)
        if kwargs.get("device") is not None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if getattr(_target(args, kwargs), "is_meta", False):
            return func(*args, **kwargs)  # there is nothing to draw
        return self._drawn(func, args, kwargs)

    def _drawn(self, func, args, kwargs):
        """Draw on the CPU, and bring the numbers to where they are expected."""
        options = {**kwargs, "device": "cpu"} if func in _device_constructors() else {**kwargs}
        leaf = options.pop("requires_grad", False)
        cpu_args, options = tree_map_only(torch.Tensor, _on_cpu, (args, options))
        drawn = func(*cpu_args, **options)
        if not func.__name__.endswith("_"):
            return drawn.to(self.device).requires_grad_(leaf)
        with torch.no_grad():
            return _target(args, kwargs).copy_(drawn)


def _target(args, kwargs):
    """Give the first argument, which functions of torch.nn.init call `tensor`."""
    return args[0] if args else kwargs.get("tensor")


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu()


def make_default(device: torch.device | str | None) -> None:
    """Let this thread make on `device` what names no device; None is the CPU."""
    torch.set_default_device(None)
    if device is not None:
        context = _Default(device)
        context.__enter__()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = context  # so set_default_device finds it


def gpu_by_default() -> torch.device | None:
    """Give the GPU on which this thread makes what names no device; None where that is the CPU."""
    if not torch._C._len_torch_function_stack():  # in the twentieth part of the time
        return None
    device = torch.get_default_device()
    return device if is_gpu(device) else None


def lead_threads(device: str | None) -> None:
    """Let the threads that are started from now on begin on this GPU, as the main thread has.

    PyTorch keeps the current GPU and the default device for each thread; a new one has GPU 0 and
    the CPU, as before where `device` is None. `device` names its number: "cuda:2".
    """

    def start(thread: threading.Thread) -> None:
        run = thread.run

        def run_there():
            torch.accelerator.set_device_index(torch.device(device).index)
            make_default(device)
            run()

        thread.run = run_there
        _start(thread)

    threading.Thread.start = start if device is not None else _start


def is_gpu(device: torch.device) -> bool:
    """True for a device that works beside the processor, with memory and streams of its own."""
    return device.type not in ("cpu", "meta")


# A process that was forked, such as a DataLoader's worker, cannot use its parent's GPU.
os.register_at_fork(after_in_child=lambda: gpu_by_default() and torch.set_default_device(None))
