"""Bytes on paper equal those that are counted, by kind, on real ranks and on virtual devices."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data import DistributedDataParallel
from lib.parallel.data_threads import DataParallel
from lib.predict import memory as paper
from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share, train_step

SHAPES = [
    GPTShape(width=32, layers=2),
    GPTShape(vocabulary=256, sequence=16, width=24, heads=3, layers=3, hidden=40, tied=True),
    MLPShape((6, 30, 20, 4)),
    MLPShape((6, 4), bias=False),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def parts(shape):
    """The model, its batch of eight, its loss."""
    if isinstance(shape, GPTShape):
        return GPT(shape), Batches(8, shape.sequence)[0], next_token_loss
    batch = torch.ones(8, shape.widths[0]), torch.ones(8, shape.widths[-1])
    return MLP(shape), batch, mean_squares


@every_shape
@pytest.mark.parametrize("batch", [1, 3])
def test_activations_and_outputs(shape, batch):
    model, (x, _), loss = parts(shape)
    length = {} if isinstance(shape, MLPShape) else {"sequence": 7}
    x = x[:batch, : length.get("sequence")]
    with Memory(model) as memory:
        y = model(x)
    assert memory.now["activations"] == paper.activations(shape, batch, **length)
    assert y.nbytes == paper.outputs(shape, batch, **length)


def held(shape, optimizer):
    """Bytes by kind on a rank at the end of a step's forward, and after its backward."""
    model, batch, loss = parts(shape)
    ddp, found = DistributedDataParallel(model, bucket_bytes=2000), {}
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    states = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(3):
        train_step(ddp, states, (x, y), loss)
    states.zero_grad()
    with Memory(model, states) as memory:
        value = loss(ddp(x), y)
        found = memory.now
        value.backward()
        after = memory.now
    return found | {"gradients": after["gradients"]}, after["other"]


@every_shape
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_a_rank_holds_what_is_predicted(world, shape, optimizer):
    wanted = paper.data_parallel(shape, 8 // world.size, optimizer)
    for found, other in world.run(held, shape, optimizer):
        assert {kind: found[kind] for kind in wanted._fields} == wanted._asdict()
        assert found["buffers"] == 0 and other < 8192  # no second copy of the gradients
    assert wanted.total == sum(wanted)


@every_shape
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_hold_what_is_predicted(shape, devices):
    model, batch, loss = parts(shape)
    wrapped, optimizer = DataParallel(model, devices), torch.optim.AdamW(model.parameters())
    call = train_step, wrapped, optimizer, batch, loss
    train_step(*call[1:])
    ledger = wrapped.record(*call)
    wanted = paper.data_parallel_devices(shape, 8, devices)
    for device, held in enumerate(wanted):
        rows = ledger.where(rank=device, lane="memory")
        for kind, nbytes in held._asdict().items():
            most = max((row.bytes for row in rows.where(op=kind)), default=0)
            assert most == nbytes, f"{kind} on device {device}"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_of_optimizers(optimizer):
    model, batch, loss = parts(SHAPES[2])
    states = OPTIMIZERS[optimizer](model.parameters())
    train_step(model, states, batch, loss)
    found = sum(
        t.nbytes for state in states.state.values() for t in state.values() if torch.is_tensor(t)
    )
    assert paper.optimizer_states(SHAPES[2], optimizer) == found


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="called 'lion': sgd, momentum, adam, adamw"):
        paper.optimizer_states(SHAPES[2], "lion")
    with pytest.raises(ValueError, match="dim 0 has 8 entries: 3 cannot"):
        paper.data_parallel_devices(SHAPES[2], 8, 3)
    for function in (paper.activations, paper.outputs):
        with pytest.raises(ValueError, match="of a ModelShape are not known"):
            function(ModelShape(), 1)
