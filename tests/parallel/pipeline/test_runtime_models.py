"""Pipelines of awkward models: every schedule gives what the plain model gives."""

from functools import lru_cache

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict.pipeline import schedules
from lib.ranks.slow_motion import SlowMotion
from lib.single.train import mean_squares
from tests.every import every

D, M, BLOCKS = 5, 4, 10


def every_schedule(ranks):
    straight = ("naive", "gpipe", "one_f_one_b", "zb_h1", "zb_h2")
    twice = ("interleaved", "breadth_first", "zb_v", "dualpipe_v")
    made = {name: getattr(schedules, name)(ranks, M) for name in straight}
    return made | {name: getattr(schedules, name)(2 * ranks, max(M, 2 * ranks)) for name in twice}


class Block(nn.Module):
    """tanh of a linear layer; `rule` makes it awkward."""

    def __init__(self, rule=None):
        super().__init__()
        self.one, self.two = nn.Linear(D, D), nn.Linear(D, D)
        self.rule = rule

    def forward(self, x):
        return self.rule(self, x) if self.rule else self.two(torch.tanh(self.one(x)))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


def detached(block, x):
    return block.two(torch.tanh(block.one(x)).detach())


def frozen_inside(block, x):
    with torch.no_grad():
        x = block.one(x)
    return block.two(x)


def hooked(block, x):
    y = block.one(x)
    y.register_hook(lambda gradient: gradient * 3)
    z = block.two(torch.tanh(y))
    z.register_hook(lambda gradient: gradient - 0.1)
    z.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    return z


def kept(block, x):
    y = block.one(x)
    y.retain_grad()
    block.seen = [*getattr(block, "seen", ()), y]
    return block.two(y)


def in_place(block, x):
    return block.two(torch.relu_(x)).mul_(2)


def unused(block, x):
    return block.two(x)


def wide(block, x):
    return block.two(torch.tanh(block.one(x.float()).double()))


def custom(block, x):
    return Scaled.apply(block.one(x), block.two.bias) + x


def again(block, x):
    return block.one(torch.tanh(block.one(x))) + block.two(x) @ block.one.weight


def reentrant(block, x):
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    return checkpoint(lambda z: block.two(torch.tanh(block.one(z))), x, use_reentrant=True)


def several(block, x):
    """Tensors that are whole numbers, truth values, or without a gradient beside the activation."""
    if isinstance(x, torch.Tensor):
        x = {"x": x, "more": (torch.ones(len(x), dtype=torch.int64), x[:, :1] > 0, None, "word")}
        x["rest"] = [torch.full((len(x["x"]), D), 0.5, dtype=torch.float64), torch.empty(0)]
    count, positive, nothing, word = x["more"]
    assert nothing is None and word == "word" and not x["rest"][0].requires_grad
    y = block.two(torch.tanh(block.one(x["x"]))) * x["rest"][0] + count[:, None] * positive
    return {"x": y, "more": (count + 1, ~positive, None, "word"), "rest": x["rest"]}


def two_paths(block, x):
    """The first of two activations is not used by every second block."""
    x, other = x if isinstance(x, tuple) else (x, x)
    return block.two(torch.tanh(block.one(other))), x


def digits_and_back(block, x):
    """Whole numbers between two stages; what is before them gets no gradient."""
    return (x > 0).long() if x.is_floating_point() else block.one.weight[x].sum(1) + block.two.bias


class Last(nn.Module):
    def forward(self, x):
        return x["x"] if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x


