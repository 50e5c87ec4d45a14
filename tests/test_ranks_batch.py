"""A batch of sends and receives is one launch where the backend needs that (a pretended NCCL)."""

import torch
import torch.distributed as dist

from lib.ranks import batch


class Coalescing:
    """Gloo that behaves as NCCL in a batch: operations are noted, and launched at its end."""

    def __init__(self, inner):
        self.inner, self.order, self.noted = inner, [], None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def _start_coalescing(self, device):
        self.noted = []
        self.order.append("start")

    def _note(self, name, *args):
        self.order.append(name)
        if self.noted is None:
            return getattr(self.inner, name)(*args)
        self.noted.append((name, args))

    def send(self, *args):
        return self._note("send", *args)

    def recv(self, *args):
        return self._note("recv", *args)

    def _end_coalescing(self, device):
        self.order.append("end")
        noted, self.noted = self.noted, None
        self.works = [getattr(self.inner, name)(*args) for name, args in noted]
        return self

    def wait(self):
        for work in self.works:
            work.wait()
        return True


def ring(ours):
    group, rank, n = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    plain, group.inner = group.inner, Coalescing(group.inner)
    try:
        arrived = torch.empty(4)
        operations = [
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % n),
            dist.P2POp(dist.irecv, arrived, (rank - 1) % n),
        ]
        launch = batch.batch_isend_irecv if ours else dist.batch_isend_irecv
        for work in launch(operations):
            work.wait()
        return arrived[0].item(), group.inner.order
    finally:
        group.inner = plain


def test_a_batch_is_one_launch(worlds):
    ledger = worlds(2).record(ring, True)
    assert [value for value, _ in ledger.results] == [1.0, 0.0]
    assert [order for _, order in ledger.results] == [["start", "send", "recv", "end"]] * 2
    rows = ledger.where(lane="comm")
    assert sorted(row.op for row in rows) == ["recv", "recv", "send", "send"]
    assert all(row.end > row.start and row.bytes == 16 for row in rows)


def test_torch_alone_would_not_see_a_batch(worlds):
    """The bite: for a group class that it does not know, torch launches one after the other."""
    assert worlds(2).run(ring, False)[0] == (1.0, ["send", "recv"])
