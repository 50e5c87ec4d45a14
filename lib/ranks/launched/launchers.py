"""Which rank a process is, and where the ranks meet, as launchers say it in the environment.

[Note: launchers]
Each launcher has its own names for the same few numbers. A name that is not set is looked for in
the order in which it stands; the first launcher whose rank is set is believed, since the outer ones
leave their names behind: `srun torchrun`, or `mpirun` inside a SLURM job.

* torchrun sets all six. By hand RANK and WORLD_SIZE are enough.
* Open MPI and Hydra (MPICH, Intel MPI) say all but where to meet.
* SLURM says it in lists: `SLURM_STEP_TASKS_PER_NODE=4(x2),3` and
  `SLURM_STEP_NODELIST=node[01-03]`. Names with STEP are of this `srun`, others of the whole job.

Where MASTER_ADDR is not set, the ranks meet on the first host of SLURM's list, or on loopback if
there is one host. Where MASTER_PORT is not set, the port is one of 20000 to 29999, made from the
number of the job, so that two jobs on one host do not meet: see `_port`.
"""

import itertools
import re
import zlib
from typing import NamedTuple


class Place(NamedTuple):
    """Where a process stands; `local` and `here` are None where no launcher says them."""

    rank: int
    size: int
    local: int | None  # the number of this rank among those on its host
    here: int | None  # ranks on this host
    address: str  # where the ranks meet
    port: int


class Launcher(NamedTuple):
    """The names that one launcher has for each number, the best first."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local: tuple[str, ...]
    here: tuple[str, ...]
    hosts: tuple[str, ...] = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
    job: tuple[str, ...] = ("SLURM_JOB_ID",)  # all of them together tell this job from others


LAUNCHERS = (
    Launcher("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "SLURM_JOB_ID"),
    ),
    Launcher(
        "SLURM",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
        ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    Launcher("PMI", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",)),
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def place(environment: dict) -> Place:
    """Read this process's place from the environment that its launcher made.

    Raises RuntimeError where no launcher has set it, where a name is missing, and where two names
    contradict each other.
    """
    launcher = _launcher(environment)
    (named, rank), (counted, size) = (
        _needed(environment, names, launcher) for names in (launcher.rank, launcher.size)
    )
    if not 0 <= rank < size:
        raise RuntimeError(
            f"{named} is {rank} and {counted} is {size}. The ranks of a world of {size} go from 0 "
            f"to {size - 1}, so one of the two is wrong."
        )
    known = _first(environment, launcher.local)
    local = _whole(environment, known) if known else None
    shared, here = _here(environment, launcher, size)
    if here is None and _one_host(environment, launcher, size):
        shared, here = counted, size
    if local is None and here == size:
        known, local = named, rank
    if local is not None and here is not None and not 0 <= local < here <= size:
        raise RuntimeError(
            f"{known} is {environment[known]}, {shared} is {environment[shared]} and {counted} is "
            f"{size}. A host has at most {size} ranks, and they count themselves from 0, so one of "
            "these is wrong."
        )
    address = _address(environment, launcher, here == size)
    return Place(rank, size, local, here, address, _port(environment, launcher))


def _launcher(environment: dict) -> Launcher:
    by_hydra = "MPI_LOCALRANKID" in environment  # under `srun --mpi=pmi2` PMI_RANK is SLURM's own
    for launcher in sorted(LAUNCHERS, key=lambda one: by_hydra and one.name == "SLURM"):
        if _first(environment, launcher.rank):
            return launcher
    raise RuntimeError(
        "World.from_torchrun() is for a script that a launcher starts: RANK is not set. Start it "
        "as: torchrun --nproc-per-node=4 script.py, or with SLURM: srun --ntasks=4 python "
        "script.py. In a notebook, World(4) starts the ranks itself."
    )


def _first(environment: dict, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if environment.get(name)), None)


def _needed(environment: dict, names: tuple[str, ...], launcher: Launcher) -> tuple[str, int]:
    name = _first(environment, names)
    if name is None:
        raise RuntimeError(
            f"{launcher.rank[0]} is set, as {launcher.name} does it, and {' or '.join(names)} is "
            "not: the number of ranks is unknown. Start the script with its launcher, or set "
            "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
        )
    return name, _whole(environment, name)


def _whole(environment: dict, name: str) -> int:
    if not environment[name].strip().isdecimal():
        raise RuntimeError(f"{name} is {environment[name]!r}, which is not a whole number.")
    return int(environment[name])


def _here(environment: dict, launcher: Launcher, size: int) -> tuple[str | None, int | None]:
    """Give how many ranks this host has, and the name that says it; None where nothing does."""
    name = _first(environment, launcher.here)
    if name is None or launcher.name != "SLURM":
        return name, _whole(environment, name) if name else None
    if name == "SLURM_NTASKS_PER_NODE":  # as many as were asked for: the last host may have fewer
        asked = _whole(environment, name)
        return (name, asked) if asked < size else (None, None)
    counts = tasks_per_node(environment[name], name)
    if sum(counts) != size:
        counted = _first(environment, launcher.size)
        raise RuntimeError(
            f"{name} is {environment[name]}, which makes {sum(counts)} ranks, and {counted} is "
            f"{size}. Start the script with srun itself, so that both speak of the same ranks."
        )
    if len(set(counts)) == 1:
        return name, counts[0]
    if not environment.get("SLURM_NODEID"):
        return None, None
    node = _whole(environment, "SLURM_NODEID")
    if node >= len(counts):
        raise RuntimeError(
            f"SLURM_NODEID is {node}, and {name} is {environment[name]}, which speaks of "
            f"{len(counts)} hosts, 0 to {len(counts) - 1}."
        )
    return name, counts[node]


def _one_host(environment: dict, launcher: Launcher, size: int) -> bool:
    name = _first(environment, launcher.hosts)
    listed = hosts(environment[name]) if name else ()
    return size == 1 or len(listed) == 1 or environment.get("MASTER_ADDR") in _LOOPBACK


def tasks_per_node(text: str, name: str = "SLURM_TASKS_PER_NODE") -> list[int]:
    """Give the ranks of each host: `4(x2),3` is [4, 4, 3]."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise RuntimeError(
            f"{name} is {text!r}, which is not of the form 4(x2),3: the ranks of each host, and "
            "how many hosts have so many."
        )
    return [int(part[1]) for part in parts for _ in range(int(part[2] or 1))]


