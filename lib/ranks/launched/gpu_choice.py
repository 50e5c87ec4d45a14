"""Which GPU each rank of a launched world takes, agreed by all of them from what each one sees.

[Note: what a process sees]
Under torchrun all processes of a host see all its GPUs. SLURM's `--gpus-per-task` and `--gpu-bind`
show each process one of its own, and every process calls that one number 0. One GPU that four
processes share looks just like that. What tells them apart is the GPU's own name (its UUID), so
the ranks exchange what they see before they choose; all of them then come to the same decision.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from lib.ranks.gpus.devices import accelerator

_SIGNS = ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")


@dataclass(frozen=True)
class Sight:
    """What one process of a launched world sees."""

    host: str
    local: int | None  # its number on its host, where the launcher says it
    gpus: list[str]  # the names of the GPUs that it sees, in the order of their numbers
    promised: bool = False  # whether something in its environment speaks of GPUs


def assign(sights: list[Sight]) -> list[int | None]:
    """Give the number of the GPU that each rank takes, as the rank itself counts them.

    Ranks of a host choose in their order there: each takes the first GPU it sees that nobody has
    taken. None for a rank that finds none.
    """
    taken, numbers = set(), [None] * len(sights)
    for rank in sorted(range(len(sights)), key=lambda r: (sights[r].local or 0, r)):
        free = (n for n, name in enumerate(sights[rank].gpus) if name not in taken)
        numbers[rank] = next(free, None)
        if numbers[rank] is not None:
            taken.add(sights[rank].gpus[numbers[rank]])
    return numbers


def shortage(sights: list[Sight]) -> str | None:
    """Say why these ranks cannot have a GPU each; None where they can, or where there are none."""
    numbers = assign(sights)
    if None not in numbers or not any(sight.gpus or sight.promised for sight in sights):
        return None
    rank = numbers.index(None)
    host, seen = sights[rank].host.partition("/")[0], len(sights[rank].gpus)
    here = sum(sight.host == sights[rank].host for sight in sights)
    return (
        f"Rank {rank} finds no GPU of its own on host {host}: it sees {seen} "
        f"GPU{'' if seen == 1 else 's'}, and {here} of the {len(sights)} ranks run there. Start at "
        "most as many ranks on a host as it has GPUs, and give them all of these (with SLURM: "
        "--gpus-per-node, or --gpus-per-task=1)."
    )


def exchange(store: dist.Store, rank: int, size: int, local: int | None) -> list[Sight]:
    """Tell the other ranks what this one sees; give what each sees, by rank."""
    store.set(f"sight {rank}", json.dumps(asdict(_look(local))))
    told = store.multi_get([f"sight {other}" for other in range(size)])
    store.set(f"read {rank}", "")
    if not rank:  # the store may live here: who reads it later than an error would say it was lost
        store.wait([f"read {other}" for other in range(size)])
    return [Sight(**json.loads(text)) for text in told]


def _look(local: int | None) -> Sight:
    host = socket.gethostname() + "/" + _boot()
    kind = accelerator()
    count = torch.accelerator.device_count() if kind else 0
    names = [_name(kind, number) or f"{host}/{number}" for number in range(count)]
    return Sight(host, local, names, any(os.environ.get(s, "") not in ("", "0") for s in _SIGNS))


def _boot() -> str:
    """Give what tells this machine from others that have the same name; "" where nothing does."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _name(kind: str, number: int) -> str | None:
    """Give a GPU's UUID; None where its kind has none."""
    properties = getattr(torch.get_device_module(kind), "get_device_properties", None)
    return str(uuid) if properties and (uuid := getattr(properties(number), "uuid", "")) else None
