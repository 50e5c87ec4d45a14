"""A predicted step's operations and collectives are those that ranks perform; times add up."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.roofline import Speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import SUM, SUM_OF_KEYS, WAIT, passes, tensor_parallel_step
from lib.predict.tensor.traffic import of_step
from lib.single import GPT
from tests.predict.test_step import Performed

SHAPE = GPTShape(vocabulary=48, sequence=12, width=24, heads=4, layers=2, hidden=40)
SHAPES = {
    "plain": SHAPE,
    "tied": replace(SHAPE, tied=True),
    "rotary, two keys": replace(SHAPE, kv_heads=2, positions="rotary"),
    "one key": replace(SHAPE, kv_heads=1),
    "dropout": replace(SHAPE, dropout=0.1),
    "dropout, one key": replace(SHAPE, dropout=0.1, kv_heads=1),
    "everything": replace(SHAPE, dropout=0.1, kv_heads=2, positions="rotary", tied=True),
}
SPEEDS = Speeds(1e9, 1e9, 1e-3, 1e9)


def performed(shape, dtype=torch.float32, seed=None):
    """What a rank performs, with its collectives: forward and loss, backward."""
    model = tensor_parallel(GPT(shape).to(dtype), seed=seed)
    tokens = torch.randint(48, (3, 13), generator=torch.Generator().manual_seed(0))
    real, seen = dist.all_reduce, Performed()

    class Noted:
        def __init__(self, work):
            self.work = work

        def wait(self):
            seen.events.append((WAIT, 0, 0))
            return self.work.wait()

    def all_reduce(x, *args, group=None, async_op=False):
        seen.events.append((SUM if group is None else SUM_OF_KEYS, 0, x.nbytes))
        work = Noted(real(x, *args, group=group, async_op=True))
        return work if async_op else work.wait()

    try:
        dist.all_reduce = all_reduce
        with seen:
            loss = vocab_parallel_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        forward, seen.events = seen.events, []
        with seen:
            loss.backward()
    finally:
        dist.all_reduce = real
    return forward, seen.events


def large(events, least=4 * 36 * 6):
    """Without what moves a few bytes for each token; sums of any size stay."""
    return [e for e in events if e[0] in (SUM, SUM_OF_KEYS, WAIT) or e[1] or e[2] >= least]


def only(events, names):
    return [event for event in events if event[0] in names]


def check_operations(world, shape, seed=None):
    parts = passes(shape, len(world), 3, whole_masks=seed is None)
    expected = (
        [op for part in parts for op in part.forward],
        [op for part in reversed(parts) for op in part.backward],
    )
    for found in world.run(performed, shape, torch.float32, seed):
        for own, ops in zip(found, expected):
            predicted = [(op.name, op.flop, round(4 * op.bytes)) for op in ops]
            names = {event[0] for event in predicted}
            assert only(large(own), names) == large(predicted)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_each_operation_is_performed(worlds, name, ranks):
    check_operations(worlds(ranks), SHAPES[name])


@pytest.mark.parametrize("name", ["dropout", "everything"])
def test_with_a_seed_each_rank_draws_its_own_part_of_a_mask(worlds, name):
    check_operations(worlds(2), SHAPES[name], seed=7)


def test_the_loss_of_logits_in_16_bits_is_computed_in_32(worlds):
    *_, loss = passes(SHAPE, 2, 3, itemsize=2)
    turned = ("_to_copy", 0, (2 + 4) * 36 * 24)  # logits [36, 24] of a rank
    for forward, backward in worlds(2).run(performed, SHAPE, torch.bfloat16):
        start = [event[0] for event in forward].index("amax")
        for own, ops in ((forward[start:], loss.forward), (backward, loss.backward)):
            predicted = [(op.name, op.flop, round(2 * op.bytes)) for op in ops]
            if own is backward:
                own = own[: [event[0] for event in own].index("mm")]
            assert only(large(own), {event[0] for event in predicted}) == large(predicted)
            assert turned in predicted


def updated(shape):
    """What plain SGD performs on a rank that has a gradient of each parameter."""
    model, seen = tensor_parallel(GPT(shape)), Performed()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with seen:
        torch.optim.SGD(model.parameters(), 0.1, foreach=False).step()
    return seen.events


@pytest.mark.parametrize("name", SHAPES)
def test_a_step_ends_with_the_update_of_what_a_rank_has(worlds, name):
    rows = tensor_parallel_step(SHAPES[name], 4, 3, SPEEDS).where(lane="compute", rank=3)
    operations = [op.name for part in passes(SHAPES[name], 4, 3) for ops in part for op in ops]
    computed = sum(op not in (SUM, SUM_OF_KEYS, WAIT) for op in operations)
    for events in worlds(4).run(updated, SHAPES[name]):
        assert [(row.op, 0, row.bytes) for row in list(rows)[computed:]] == events


@pytest.mark.parametrize("options", [{"itemsize": 2}, {"itemsize": 4}, {"vocabulary": False}])
@pytest.mark.parametrize("name", SHAPES)
def test_a_step_sends_what_the_traffic_says(name, options):
    ledger = tensor_parallel_step(SHAPES[name], 4, 3, SPEEDS, **options)
    found = [(row.op, len(row.members), row.bytes) for row in ledger.where(lane="comm", rank=1)]
    assert found == [tuple(exchange) for exchange in of_step(SHAPES[name], 4, 3, **options)]


@pytest.mark.parametrize(("keys", "pairs"), [(1, [(0, 1, 2, 3)] * 4), (2, [(0, 1), (2, 3)])])
def test_neighbours_share_a_key_in_a_group_of_their_own(keys, pairs):
    """Its collectives are counted from 0, even where it has the same ranks as the world."""
    ledger = tensor_parallel_step(replace(SHAPE, kv_heads=keys), 4, 3, SPEEDS)
    for rank in range(4):
        rows = list(ledger.where(lane="comm", rank=rank, group="kv"))
        assert {row.members for row in rows} == {pairs[rank // 2]}
        assert [row.number for row in rows] == [0, 1, 2, 3]
        world = ledger.where(lane="comm", rank=rank, group="world")
        assert [row.number for row in world] == list(range(4 * SHAPE.layers + 4))


def test_the_time_is_that_of_its_rows():
    ledger = tensor_parallel_step(SHAPE, 2, 3, SPEEDS)
    for rank in (0, 1):
        rows = [*ledger.where(lane="compute", rank=rank), *ledger.where(lane="wait", rank=rank)]
        assert sum(row.seconds for row in rows) == pytest.approx(ledger.makespan)
    slow = tensor_parallel_step(SHAPE, 2, 3, Speeds(1e9, 1e9, 1e-3, 1e6))
    assert slow.makespan > 2 * ledger.makespan


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="An attention has 4 heads; 3 ranks cannot share them"):
        tensor_parallel_step(SHAPE, 3, 3, SPEEDS)
