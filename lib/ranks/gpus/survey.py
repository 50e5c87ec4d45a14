"""Ask the CUDA driver which GPUs a process with this environment sees, and how full each is.

Run as a file, in a process of its own: whoever loads the driver can no longer be forked from. For
each GPU, in CUDA's own order, it prints the UUID, the bytes in use, the bytes in all (-1: unknown)
and the model. Only the driver knows that order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER change
it, and a GPU may be a part of one (MIG). How full it is NVML says, by UUID. No context is made, so
no memory is used. Leans on Python alone.
"""

import ctypes
import uuid


def survey() -> list[str]:
    """Give one line for each GPU; none where the driver refuses to work."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    nvml = _nvml()
    lines = []
    for index in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        model = ctypes.create_string_buffer(96)
        driver.cuDeviceGet(ctypes.byref(device), index)
        # The second version gives a part of a GPU an identity of its own.
        ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
        ask(raw, device)
        driver.cuDeviceGetName(model, len(model), device)
        name, used, total = _memory(nvml, str(uuid.UUID(bytes=bytes(raw))))
        lines.append(f"{name} {used} {total} {model.value.decode(errors='replace')}")
    return lines


def _nvml():
    """Load NVML, which counts memory; None where a container or a driver lacks it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _memory(nvml, identity: str) -> tuple[str, int, int]:
    """Give the name of a GPU or of a part of one, the bytes in use, and all bytes."""
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
    for name in (f"GPU-{identity}", f"MIG-{identity}"):
        if nvml and nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == 0:
            if nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0:
                return name, memory[2], memory[0]
            return name, -1, -1
    return f"GPU-{identity}", -1, -1


if __name__ == "__main__":
    for gpu in survey():
        print(gpu)
