"""The same functions on ranks that a launcher started, on one host or on many."""

import datetime
import io
import itertools
import os
import sys
import time
import types

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from lib.ranks.gpus.devices import accelerator, cpu_forced
from lib.ranks.groups import process_group
from lib.ranks.kernel.merge_recordings import ledger_of
from lib.ranks.launched import gpu_choice
from lib.ranks.launched.launchers import place
from lib.ranks.process.carried_call import CarriedCall, carry_out
from lib.ranks.state import torch_device
from lib.ranks.state.default_device import lead_threads
from lib.ranks.state.this_rank import this_rank
from lib.ranks.transport import packing

_worlds = itertools.count()  # those of this process: each meets under names of its own


class TorchrunWorld:
    """This process's place in a world that a launcher started: every rank runs the same script.

    `run`, `map` and `record` do what World's do, and give the same answer on every rank, tensors on
    the CPU. The launcher may be torchrun, SLURM's `srun`, or `mpirun`: see launchers.py. Each rank
    takes a GPU of its own and NCCL where there are enough; else all take the CPU and gloo, and rank
    0 says why. `device="cpu"` forces the CPU, `device="cuda"` raises RuntimeError where GPUs are
    missing. `timeout` (seconds or a timedelta) ends a wait for ranks that never come; without it
    it is PyTorch's own, 10 minutes with NCCL and 30 with gloo.
    Raises RuntimeError where no launcher has set the environment. A failure ends the launcher's
    job, as it does in any script; the board that explains failures needs one machine.
    """

    def __init__(self, device: str | None = None, timeout=None):
        if device not in (None, "cpu", accelerator() or "cuda"):
            raise ValueError(
                f"World.from_torchrun(device={device!r}): the device is 'cpu' or "
                f"{accelerator() or 'cuda'!r}."
            )
        if cpu_forced():
            if device not in (None, "cpu"):
                raise ValueError(
                    f"World.from_torchrun(device={device!r}) asks for GPUs, and RANKS_DEVICE=cpu "
                    "in the environment keeps every World on the CPU. Unset it, or leave out the "
                    "device."
                )
            device = "cpu"
        here = place(os.environ)
        self.rank, self.size = here.rank, here.size
        limit = timeout if timeout is None else _timedelta(timeout)
        store = _meet(here, limit)
        number = None
        if device != "cpu":
            number = _own_gpu(
                gpu_choice.exchange(store, here.rank, here.size, here.local), here, device
            )
        self.device = "cpu" if number is None else accelerator()
        this_rank.rank = here.rank
        process_group.join_launched(here.rank, here.size, number or 0, self.device, store, limit)
        self._open = True

    def run(self, step, *args, **kwargs) -> list:
        """Call `step(*args, **kwargs)` here, as every rank does; give back all results, by rank."""
        if not self._open:
            raise RuntimeError("This World is closed. Make a new one with World.from_torchrun().")
        packed = [None] * self.size
        dist.all_gather_object(packed, _packed(step(*args, **kwargs)))
        return [packing.unpack([bytearray(part) for part in parts]) for parts in packed]

    def map(self, step, items) -> list:
        """Call `step` on this rank's item; give back all results, by rank."""
        items = list(items)
        if len(items) != self.size:
            raise ValueError(f"{len(items)} items for {self.size} ranks: give one to each rank.")
        return self.run(step, items[self.rank])

    def record(self, step, *args, **kwargs):
        """Do what `run` does; give back the Ledger of all ranks on rank 0's clock."""
        offsets = self.run(_behind_rank_0)
        answers = self.run(carry_out, CarriedCall(step, args, kwargs, record=True))
        return ledger_of(answers, offsets=offsets, meta={"device": self.device})

    def close(self) -> None:
        """Leave the process group once all ranks are through; a second call does nothing."""
        if not self._open:
            return
        if self.device != "cpu":
            torch.accelerator.synchronize()  # leaving drops what is not finished
        if dist.is_initialized():
            dist.barrier()  # rank 0 holds the store that the others may still need
        self._leave()

    def _leave(self) -> None:
        self._open = False
        process_group.leave("this World is closed")
        torch_device.follow(None)
        if self.device != "cpu":
            torch.set_default_device(None)
            lead_threads(None)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        elif self._open:  # the others may never come: the failure must not wait for them
            self._leave()

    def __len__(self):
        return self.size

    def __repr__(self):
        state = "" if self._open else ", closed"
        where = "the CPU with gloo" if self.device == "cpu" else f"{self.device}, a GPU each"
        return f"World of {self.size} ranks on {where}; this is rank {self.rank}{state}"


def _timedelta(timeout) -> datetime.timedelta:
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    if timeout <= datetime.timedelta(0):
        raise ValueError(f"timeout must be longer than nothing, not {timeout}.")
    return timeout


def _meet(here, limit) -> dist.Store:
    """Give the store through which the ranks meet; rank 0 or torchrun holds it."""
    os.environ |= {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port)}
    limit = limit or dist.constants.default_pg_timeout
    store, *_ = next(rendezvous("env://", here.rank, here.size, timeout=limit))
    store.set_timeout(limit)
    return dist.PrefixStore(f"world {next(_worlds)}", store)


def _own_gpu(seen: list[gpu_choice.Sight], here, device: str | None) -> int | None:
    """Give the number of the GPU that this rank takes; None where the world takes the CPU."""
    numbers, why = gpu_choice.assign(seen), gpu_choice.shortage(seen)
    if None not in numbers:
        return numbers[here.rank]
    if device:
        raise RuntimeError(why or f"device={device!r} was asked for, and no rank sees a GPU.")
    if why and here.rank == 0:
        print(
            f"This World of {here.size} ranks computes on the CPU, with gloo. {why} "
            "World.from_torchrun(device='cpu') takes the CPU without saying so.",
            file=sys.stderr,
        )
    return None


class _Packer(packing.Packer):
    """Leaves what the script defines where it is: every rank runs the same script."""

    def reducer_override(self, item):
        named = isinstance(item, type | types.FunctionType)
        if named and getattr(sys.modules["__main__"], item.__qualname__, None) is item:
            return NotImplemented  # found by its name
        return super().reducer_override(item)


def _packed(result) -> list[bytes]:
    """Take a result apart; tensors leave from the CPU: another rank's GPU means nothing here."""
    packer = _Packer(file := io.BytesIO())
    try:
        packer.dump(result)
    except Exception as error:
        reason = packing.culprit(result) or error
        raise TypeError(f"The result of rank {dist.get_rank()} cannot travel: {reason}.") from None
    return [file.getvalue(), *(bytes(view) for _, view, *_ in packer.storages.values())]


def _behind_rank_0(rounds: int = 8) -> float:
    """Give the seconds to add to this host's clock to read rank 0's, by the quickest round trip.

    The messages are on the CPU, where gloo carries them in every world: a receive is over when the
    value is there. On a GPU it would be over when it is in line.
    """
    best = (float("inf"), 0.0)
    for other in range(1, dist.get_world_size()):
        for _ in range(rounds):
            told = torch.zeros(1, dtype=torch.int64, device="cpu")
            if dist.get_rank() == 0:
                dist.recv(told, other)
                dist.send(torch.tensor([time.monotonic_ns()], device="cpu"), other)
            elif dist.get_rank() == other:
                left = time.monotonic_ns()
                dist.send(told, 0)
                dist.recv(told, 0)
                back = time.monotonic_ns()
                best = min(best, (back - left, (told.item() - (left + back) / 2) / 1e9))
    return best[1]
