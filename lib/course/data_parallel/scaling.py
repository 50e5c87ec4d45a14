"""Strong and weak scaling of DDP on nodes of eight H100s, predicted, and one published run."""

from dataclasses import dataclass
from math import log2
from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict.collectives.nodes import Nodes
from lib.predict.data.ddp_step import data_parallel_step, exposed, gradients_per_bucket
from lib.predict.hardware import link
from lib.predict.roofline import Speeds, speeds
from lib.predict.shape import GPTShape, ModelShape

# Tokens/s of each GPU by number of GPUs, 8 in a node, and bus bandwidth in bytes/s of an all-reduce
# of 256 MB on the same nodes. Source: the Ultra-Scale Playbook (Hugging Face, 2025), data of its
# figures: vinjn/nanotron-ultrascale-playbook@e3bcfc5, assets/data/benchmarks/dp_scaling.html and
# pp_comm_bandwidth.html.
MEASURED_THROUGHPUT = {
    8: 40149.94, 16: 37609.69, 32: 35367.61, 64: 31112.23, 128: 26446.44, 256: 15700.38,
}  # fmt: skip
MEASURED_BANDWIDTH = {8: 436e9, 16: 361.7e9, 32: 160.1e9, 64: 99.6e9, 128: 84.7e9, 256: 64.9e9}
# The parameters of that model: two matrices of 12,288 stand for its gated MLP's three of 8,192.
MEASURED_SHAPE = GPTShape(
    131_072, sequence=4096, width=2048, heads=32, layers=16, hidden=12_288, tied=True
)


@dataclass(frozen=True)
class Cluster:
    """Gives the times of H100s in nodes: operations of one GPU, and all-reduces of all of them."""

    nodes: Nodes
    device: Speeds

    def compute(self, flop: float, nbytes: float) -> float:
        """Return the seconds of one operation."""
        return self.device.compute(flop, nbytes)

    def moving(self, op: str, ranks: int, nbytes: float) -> float:
        """Return the seconds of an all-reduce with a ring in each node and trees between the nodes.

        Both levels work at the same time, on different chunks, so the bytes of the slower one
        count. The trees are NCCL's two binary trees: 2 log2(N) rounds for N nodes, and the bytes of
        a ring. Source: Sanders, Speck and Träff 2009, Parallel Computing 35(12).
        """
        count, k, inside, outside = self.nodes.count, self.nodes.ranks, *self.nodes[2:4]
        latency = 2 * (k - 1) * inside.alpha + 2 * log2(count) * outside.alpha
        return latency + max(
            2 * (k - 1) / k * nbytes * inside.beta,
            2 * (count - 1) / count * nbytes / self.nodes.rails * outside.beta,
        )


def cluster(ranks: int, outside: str, rails: int) -> Cluster:
    """Describe `ranks` H100s, 8 to a node with NVLink 4; `rails` links lead out of each node."""
    count = max(ranks // 8, 1)
    nodes = Nodes(count, ranks // count, link("NVLink4"), link(outside), rails)
    return Cluster(nodes, speeds("H100"))


def overlapped_step(
    shape: ModelShape, samples: int, ranks: int, outside: str = "InfiniBand NDR", rails: int = 8
) -> Ledger:
    """Predict DDP's step on H100s, 8 to a node, each with `samples` of its own; PyTorch's buckets.

    All ranks do the same at the same time, so the ledger has one rank.
    """
    hardware = cluster(ranks, outside, rails)
    return data_parallel_step(shape, [samples], hardware, buckets=gradients_per_bucket(shape))


class Scaled(NamedTuple):
    """Holds what `ranks` GPUs reach: speed-up and efficiency for one batch, weak efficiency."""

    ranks: int
    speed_up: float
    strong: float
    weak: float


def scaling(
    shape: ModelShape, outside: str, rails: int, *, whole: int = 512, samples: int = 8
) -> list[Scaled]:
    """Predict 1, 2, 4, ... GPUs, until each has one of the `whole` batch's samples.

    Strong scaling shares that batch; weak scaling gives each GPU `samples`.
    """
    alone, own = (overlapped_step(shape, n, 1).makespan for n in (whole, samples))
    rows = []
    for ranks in (2**power for power in range(whole.bit_length())):
        network = ranks, outside, rails
        speed_up = alone / overlapped_step(shape, whole // ranks, *network).makespan
        weak = own / overlapped_step(shape, samples, *network).makespan
        rows.append(Scaled(ranks, speed_up, speed_up / ranks, weak))
    return rows


def table(rows: list[Scaled]) -> str:
    """Write the rows of one `scaling` as a table: speed-up of the strong one, both efficiencies."""
    lines = [f"{'GPUs':>5}{'speed-up':>10}{'strong':>8}{'weak':>6}"]
    for row in rows:
        lines.append(f"{row.ranks:>5}{row.speed_up:>10.1f}{row.strong:>8.0%}{row.weak:>6.0%}")
    return "\n".join(lines)


def efficiencies(runs: dict[str, list[Scaled]]) -> dict[str, tuple]:
    """Return lines for `lib.draw.curve`: strong and weak efficiency against the number of GPUs.

    Efficiencies below 5 % are left out, so that the axis can be linear. As long as a line is that
    of the first run, only its last point is kept, so that none lies on another.
    """
    lines, (first, *_) = {}, runs.values()
    for kind in ("strong", "weak"):
        for name, rows in runs.items():
            points = [(row.ranks, getattr(row, kind)) for row in rows]
            others = [(row.ranks, getattr(row, kind)) for row in first]
            same = sum(map(tuple.__eq__, points, others))
            begin = 0 if rows is first else max(same - 1, 0)
            shown = [(ranks, value) for ranks, value in points[begin:] if value >= 0.05]
            lines[f"{kind}, {name}"] = tuple(zip(*shown))
    return lines


class Published(NamedTuple):
    """Compares a measured throughput, in tokens/s of each GPU, with two predictions of it."""

    ranks: int
    measured: float
    efficiency: float
    hidden: float  # links at their full bandwidth, overlap as in `overlapped_step`
    exposed: float  # all-reduces at their measured bandwidth, and nothing hidden


def published(samples: int = 2) -> list[Published]:
    """Predict the published throughputs from that of 8 GPUs, which gives the time of compute.

    Each GPU has `samples` sequences in a step and averages float32 gradients.
    """
    tokens, nbytes = samples * MEASURED_SHAPE.sequence, MEASURED_SHAPE.nbytes()
    first = tokens / MEASURED_THROUGHPUT[8]

    def added(ranks: int) -> tuple[float, float]:
        ring = 2 * (ranks - 1) / ranks * nbytes / MEASURED_BANDWIDTH[ranks]
        return exposed(overlapped_step(MEASURED_SHAPE, samples, ranks, "EFA 400")), ring

    rows = []
    for ranks, measured in MEASURED_THROUGHPUT.items():
        steps = [first + more - usual for more, usual in zip(added(ranks), added(8))]
        efficiency = measured / MEASURED_THROUGHPUT[8]
        rows.append(Published(ranks, measured, efficiency, *(tokens / step for step in steps)))
    return rows
