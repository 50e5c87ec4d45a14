"""Slow motion: real processes and real tensors, every operation stretched to a chosen GPU's time.

[Note: slow motion]
A rank has a compute clock. Each operation moves it on by its roofline time × factor (roofline.py),
and the rank sleeps until the wall clock is there. Collectives and messages run in lanes beside it
(comm_lanes.py) and take α–β time × factor; a rank that waits for one moves its clock to the end of
it. The clock never asks how long the real work took: a rank that was late once catches up, so no
error adds up. A rank that is more than 0.2 s late (an import, a wait for data, real work slower
than the stretched time) goes on from there. Rows are written on this clock: an operation lies where
it belongs, though it was done a little late. How late at worst, with all that was not caught up, is
written down as "slipped". Eight ranks sleep on two cores as well as on eight.
"""

import contextlib
from dataclasses import dataclass, fields

from lib.predict.larger import Larger
from lib.predict.roofline import Roofline, between_nodes
from lib.ranks.slow.compute_clock import ComputeClock
from lib.ranks.state.this_rank import this_rank


@dataclass(frozen=True, repr=False)
class SlowMotion(Roofline):
    """How `World(8, slow_motion=SlowMotion("H100", link="NVLink4", factor=1000))` stretches time.

    Times are those of `gpu` at its dense peak in `dtype` and of `link` (default: the GPU's own),
    × `factor`. `peak` (FLOP/s), `memory_bandwidth`, `bandwidth` (bytes/s, one way) and `alpha` (s
    for one round) replace what data/hardware.yaml says. The GPU or the link may be "this machine":
    then the times are those that `calibrate` has measured. Tensors have the sizes they have, unless
    the run `stands_for` a large model (a `Larger`, lib/predict/larger.py): then each operation and
    message takes the time of the large model's, and its row has the large model's bytes and FLOP.
    With node=4 and between="InfiniBand NDR", ranks 0 to 3 are on one node, 4 to 7 on the next, and
    what passes between nodes takes the time of that link.
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
    stands_for: Larger | None = None
    node: int | None = None
    between: str | None = None

    def __post_init__(self):
        from lib.predict import hardware

        if not self.factor > 0:
            raise ValueError(f"factor={self.factor!r}: time is stretched by a number above 0.")
        object.__setattr__(self, "given", self._given())
        object.__setattr__(self, "nodes", between_nodes(self.node, self.between))
        gpu = hardware.gpu(self.gpu)
        link = hardware.link(self.link or gpu.link)
        replaced = self.peak is not None or self.memory_bandwidth is not None
        device = None if replaced else hardware.calibrated(self.gpu)
        replaced = self.alpha is not None or self.bandwidth is not None
        measured_link = None if replaced else hardware.calibrated(link.name)
        object.__setattr__(self, "measured", (device, measured_link))  # instead of a roofline
        of_hardware = {
            "link": self.link or gpu.link,
            "peak": gpu.peak[self.dtype].value,
            "memory_bandwidth": gpu.memory_bandwidth.value,
            "alpha": link.alpha,
            "bandwidth": link.bandwidth,
        }
        for name, value in of_hardware.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, float(value) if name != "link" else value)

    def _given(self) -> str:
        names = [field.name for field in fields(self)][1:]
        keywords = (f"{n}={getattr(self, n)!r}" for n in names if getattr(self, n) is not None)
        return f"SlowMotion({self.gpu!r}, {', '.join(keywords)})"

    def __repr__(self):
        return self.given

    @contextlib.contextmanager
    def stretched(self, began: int | None = None):
        """Stretch every operation of this rank inside the `with`; give its ComputeClock.

        `began` (ns) is when all ranks of the call began, None where they did not agree on that.
        """
        clock = this_rank.slow = ComputeClock(self, began)
        try:
            with clock:
                yield clock
            clock.ended = clock.moment()
        finally:
            this_rank.slow = None
            clock.close()

    def seconds(self, f, *args) -> float:
        """Give the unstretched seconds of all operations in `f(*args)`, which is called once."""
        from lib.ranks.slow.roofline import Tally

        with Tally(self.stand_ins) as tally:
            f(*args)
        return sum(self.compute(flop, nbytes) for flop, nbytes in tally.costs)

    @property
    def stand_ins(self):
        """Give what puts a large model's tensors in place of the run's, if it stands for one."""
        if not self.stands_for:
            return None
        from lib.ranks.slow.stand_ins import StandIns

        return StandIns(self.stands_for)

    def bytes_of(self, tensors) -> int:
        """Give the bytes of tensors, or those that they stand for."""
        stand_ins = self.stand_ins
        return stand_ins.bytes_of(tensors) if stand_ins else sum(t.nbytes for t in tensors)

    def describe(self) -> str:
        """Say in one sentence whose times these are, and what the run stands for."""
        from lib.predict.provenance import speeds_of

        invented = speeds_of(self).get("invented", False)
        link = f"an invented link in place of {self.link}" if invented else self.link
        figures = f"latency {self.alpha * 1e6:.3g} µs, {self.bandwidth / 1e9:,.4g} GB/s one way"
        large = f" The run stands for {self.stands_for}." if self.stands_for else ""
        if out := self.nodes:
            figures += (
                f"; between nodes of {out.ranks} ranks {out.link}: latency {out.alpha * 1e6:.3g} "
                f"µs, {out.bandwidth / 1e9:,.4g} GB/s"
            )
        return (
            f"Durations are those of the {self.gpu} and of {link} ({figures}), played "
            f"{self.factor:,.6g} times slower.{large}"
        )
