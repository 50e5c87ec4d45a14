"""ZeRO-1 and ZeRO-2 gather the updated weights of a buffer while the next one is stepped."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data import DistributedDataParallel
from lib.parallel.sharded import ShardedDataParallel, ZeroRedundancyOptimizer
from lib.single import share
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import ruined


class Marked(torch.optim.SGD):
    """Sends two numbers at each of its steps, so that a recording shows when they were."""

    def step(self, closure=None):
        dist.all_reduce(torch.zeros(2))
        return super().step(closure)


def stepped(stage):
    model = ruined(models.Perceptron)
    if stage == 1:
        spread = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), Marked, bucket_bytes=300, lr=0.1)
    else:
        spread = ShardedDataParallel(model, bucket_bytes=300)
        optimizer = ZeroRedundancyOptimizer(spread, Marked, lr=0.1)
    x, y = share(model.batch(0), dist.get_rank(), dist.get_world_size())
    model.loss(spread(x), y).backward()
    dist.barrier()
    optimizer.step()
    return len(optimizer.flats)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_gather_is_waited_for_when_all_shares_are_stepped(worlds, stage):
    ledger = worlds(2, device="cpu").record(stepped, stage)
    assert ledger.results[0] > 2
    for rank in range(2):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.start)
        place = max(n for n, row in enumerate(rows) if row.op == "barrier")
        rows, begin = rows[place + 1 :], rows[place].start
        assert [row.op for row in rows] == ["all_reduce", "all_gather"] * ledger.results[0]
        waits = [row.start for row in ledger.where(rank=rank, lane="wait", op="all_gather")]
        waits = [start for start in waits if start > begin]
        assert len(waits) == ledger.results[0]
        assert min(waits) > rows[-1].start, "each gather is under way while the next is stepped"
