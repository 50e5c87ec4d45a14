"""Offload, predicted: bytes in two memories, traffic over their link, and the time of a step.

    device  weights 2ψ                       gradients 2ψ down ─┐    ┌─ weights 2ψ up
    host    weights 4ψ · states 8ψ · gradients 2ψ   <───────────┘ step └───────────>

ψ is the number of parameters, for weights of 16 bits and Adam. Source: Ren et al. 2021,
"ZeRO-Offload" (arXiv 2101.06840), sections 3.3 to 3.5 and table 1; Cui et al. 2016, "GeePS"
(EuroSys).
"""

from dataclasses import dataclass
from typing import NamedTuple

from lib.predict import hardware
from lib.predict.arguments import real, whole
from lib.predict.shape import ModelShape

# Bytes that the step of an optimizer reads and writes in its memory, for each parameter in fp32:
# weight and gradient read, weight written; Adam also reads and writes its two states.
STEP_BYTES = {"sgd": 12, "adam": 28, "adamw": 28}
# Memory bandwidth of the host for each GPU of NVIDIA's machines, in bytes/s: sockets × channels ×
# transfers/s × 8 bytes ÷ GPUs. DGX-2: 2 Xeon 8168, 6 × DDR4-2666, 16 GPUs; DGX A100: 2 EPYC 7742,
# 8 × DDR4-3200, 8 GPUs; DGX H100 and H200: 2 Xeon 8480C, 8 × DDR5-4800, 8 GPUs; DGX B200: 2 Xeon
# 8570, 8 × DDR5-5600, 8 GPUs. Sources: the data sheets of the machines and of their processors.
HOST_MEMORY = {
    "V100": 2 * 6 * 2666e6 * 8 / 16,
    "A100": 2 * 8 * 3200e6 * 8 / 8,
    "H100": 2 * 8 * 4800e6 * 8 / 8,
    "H200": 2 * 8 * 4800e6 * 8 / 8,
    "B200": 2 * 8 * 5600e6 * 8 / 8,
}


@dataclass(frozen=True)
class HostSpeeds:
    """Holds the figures of a link to the host (latency in s, bytes/s one way) and of its memory."""

    alpha: float
    bandwidth: float
    memory_bandwidth: float
    link: str = ""

    def moving(self, nbytes: int) -> float:
        """Return the seconds of one copy in one direction."""
        return self.alpha + nbytes / self.bandwidth

    def working(self, nbytes: int) -> float:
        """Return the seconds in which the host reads and writes `nbytes` in its memory."""
        return nbytes / self.memory_bandwidth


def host_speeds(
    gpu: str = "H100", link: str | None = None, memory_bandwidth: float | None = None
) -> HostSpeeds:
    """Look up the link from a GPU to its host, and the host's memory bandwidth for each GPU.

    Raises ValueError for a GPU whose machine is not known here, unless `memory_bandwidth` is given.
    """
    device = hardware.gpu(gpu)
    network = hardware.link(link or device.host)
    if memory_bandwidth is None and device.name not in HOST_MEMORY:
        raise ValueError(
            f"The memory of the host of a {device.name} is not known here, only that of "
            f"{', '.join(HOST_MEMORY)}. Say memory_bandwidth=..., in bytes/s for each GPU."
        )
    bandwidth = HOST_MEMORY[device.name] if memory_bandwidth is None else memory_bandwidth
    bandwidth = real(bandwidth, "memory_bandwidth", zero=False)
    return HostSpeeds(float(network.alpha), float(network.bandwidth), bandwidth, network.name)


class Offloaded(NamedTuple):
    """Holds bytes that last through a step: on the device, and by kind in the host's memory."""

    device_weights: int
    host_weights: int
    host_gradients: int
    host_states: int

    @property
    def host(self) -> int:
        """Return all bytes in the host's memory."""
        return self.host_weights + self.host_gradients + self.host_states


def offloaded_bytes(
    shape: ModelShape, optimizer: str = "adamw", itemsize: int = 2, *, delayed: bool = False
) -> Offloaded:
    """Return the bytes of ZeRO-Offload with weights and gradients of `itemsize` bytes.

    The host's weights and states have 4 bytes, or more where the device's have. Gradients narrower
    than these are widened there piece by piece, and a `delayed` update keeps them twice.
    """
    from lib.predict.memory import optimizer_states

    wide = max(4, whole(itemsize, "itemsize"))
    gradients = shape.nbytes(itemsize) * (2 if delayed else 1)
    states = optimizer_states(shape, optimizer, wide)
    return Offloaded(shape.nbytes(itemsize), shape.nbytes(wide), gradients, states)


def traffic(shape: ModelShape, itemsize: int = 2) -> tuple[int, int]:
    """Return the bytes of a step over the link: gradients down, and weights up."""
    return shape.nbytes(itemsize), shape.nbytes(itemsize)


def resident_units(
    sizes: list[int], device_bytes: int, prefetch: int = 1, always: int = 0
) -> list[int]:
    """Return which units a parameter cache keeps on the device: as many as fit, from the last on.

    `sizes` are the bytes of the units, and `always` those of weights in no unit. What is left must
    hold a unit and the `prefetch` ones that are fetched ahead of it, whichever these are. Raises
    ValueError where it cannot.
    """
    room = whole(device_bytes, "device_bytes") - always
    for first in range(len(sizes) + 1):
        swapped, kept = sizes[:first], sum(sizes[first:])
        if kept + most_at_once(swapped, prefetch) <= room:
            return list(range(first, len(sizes)))
    raise ValueError(
        f"A unit and the {prefetch} fetched ahead of it need "
        f"{most_at_once(sizes, prefetch) + always:,} bytes, and the cache has {device_bytes:,}. "
        "Choose more bytes, smaller units or a smaller prefetch."
    )


def most_at_once(sizes: list[int], prefetch: int) -> int:
    """Return the most bytes of a unit and the `prefetch` ones beside it; a cache holds no more."""
    window = prefetch + 1
    return max((sum(sizes[n : n + window]) for n in range(len(sizes))), default=0)


def chunks(sizes: list[int], chunk_bytes: int) -> list[list[int]]:
    """Cut parameters of these bytes, the last first, into pieces of at least `chunk_bytes`.

    Returns their positions; the last piece may have less. In this order gradients arrive.
    """
    pieces, size = [[]], 0
    for n in reversed(range(len(sizes))):
        if size >= whole(chunk_bytes, "chunk_bytes"):
            pieces.append([])
            size = 0
        pieces[-1].append(n)
        size += sizes[n]
    return pieces
