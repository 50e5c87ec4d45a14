"""Data parallelism by threads, predicted: its exchanges are the recorded ones, its time adds up."""

import pytest
import torch

from lib.parallel.data.dp import DataParallel
from lib.predict import step
from lib.predict.data.dp_step import data_parallel_devices_step, exchanges
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, train_step

SPEEDS = SlowMotion("H100", link="PCIe5", factor=1)
SHAPES = [GPTShape(width=32, layers=2), MLPShape((6, 30, 20, 4))]


def recorded(shape, devices):
    gpt = isinstance(shape, GPTShape)
    model = (GPT if gpt else MLP)(shape)
    batch = Batches(8)[0] if gpt else (torch.ones(8, 6), torch.ones(8, 4))
    wrapped, optimizer = DataParallel(model, devices), torch.optim.SGD(model.parameters(), 0.1)
    loss = next_token_loss if gpt else mean_squares
    return wrapped.record(train_step, wrapped, optimizer, batch, loss), batch[0].nbytes


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=["gpt", "mlp"])
def test_the_recorded_exchanges_are_the_predicted(shape, devices):
    ledger, nbytes = recorded(shape, devices)
    predicted = data_parallel_devices_step(shape, 8, devices, SPEEDS, batch_bytes=nbytes)
    assert ledger.ranks == predicted.ranks == tuple(range(devices))
    for device in range(devices):
        found, wanted = (
            [(row.op, row.bytes) for row in one.where(rank=device, lane="comm")]
            for one in (ledger, predicted)
        )
        assert found == wanted == exchanges(shape, nbytes, 8)
        work = [[r.op for r in one.where(rank=device, op=BOTH)] for one in (ledger, predicted)]
        assert work == [BOTH, BOTH]


BOTH = ["forward", "backward"]


def test_device_0_moves_everything_and_the_time_adds_up():
    shape, batch, n = SHAPES[0], 8, 4
    predicted = data_parallel_devices_step(shape, batch, n, SPEEDS, batch_bytes=4096)
    model, out = shape.nbytes(), 8 * 64 * 256 * 4
    sent = lambda nbytes: (n - 1) * SPEEDS.moving("send", 2, nbytes)
    share = batch // n
    seconds = 2 * sent(model) + 2 * sent(out / n) + sent(4096 / n)
    work = step.forward(shape, share) + step.backward(shape, share) + step.update(shape)
    assert predicted.makespan == pytest.approx(seconds + step.seconds(work, SPEEDS))
    busy = {
        rank: sum(r.seconds for r in predicted.where(rank=rank, lane="comm")) for rank in range(n)
    }
    assert busy[0] == pytest.approx(3 * busy[1])
    more = data_parallel_devices_step(shape, batch, 8, SPEEDS, batch_bytes=4096)
    assert sum(r.seconds for r in more.where(rank=0, lane="comm")) > 2 * busy[0]  # more is slower
    with pytest.raises(
        ValueError, match="Dim 0 has 8 entries; 3 devices cannot share them equally."
    ):
        data_parallel_devices_step(shape, 8, 3, SPEEDS, batch_bytes=4096)


def test_with_a_ring_the_model_takes_one_collective_in_place_of_a_message_to_each_device():
    shape, n = SHAPES[0], 4
    given = {"batch_bytes": 4096}
    one_by_one, ring = (
        data_parallel_devices_step(shape, 8, n, SPEEDS, **given, ring=choice)
        for choice in (False, True)
    )
    model = shape.nbytes()
    saved = 2 * (n - 1) * SPEEDS.moving("send", 2, model)
    saved -= SPEEDS.moving("broadcast", n, model) + SPEEDS.moving("reduce", n, model)
    assert saved > 0 and one_by_one.makespan - ring.makespan == pytest.approx(saved)
    for device in range(n):
        rows = [list(one.where(rank=device, lane="comm")) for one in (one_by_one, ring)]
        ops = [[(row.op, row.bytes) for row in of] for of in rows]
        assert ops[0] == ops[1] == exchanges(shape, 4096, 8)
        assert [row.start for row in rows[1] if row.op in ("broadcast", "reduce")] == [
            row.start for row in ring.where(rank=0, op=["broadcast", "reduce"])
        ]
