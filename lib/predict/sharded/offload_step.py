"""The time of a step with offload, predicted: the rows that its device and its host would record.

The gradients go down while backward computes, the step and the way up overlap piece by piece, and a
delayed update overlaps the step with the next forward and backward (Ren et al. 2021,
"ZeRO-Offload", arXiv 2101.06840, section 4). A cache also leaves weights with the host, and fetches
those of a unit while the one before it computes (Cui et al. 2016, "GeePS", EuroSys).
"""

from lib.ledger import Ledger, Row
from lib.predict import step
from lib.predict.arguments import whole
from lib.predict.provenance import link_of, of_prediction
from lib.predict.shape import GPTShape, ModelShape
from lib.predict.sharded.offload import STEP_BYTES, HostSpeeds, chunks, resident_units


def offloaded_step(
    shape: ModelShape,
    batch: int,
    speeds,
    host: HostSpeeds,
    optimizer: str = "sgd",
    *,
    itemsize: int = 4,
    chunk_bytes: int = 32 * 2**20,
    delayed: bool = False,
    steps: int = 1,
) -> Ledger:
    """Predict the rows of training steps of one device whose optimizer is the host's.

    Each gradient is sent down as soon as it is complete. When backward has ended, the host steps
    piece by piece, and the weights of each piece go up while it steps the next; the device waits
    for the last of them. With `delayed`, the host steps with the gradients of the step before, and
    begins when they have arrived; so it works while the device does.
    `speeds.compute(flop, bytes)` gives the device's seconds.
    """
    run = Lanes(host)
    numels = {p.name: p.numel for p in shape.parameters}
    work = step.forward(shape, batch, None, itemsize) + step.backward(shape, batch, None, itemsize)
    per_number = STEP_BYTES[optimizer] * max(4, itemsize) // 4
    pieces = chunks([numels[p.name] * itemsize for p in shape.parameters], chunk_bytes)
    names = [p.name for p in shape.parameters]
    before: dict[str, float] = {}
    for _ in range(whole(steps, "steps")):
        arrived = {}
        for op in work:
            run.compute(op.name, speeds.compute(op.flop, op.bytes), op.bytes)
            for name in op.ready:
                arrived[name] = run.launch("to_host", numels[name] * itemsize)
        used, before = (before, arrived) if delayed else (arrived, before)
        landed = []
        for piece in pieces if used else ():
            inside = [names[n] for n in piece]
            after = max(used[name] for name in inside)
            nbytes = sum(numels[name] for name in inside) * per_number
            done = run.launch("step", nbytes, after, since=after if delayed else None)
            landed += [run.launch("to_device", numels[name] * itemsize, done) for name in inside]
        run.wait("to_device", max(landed, default=0.0))
    return Ledger(run.rows, source="predicted", meta=_provenance(speeds, host))


def cached_step(
    shape: ModelShape, batch: int, speeds, host: HostSpeeds, device_bytes: int,
    optimizer: str = "sgd", *, prefetch: int = 1, itemsize: int = 4,
    chunk_bytes: int = 32 * 2**20, steps: int = 1,
) -> Ledger:  # fmt: skip
    """Predict training steps whose weights are the host's, with a cache of `device_bytes`.

    Each block is a unit. As many as fit stay on the device, from the last on; the others are
    fetched in forward and again in backward, `prefetch` of them ahead (lib/single/parameter_cache).
    The optimizer is `offloaded_step`'s, but only weights that stay are sent up by the step. Raises
    ValueError for tied weights, and where `device_bytes` are too few.
    """
    if isinstance(shape, GPTShape) and shape.tied:
        raise ValueError("Two units share a tied weight. Predict the cache for an untied model.")
    numels = {p.name: p.numel for p in shape.parameters}
    units = [[p.name for p in shape.parameters if p.block == n] for n in range(shape.blocks)]
    sizes = [itemsize * sum(numels[name] for name in unit) for unit in units]
    resident = resident_units(sizes, device_bytes, prefetch)
    run = _Cached(host, {n: unit for n, unit in enumerate(units) if n not in resident}, prefetch)
    nbytes = {name: numel * itemsize for name, numel in numels.items()}
    work, names = step.passes(shape, batch, None, itemsize), [p.name for p in shape.parameters]
    per_number = STEP_BYTES[optimizer] * max(4, itemsize) // 4
    for _ in range(whole(steps, "steps")):
        arrived = {}
        for n, block in enumerate(work):
            run.begin(n, 1, nbytes)
            for op in block.forward:
                run.compute(op.name, speeds.compute(op.flop, op.bytes), op.bytes)
            if n != max(run.swapped, default=None):  # backward begins with it
                run.there.pop(n, None)
        for n in reversed(range(len(work))):
            run.begin(n, -1, nbytes)
            for op in work[n].backward:
                run.compute(op.name, speeds.compute(op.flop, op.bytes), op.bytes)
                arrived |= {name: run.launch("to_host", nbytes[name]) for name in op.ready}
            run.there.pop(n, None)
        landed = []
        for piece in chunks([nbytes[name] for name in names], chunk_bytes):
            inside = [names[k] for k in piece]
            moved = sum(numels[name] for name in inside) * per_number
            done = run.launch("step", moved, max(arrived[name] for name in inside))
            run.stepped |= dict.fromkeys(inside, done)
            stay = [name for name in inside for n in resident if name in units[n]]
            landed += [run.launch("to_device", nbytes[name], done) for name in stay]
        run.wait("to_device", max(landed, default=0.0))
    return Ledger(run.rows, source="predicted", meta=_provenance(speeds, host))


