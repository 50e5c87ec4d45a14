"""The device that PyTorch's own classes choose by themselves: that of this rank's world.

[Note: what PyTorch takes]
FSDP2 makes its default mesh, and torch.get_device_module its module, of whatever accelerator the
installed PyTorch was built for. In a world on the CPU that is wrong: on a machine with GPUs the
model would go to a GPU of which the world knows nothing, and without one it would be an error.
Object collectives, barrier and DeviceMesh ask the group or are told, and need no help.
"""

import torch

_accelerator = torch._C._get_accelerator


def follow(device: str | None) -> None:
    """Let PyTorch's classes take the CPU in a world on the CPU; None: as it was before."""
    cpu = torch.device("cpu")
    torch._C._get_accelerator = (lambda *_: cpu) if device == "cpu" else _accelerator
    torch.get_device_module.cache_clear()  # it remembers what it was told
