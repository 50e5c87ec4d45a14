"""The roofline of a device and the cost of its link: seconds of an operation and of an exchange.

Every prediction and slow motion take their times from here, so one operation has one time.
"""

from dataclasses import dataclass

from lib.predict.collectives.formulas import time_of


class Roofline:
    """Gives times from four figures, which a subclass holds.

    `peak` is in FLOP/s and `memory_bandwidth` in bytes/s; `alpha` (s for each round) and
    `bandwidth` (bytes/s, one way) describe the link. `measured` holds a calibration of this machine
    that stands for the device, and one that stands for the link; each may be None.
    """

    dtype = "bf16"
    measured: tuple = (None, None)

    def compute(self, flop: float, nbytes: float) -> float:
        """Return the seconds of one operation: those of its arithmetic or of its memory traffic.

        A device does both at once, so the longer of the two counts.
        """
        if self.measured[0] is not None:
            return self.measured[0].compute(flop, nbytes, self.dtype)
        return max(flop / self.peak, nbytes / self.memory_bandwidth)

    def moving(self, op: str, ranks: int, nbytes: float) -> float:
        """Return the seconds of one collective, whose buffer has `nbytes`, or of one message."""
        if self.measured[1] is not None:
            return self.measured[1].moving(op, ranks, nbytes)
        return time_of(op, ranks, nbytes, alpha=self.alpha, beta=1 / self.bandwidth)


@dataclass(frozen=True)
class Speeds(Roofline):
    """Holds the four figures of a device and its link, and their names for captions."""

    peak: float
    memory_bandwidth: float
    alpha: float
    bandwidth: float
    dtype: str = "bf16"
    measured: tuple = (None, None)
    gpu: str = ""
    link: str = ""


def speeds(gpu: str = "H100", link: str | None = None, dtype: str = "bf16") -> Speeds:
    """Look up a device and a link (by default the device's own) by name.

    `peak` is the device's dense peak in `dtype`. "this machine" is what `calibrate` has measured.
    Raises ValueError for a name that is not known.
    """
    from lib.predict import hardware  # here, because a rank needs no table

    device = hardware.gpu(gpu)
    network = hardware.link(link or device.link)
    figures = device.peak[dtype], device.memory_bandwidth, network.alpha, network.bandwidth
    measured = hardware.calibrated(device.name), hardware.calibrated(network.name)
    return Speeds(*map(float, figures), dtype, measured, gpu, network.name)