def _provenance(speeds, host: HostSpeeds) -> dict:
    """Return the `meta` of a prediction whose copies take the link to the host."""
    told = of_prediction(speeds)
    if not told or not host.link:
        return {}
    device = {name: told["speeds"][name] for name in ("gpu", "dtype") if name in told["speeds"]}
    return {"speeds": device | link_of(host.link, host.alpha, host.bandwidth)}


class Lanes:
    """Plays what the device, both directions of its link and the host do; each has a clock."""

    def __init__(self, host: HostSpeeds):
        self.host, self.clock, self.rows = host, 0.0, []
        self.free = dict.fromkeys(("to_host", "to_device", "step"), 0.0)

    def compute(self, name: str, seconds: float, nbytes: int = 0) -> None:
        """Let the device compute for so long."""
        start, self.clock = self.clock, self.clock + seconds
        self.rows.append(Row(0, "compute", name, start, self.clock, bytes=nbytes))

    def launch(self, op: str, nbytes: int, after: float = 0.0, since: float | None = None) -> float:
        """Put a copy or the host's work into its lane; return when it ends."""
        launched = self.clock if since is None else since
        needs = self.host.working(nbytes) if op == "step" else self.host.moving(nbytes)
        end = self.free[op] = max(launched, self.free[op], after) + needs
        numbered = {"group": "host", "members": (0,), "number": len(self.rows), "bytes": nbytes}
        self.rows.append(Row(0, "comm", op, launched, end, arrived=launched, **numbered))
        return end

    def wait(self, op: str, end: float) -> None:
        """Let the device wait until then."""
        if end > self.clock:
            self.rows.append(Row(0, "wait", op, self.clock, end, group="host", members=(0,)))
            self.clock = end


class _Cached(Lanes):
    """Adds the units that come and go, and when what is on its way to the device arrives."""

    def __init__(self, host: HostSpeeds, swapped: dict[int, list[str]], prefetch: int):
        super().__init__(host)
        self.swapped, self.prefetch = swapped, prefetch
        self.there: dict[int, float] = {}  # units -> when their weights have arrived
        self.stepped: dict[str, float] = {}  # weights -> when their last step has ended

    def begin(self, n: int, direction: int, nbytes: dict[str, int]) -> None:
        """Wait for a unit that comes and goes, and fetch those that are used next."""
        if n not in self.swapped:
            return
        order = list(self.swapped)
        place = order.index(n)
        ahead = [place + direction * k for k in range(1, self.prefetch + 1)]
        near = [order[k] for k in ahead if 0 <= k < len(order)]
        self.fetch(n, nbytes)
        self.there = {unit: end for unit, end in self.there.items() if unit in (n, *near)}
        self.wait("to_device", self.there[n])
        for unit in near:
            self.fetch(unit, nbytes)

    def fetch(self, unit: int, nbytes: dict[str, int]) -> None:
        """Start to copy the weights of a unit to the device, unless they are there."""
        if unit not in self.there:
            ends = [self.launch("to_device", nbytes[name], self.stepped.get(name, 0.0))
                    for name in self.swapped[unit]]  # fmt: skip
            self.there[unit] = max(ends, default=0.0)
