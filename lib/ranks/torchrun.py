"""The same functions on ranks that `torchrun` or SLURM started, on one host or on many."""

import functools
import os
import time

import torch
import torch.distributed as dist

from lib.ranks import groups, recorder
from lib.ranks.desk import desk
from lib.ranks.records import ledger_of

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchrunWorld:
    """This process's place in a world that a launcher started: every rank runs the same script.

    `run`, `map` and `record` do what World's do, and give the same answer on every rank.
    Raises RuntimeError where no launcher has set the environment. A failure ends the launcher's
    job, as it does in any script; the board that explains failures needs one machine.
    """

    def __init__(self):
        missing = [name for name in _NEEDED if name not in os.environ]
        if missing:
            raise RuntimeError(
                f"World.from_torchrun() is for a script that a launcher starts: {missing[0]} is "
                "not set. Start it as: torchrun --nproc-per-node=4 script.py"
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local, here = (int(os.environ.get(f"LOCAL_{name}", 0)) for name in ("RANK", "WORLD_SIZE"))
        self.device = "cuda" if 0 < (here or self.size) <= torch.cuda.device_count() else "cpu"
        groups.join_launched(self.rank, self.size, local, self.device)
        desk.rank = self.rank

    def run(self, step, *args, **kwargs) -> list:
        """Call `step(*args, **kwargs)` here, as every rank does; give back all results, by rank."""
        results = [None] * self.size
        dist.all_gather_object(results, step(*args, **kwargs))
        return results

    def map(self, step, items) -> list:
        """Call `step` on this rank's item; give back all results, by rank."""
        items = list(items)
        if len(items) != self.size:
            raise ValueError(f"{len(items)} items for {self.size} ranks: give one to each rank")
        return self.run(step, items[self.rank])

    def record(self, step, *args, **kwargs):
        """Do what `run` does; give back the Ledger of all ranks on rank 0's clock."""
        offset = _behind_rank_0()
        answers = self.run(functools.partial(recorder.recorded, step), *args, **kwargs)
        offsets = self.run(lambda: offset)
        return ledger_of(answers, offsets=offsets, meta={"device": self.device})

    def close(self) -> None:
        """Leave the process group."""
        groups.leave("this World is closed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        return self.size


def _behind_rank_0(rounds: int = 8) -> float:
    """Give the seconds to add to this host's clock to read rank 0's, by the quickest round trip."""
    best = (float("inf"), 0.0)
    device = torch.get_default_device()
    for other in range(1, dist.get_world_size()):
        for _ in range(rounds):
            told = torch.zeros(1, dtype=torch.int64, device=device)
            if dist.get_rank() == 0:
                dist.recv(told, other)
                dist.send(torch.tensor([time.monotonic_ns()], device=device), other)
            elif dist.get_rank() == other:
                left = time.monotonic_ns()
                dist.send(told, 0)
                dist.recv(told, 0)
                back = time.monotonic_ns()
                best = min(best, (back - left, (told.item() - (left + back) / 2) / 1e9))
    return best[1]
