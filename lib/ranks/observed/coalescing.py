"""Operations that leave together: a batch of sends and receives, or of collectives.

[Note: batches]
NCCL carries out what one pair of ranks exchanges in order: two ranks that both send first would
wait for each other. What leaves together has no order. `torch.distributed` begins a batch, calls
the operations, and ends it. An error between leaves NCCL and torch's own table in the middle of a
batch: every later operation of the group would be put aside and never launched. So an observed
group asks NCCL for nothing before the end of a batch, and one that breaks off leaves no trace.
"""

import contextlib
import functools

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from lib.ranks.observed.observed_work import Finished, ObservedWork
from lib.ranks.state.this_rank import this_rank

_coalescing_manager = distributed_c10d._coalescing_manager
_batch_isend_irecv = distributed_c10d.batch_isend_irecv


class Batches:
    """What an ObservedGroup does with operations that leave together."""

    def __init__(self, rank: int, size: int):
        super().__init__(rank, size)
        self.together: torch.device | None = None  # inside a batch: where all its tensors are
        self.asked: list | None = None  # inside a batch: what was called, to be noted at its end
        self.due: list | None = None  # while that is noted: what is launched then
        self.later = _Later()

    def launches_together(self, device) -> bool:
        """True if operations on tensors of this device can leave as one: NCCL's can."""
        return self.inner._get_backend(torch.device(device)).supports_coalescing

    def forget_batch(self) -> None:
        """Let the group be as it was before a batch that broke off."""
        self.together = self.asked = self.due = None

    def _start_coalescing(self, device) -> None:
        if not self.launches_together(device):
            raise RuntimeError(
                f"Group {self.label} cannot launch operations on {device} tensors as one: gloo has "
                "no batches. Launch them one by one, or move the tensors to the GPU."
            )
        self.together, self.asked, self.later = torch.device(device), [], _Later()

    def _end_coalescing(self, device) -> ObservedWork:
        """Note and compare all that was called in this batch, then launch it at once."""
        (asked, self.asked), self.due = (self.asked, None), []
        try:
            for note in asked:
                note()
            due = self.due
        finally:
            self.forget_batch()
        work, events = self._launch_together(due, device)
        tag, number = self.tag, max(self.launches - 1, 0)
        if due:
            _, _, _, tag, number, *_ = due[0].args
        self.later.whole = ObservedWork(work, tag, number, events)
        self.later.whole.streamed = self.streamed
        return self.later.whole

    def _launch_together(self, due: list, device) -> tuple:
        """Launch all as one; give the work, and the events that a recording keeps of them."""
        self.inner._start_coalescing(device)
        try:
            events = [event for _, event in (launch() for launch in due) if event]
        except BaseException:
            with contextlib.suppress(Exception):  # NCCL stays in a batch until it is ended
                self.inner._end_coalescing(device)
            raise
        work = self.inner._end_coalescing(device)
        for event in events if work is None else ():
            event.end = this_rank.now()
        return work or Finished(), events

    def _later(self, note, *args) -> dist.Work:
        """Keep a call for the end of this batch."""
        self.asked.append(functools.partial(note, *args))
        return self.later

    def _check_device(self, tensors) -> None:
        """Refuse a tensor that cannot leave with this batch."""
        strangers = {str(t.device) for t in tensors if t.device.type != self.together.type}
        if strangers:
            raise ValueError(
                f"A batch of group {self.label} is for tensors on {self.together}, and one of "
                f"these is on {', '.join(sorted(strangers))}. Move it there, or leave it out of "
                "the batch. Nothing was launched."
            )


class _Later(dist.Work):
    """The work of an operation inside a batch: it is launched at the end, with all others."""

    def __init__(self):
        super().__init__()
        self.whole: ObservedWork | None = None

    def wait(self, timeout=None) -> bool:
        """Wait for the whole batch; inside it there is nothing to wait for yet."""
        return self.whole.wait() if self.whole else True

    def is_completed(self) -> bool:
        """True once the whole batch is over."""
        return self.whole is not None and self.whole.is_completed()


@contextlib.contextmanager
def coalescing_manager(group=None, device=None, async_ops: bool = False):
    """Do what dist._coalescing_manager does; an error leaves the group as it was before."""
    group, batches = group or dist.group.WORLD, distributed_c10d._world.pg_coalesce_state
    nested = group in batches
    try:
        with _coalescing_manager(group, device, async_ops) as works:
            yield works
    except BaseException:
        if not nested:
            batches.pop(group, None)
            if isinstance(group, Batches):
                group.forget_batch()
        raise


def batch_isend_irecv(operations: list) -> list:
    """Do what dist.batch_isend_irecv does, for an observed group too.

    What NCCL sends leaves in one launch. Tensors on the CPU go through gloo, one by one.
    """
    distributed_c10d._check_p2p_op_list(operations)
    group = operations[0].group or dist.group.WORLD
    if not isinstance(group, Batches):
        return _batch_isend_irecv(operations)
    devices = dict.fromkeys(operation.tensor.device for operation in operations)
    together = {device for device in devices if group.launches_together(device)}
    works = [_launched(op) for op in operations if op.tensor.device not in together]
    if together:
        with coalescing_manager(group, next(iter(together)), async_ops=True) as batch:
            for operation in operations:
                if operation.tensor.device in together:
                    _launched(operation)
        works += batch.works
    return works


def _launched(operation: dist.P2POp) -> dist.Work:
    end = "group_dst" if operation.op is dist.isend else "group_src"
    peer = {end: operation.group_peer}
    return operation.op(operation.tensor, group=operation.group, tag=operation.tag, **peer)


def install() -> None:
    """Let this process's batches be ours."""
    dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = batch_isend_irecv
    dist._coalescing_manager = distributed_c10d._coalescing_manager = coalescing_manager