_NAME = r"[^\[\],\s]*(?:\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\][^\[\],\s]*)*"


def hosts(text: str) -> list[str]:
    """Expand SLURM's list of hosts: `a1,node[01-03,07]` is a1, node01, node02, node03, node07."""
    if not re.fullmatch(f"(?=[^,]){_NAME}(,(?=[^,]){_NAME})*", text):
        raise RuntimeError(f"{text!r} is not a list of hosts of the form a1,node[01-03,07].")
    names = re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", text)
    parts = [re.split(r"[\[\]]", name) for name in names]  # every second one stood in brackets
    choices = [[_numbers(p) if i % 2 else [p] for i, p in enumerate(name)] for name in parts]
    return ["".join(choice) for name in choices for choice in itertools.product(*name)]


def _numbers(text: str) -> list[str]:
    """Expand what stands in brackets: `01-03,7` is 01, 02, 03, 7; a number keeps its zeros."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def _address(environment: dict, launcher: Launcher, one_host: bool) -> str:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if one_host:
        return "127.0.0.1"
    name = _first(environment, launcher.hosts)
    if name is None:
        raise RuntimeError(
            f"MASTER_ADDR is not set, and {launcher.name} does not say on which host rank 0 is. "
            "Set it to the name or the address of that host, the same for all ranks."
        )
    return hosts(environment[name])[0]


def _port(environment: dict, launcher: Launcher) -> int:
    """Give MASTER_PORT; else a port that all ranks of this job make alike, from its number."""
    if environment.get("MASTER_PORT"):
        return _whole(environment, "MASTER_PORT")
    job = "/".join(environment.get(name, "") for name in launcher.job)
    return 20000 + zlib.crc32(job.encode()) % 10000
