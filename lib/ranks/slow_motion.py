"""Slow motion: real processes and real tensors, every operation stretched to a chosen GPU's time.

[Note: slow motion]
A rank has a compute clock. Each operation moves it on by its roofline time × factor (roofline.py),
and the rank sleeps until the wall clock is there. Collectives and messages run in lanes beside it
(lanes.py) and take α–β time × factor; who waits for one moves his clock to its end. The clock never
asks how long the real work took: a rank that was late once catches up, so no error adds up. A rank
that is more than 0.2 s late (an import, a wait for data, real work slower than the stretched time)
goes on from there. Rows are written on this clock: an operation lies where it belongs, though it
was done a little late. How late at worst, with all that was not caught up, is written down as
"slipped". Eight ranks sleep on two cores as well as on eight.
"""

from dataclasses import dataclass

from lib.predict.traffic import time_of
from lib.ranks.desk import desk
from lib.ranks.motion import Motion


@dataclass(frozen=True, repr=False)
class SlowMotion:
    """How `World(8, slow_motion=SlowMotion("H100", link="NVLink4", factor=1000))` stretches time.

    Times are those of `gpu` at its dense peak in `dtype` and of `link` (default: the GPU's own),
    × `factor`. Tensors keep the bytes they have. `peak` (FLOP/s), `memory_bandwidth`, `bandwidth`
    (bytes/s, one way) and `alpha` (s for one round) replace what data/hardware.yaml says.
    Raises ValueError for an unknown name, or a factor that is not above 0.
    """

    gpu: str = "H100"
    link: str | None = None
    factor: float = 1000.0
    dtype: str = "bf16"
    peak: float | None = None
    memory_bandwidth: float | None = None
    alpha: float | None = None
    bandwidth: float | None = None

    def __post_init__(self):
        from lib.predict import hardware

        if not self.factor > 0:
            raise ValueError(f"factor={self.factor!r}: time is stretched by a number above 0")
        object.__setattr__(self, "given", self._given())
        gpu = hardware.gpu(self.gpu)
        link = hardware.link(self.link or gpu.link)
        found = {
            "link": self.link or gpu.link,
            "peak": gpu.peak[self.dtype].value,
            "memory_bandwidth": gpu.memory_bandwidth.value,
            "alpha": link.alpha,
            "bandwidth": link.bandwidth,
        }
        for name, value in found.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, float(value) if name != "link" else value)

    def _given(self) -> str:
        names = ("link", "factor", "dtype", "peak", "memory_bandwidth", "alpha", "bandwidth")
        said = (f"{n}={getattr(self, n)!r}" for n in names if getattr(self, n) is not None)
        return f"SlowMotion({self.gpu!r}, {', '.join(said)})"

    def __repr__(self):
        return self.given

    def run(self, step, *args, **kwargs):
        """Call `step` on this rank with every operation stretched."""
        motion = desk.slow = Motion(self)
        try:
            with motion:
                result = step(*args, **kwargs)
            desk.ended = motion.moment()
            return result
        finally:
            desk.slow = None
            desk.slipped = motion.slipped
            motion.close()

    def compute(self, flop: float, nbytes: float) -> float:
        """Give the unstretched seconds of one operation: the longer side of the roofline."""
        return max(flop / self.peak, nbytes / self.memory_bandwidth)

    def seconds(self, f, *args) -> float:
        """Give the unstretched seconds of all operations in `f(*args)`, which is called once."""
        from lib.ranks.roofline import Tally

        with Tally() as tally:
            f(*args)
        return sum(self.compute(flop, nbytes) for flop, nbytes in tally.costs)

    def moving(self, op: str, ranks: int, nbytes: int) -> float:
        """Give the unstretched seconds of one collective or message."""
        return time_of(op, ranks, nbytes, alpha=self.alpha, beta=1 / self.bandwidth)
