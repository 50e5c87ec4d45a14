"""A small run's operations have the FLOP and bytes of the large model's, one by one.

The large model runs on tensors without memory (FakeTensorMode), so that each of its operations is
listed without computing it.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lib.predict import step
from lib.predict.larger import Larger
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow import roofline
from lib.ranks.slow.stand_ins import StandIns
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, MLP, mean_squares, next_token_loss


class Named(TorchDispatchMode):
    """Keep the name and the cost of every operation."""

    def __init__(self, stand_ins=None):
        super().__init__()
        self.stand_ins, self.costs = stand_ins, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        cost = roofline.cost(func, args, kwargs or {}, out, self.stand_ins)
        if cost != roofline.NOTHING and func.namespace == "aten":
            self.costs.append((func._overloadpacket.__name__.rstrip("_"), *cost))
        return out


def grouped(**options):
    small = GPTShape(70, 20, 84, heads=6, layers=2, kv_heads=2, **options)
    large = GPTShape(50257, 1024, 4096, heads=32, layers=2, kv_heads=8, **options)
    return Larger(small, large, batch=(9, 8))


def gpts(tied):
    small = GPTShape(vocabulary=70, sequence=20, width=32, heads=2, layers=2, tied=tied)
    large = GPTShape(50257, sequence=1024, width=1600, heads=25, layers=2, tied=tied)
    return Larger(small, large, batch=(7, 8))


PAIRS = {
    "gpt": gpts(False),
    "tied gpt": gpts(True),
    "grouped gpt": grouped(),
    "all options": grouped(positions="rotary", dropout=0.1),
    "mlp": Larger(MLPShape((24, 96, 96, 40)), MLPShape((1024, 8192, 8192, 512)), (64, 4096)),
    "chain": Larger(MLPShape((96,) * 5, bias=False), MLPShape((8192,) * 5, bias=False), (64, 4096)),
}
by_pair = pytest.mark.parametrize("larger", PAIRS.values(), ids=PAIRS)


def run(larger, which, stand_ins=None):
    """Run a whole training step of one of the two models; return its operations."""
    shape, batch = (larger.small, larger.large)[which], larger.batch[which]
    if isinstance(shape, GPTShape):
        model, loss = GPT(shape), next_token_loss
        inputs = targets = torch.zeros(batch, shape.sequence, dtype=torch.long)
    else:
        model, loss = MLP(shape), mean_squares
        inputs, targets = torch.zeros(batch, shape.widths[0]), torch.zeros(batch, shape.widths[-1])
    optimizer = torch.optim.AdamW(model.parameters())
    with Named(stand_ins) as named:
        loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
    return named.costs


@by_pair
def test_a_training_step_costs_what_the_large_models_does(larger):
    with FakeTensorMode():
        large = run(larger, 1)
    assert run(larger, 0, StandIns(larger)) == large
    assert run(larger, 0) != large  # a bite: without stand-ins the costs are the small run's


@by_pair
def test_the_prediction_from_the_large_shape_has_the_same_costs(larger):
    """Forward and backward, whose operations lib/predict/step.py lists."""
    found = run(larger, 0, StandIns(larger))
    for predicted in (
        step.forward(larger.large, larger.batch[1]), step.backward(larger.large, larger.batch[1])
    ):  # fmt: skip
        wanted = [op[:3] for op in predicted]
        starts = [n for n in range(len(found)) if found[n : n + len(wanted)] == wanted]
        assert len(starts) == 1


def test_seconds_are_those_of_the_large_model():
    larger = PAIRS["chain"]
    speeds = SlowMotion("H100", link="NVLink4", stands_for=larger)
    seconds = speeds.seconds(MLP(larger.small), torch.zeros(64, 96))
    assert seconds == pytest.approx(step.seconds(step.forward(larger.large, 4096), speeds))
    assert speeds.bytes_of([torch.zeros(64, 96), torch.zeros(2 * 96 * 96)]) == 4 * (
        4096 * 8192 + 2 * 8192 * 8192
    )


def test_a_tensor_given_twice_is_read_once_and_an_expanded_dim_too():
    stand_ins, x = StandIns(PAIRS["chain"]), torch.zeros(64, 96)
    with Named(stand_ins) as named:
        x + x
        x + torch.zeros(96).expand(64, 96)
    one = 4096 * 8192 * 4
    costs = [cost for cost in named.costs if cost[0] == "add"]
    assert costs == [("add", 0, 2 * one), ("add", 0, 2 * one + 8192 * 4)]


def test_an_unknown_size_is_refused_and_views_are_not_looked_at():
    stand_ins = StandIns(PAIRS["chain"])
    with Named(stand_ins) as named:
        x = torch.empty(64, 96).view(8, 8, 96)[:5]
        with pytest.raises(ValueError, match="A dim of 5 entries is no size of the small run"):
            x + 1
    assert not named.costs


def test_a_model_that_stands_for_itself_changes_nothing():
    shape = GPTShape(vocabulary=70, sequence=20, width=32, heads=2, layers=2)
    same = Larger(shape, shape, batch=(7, 7))
    assert run(same, 0, StandIns(same)) == run(same, 0)
