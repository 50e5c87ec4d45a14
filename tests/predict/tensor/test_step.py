"""A predicted step's operations and collectives are those that ranks perform; times add up."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.roofline import Speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import SUM, WAIT, passes, tensor_parallel_step
from lib.predict.tensor.traffic import of_step
from lib.single import GPT
from tests.predict.test_step import Performed

SHAPE = GPTShape(vocabulary=48, sequence=12, width=24, heads=4, layers=2, hidden=40)
SHAPES = {
    "plain": SHAPE,
    "tied": replace(SHAPE, tied=True),
    "rotary, two keys": replace(SHAPE, kv_heads=2, positions="rotary"),
}
SPEEDS = Speeds(1e9, 1e9, 1e-3, 1e9)


def performed(shape, dtype=torch.float32):
    """What a rank performs, with its collectives: forward and loss, backward."""
    model = tensor_parallel(GPT(shape).to(dtype))
    tokens = torch.randint(48, (3, 13), generator=torch.Generator().manual_seed(0))
    real, seen = dist.all_reduce, Performed()

    class Noted:
        def __init__(self, work):
            self.work = work

        def wait(self):
            seen.events.append((WAIT, 0, 0))
            return self.work.wait()

    def all_reduce(x, *args, async_op=False, **kwargs):
        seen.events.append((SUM, 0, x.nbytes))
        work = Noted(real(x, *args, async_op=True, **kwargs))
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
    return [e for e in events if e[0] in (SUM, WAIT) or e[1] or e[2] >= least]


def only(events, names):
    return [event for event in events if event[0] in names]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_each_operation_is_performed(worlds, name, ranks):
    parts = passes(SHAPES[name], ranks, 3)
    expected = (
        [op for part in parts for op in part.forward],
        [op for part in reversed(parts) for op in part.backward],
    )
    for found in worlds(ranks).run(performed, SHAPES[name]):
        for own, ops in zip(found, expected):
            predicted = [(op.name, op.flop, round(4 * op.bytes)) for op in ops]
            names = {event[0] for event in predicted}
            assert only(large(own), names) == large(predicted)


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


@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_step_sends_what_the_traffic_says(itemsize):
    ledger = tensor_parallel_step(SHAPE, 2, 3, SPEEDS, itemsize=itemsize)
    found = [(row.op, len(row.members), row.bytes) for row in ledger.where(lane="comm", rank=1)]
    assert found == [tuple(exchange) for exchange in of_step(SHAPE, 2, 3, itemsize=itemsize)]


def test_the_time_is_that_of_its_rows():
    ledger = tensor_parallel_step(SHAPE, 2, 3, SPEEDS)
    for rank in (0, 1):
        rows = [*ledger.where(lane="compute", rank=rank), *ledger.where(lane="wait", rank=rank)]
        assert sum(row.seconds for row in rows) == pytest.approx(ledger.makespan)
    slow = tensor_parallel_step(SHAPE, 2, 3, Speeds(1e9, 1e9, 1e-3, 1e6))
    assert slow.makespan > 2 * ledger.makespan


@pytest.mark.parametrize("shape", [GPTShape(dropout=0.1), GPTShape(kv_heads=1)])
def test_what_is_not_predicted_is_refused(shape):
    with pytest.raises(ValueError, match="A tensor-parallel step is predicted without dropout"):
        tensor_parallel_step(shape, 2, 3, SPEEDS)