class Counting(nn.Module):
    """A buffer and a number that change in every forward, in training or not."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(D)
        self.register_buffer("calls", torch.zeros(()))
        self.average = torch.zeros(D)

    def forward(self, x):
        self.calls += 1
        self.average = 0.9 * self.average + x.detach().mean(0)
        self.register_buffer("copy", self.average, persistent=False)
        return self.norm(x)


def plain_blocks(count=BLOCKS):
    return [Block() for _ in range(count)]


def with_rule(rule, at=(1, 4, 8)):
    return lambda: [Block(rule if n in at else None) for n in range(BLOCKS)]


def tied():
    same, blocks = Block(), plain_blocks()
    return [same if n in (0, 4, 9) else block for n, block in enumerate(blocks)]


def frozen_start():
    blocks = plain_blocks()
    for block in blocks[:4]:
        block.requires_grad_(False)
    return blocks


def doubled(module, given, got):
    return tuple(g if g is None else g * 2 for g in given)


def module_hooks():
    blocks = plain_blocks()
    for block in blocks[1:9:2]:
        block.register_full_backward_hook(
            lambda m, given, got: tuple(g * 2 for g in given if g is not None) or None
        )
        block.one.register_full_backward_pre_hook(lambda m, got: (got[0] * 3,))
    return blocks


def counted(parameter):
    parameter.calls = getattr(parameter, "calls", 0) + 1


def weight_hooks():
    blocks = plain_blocks()
    for block in blocks:
        block.one.weight.register_hook(lambda g: g * 3)
        block.two.weight.register_post_accumulate_grad_hook(counted)
    return blocks


MODELS = {
    "tied": tied,
    "frozen start": frozen_start,
    "module hooks": module_hooks,
    "weight hooks": weight_hooks,
    "counting": lambda: [n for _ in range(5) for n in (Block(), Counting())],
    "several": lambda: [*(Block(several) for _ in range(9)), Last()],
    "two paths": lambda: [*(Block(two_paths) for _ in range(9)), Last()],
    "whole numbers": with_rule(digits_and_back, (3, 4)),
    "in place": with_rule(in_place, range(BLOCKS)),
    **{rule.__name__: with_rule(rule) for rule in (
        detached, frozen_inside, hooked, kept, unused, wide, custom, again, reentrant,
    )},
}  # fmt: skip


def model(make):
    torch.manual_seed(3)
    made = nn.Sequential(*make()).double()
    for name, module in made.named_modules():
        if name.endswith("one") and getattr(made[int(name.split(".")[0])], "rule", None) is wide:
            module.float()
    return made


def batch(m):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3 * m, D, generator=generator, dtype=torch.float64)


@lru_cache
def plain_steps(make, m, steps):
    """Losses, and the model with its gradients and buffers, of so many plain steps."""
    whole, losses = model(make), []
    for _ in range(steps):
        total = 0.0
        for part, wanted in zip(*(half.chunk(m) for half in batch(m))):
            loss = mean_squares(whole(part.clone()), wanted) / m
            loss.backward()
            total += loss.item()
        losses.append(total)
    return losses, whole


def differences(make, schedule, steps=2):
    """What this rank has otherwise than the plain model, after steps without zero_grad."""
    losses, plain = plain_steps(make, schedule.microbatches, steps)
    whole = model(make)
    pipeline = Pipeline(whole, schedule, loss=mean_squares)
    found = [pipeline.step(*batch(schedule.microbatches)).item() for _ in range(steps)]
    wrong = [] if torch.allclose(torch.tensor(found), torch.tensor(losses)) else [(found, losses)]
    mine = {id(t) for s in pipeline.stages.values() for t in (*s.parameters(), *s.modules())}
    for (name, one), other in zip(whole.named_parameters(), plain.parameters()):
        if id(one) in mine:
            wrong += unlike(f"{name}.grad", one.grad, other.grad)
            if getattr(one, "calls", 0) != getattr(other, "calls", 0):
                wrong.append(f"{name}: {one.calls} calls of a hook")
    for (name, one), other in zip(whole.named_modules(), plain.modules()):
        if id(one) in mine:
            for key, buffer in one._buffers.items():
                wrong += unlike(f"{name}.{key}", buffer, other._buffers[key])
            for n, (a, b) in enumerate(zip(getattr(one, "seen", ()), getattr(other, "seen", ()))):
                wrong += unlike(f"{name} output {n}", a.grad, b.grad)
    return wrong


def unlike(name, one, other):
    if one is None or other is None:
        return [] if one is other else [f"{name}: {one} where the plain model has {other}"]
    tolerance = 1e-10 if one.dtype == torch.float64 else 1e-5
    # A bias before a norm has a gradient of 0 but for rounding, hence at least 1 % of a unit.
    size = max(other.double().norm().item(), 0.01)
    near = (one.double() - other.double()).norm() <= tolerance * size
    return [] if near else [f"{name}: {one.flatten()[:3]} where it is {other.flatten()[:3]}"]


FEW = ("tied", "frozen start", "two paths", "detached", "hooked", "whole numbers")
CASES = [(2, name) for name in MODELS] + [(ranks, name) for ranks in (1, 4) for name in FEW]


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_every_schedule_gives_what_the_plain_model_gives(worlds, ranks, name):
    """Case 1: two steps without zero_grad; also cases 2, 4, 6, 9 and 12; nine schedules each."""

    def compare():
        made = every_schedule(ranks)
        found = {key: differences(MODELS[name], schedule) for key, schedule in made.items()}
        return {key: wrong for key, wrong in found.items() if wrong}

    assert worlds(ranks).run(compare) == [{}] * ranks


@pytest.mark.parametrize("name", ["several", "whole numbers", "in place", "detached"])
def test_costs_of_stages_that_give_several_tensors(name):
    """Case 9: whatever stages pass on can be predicted, and every tensor of it is sent."""
    schedule = schedules.gpipe(BLOCKS, M)
    speeds = SlowMotion("H100", dtype="fp32", alpha=0.0, bandwidth=1e9)
    costs = stage_costs(model(MODELS[name]), schedule, *batch(M), speeds, loss=mean_squares)
    assert every(time > 0 for time in costs.forward[:-1]) and len(costs.forward) == BLOCKS
    floats, whole_numbers = 3 * D * 8, 3 * 8
    sent = {"several": 2 * floats + whole_numbers + 3}.get(name, floats)
    assert costs.send[0] == pytest.approx(sent / 1e9)
