"""The loss scaler does what PyTorch's does, step by step, and refuses to go wrong quietly."""

import copy

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from lib.single.precision import LossScaler
from tests.every import every

OPTIONS = {"initial": 2.0**10, "growth": 3.0, "backoff": 0.7, "interval": 4}
OVERFLOWS = {0, 3, 4, 5, 40, 41, 90, 133, 199}  # of 200 steps
NAN = {17, 91}
SECOND_ONLY = {60, 120}  # steps in which only the second optimizer's gradients overflow


def pytorchs():
    return torch.amp.GradScaler(
        "cpu", OPTIONS["initial"], OPTIONS["growth"], OPTIONS["backoff"], OPTIONS["interval"]
    )


def layers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 3, generator=generator).requires_grad_() for _ in range(2)]


def planted(step, parameters):
    first, second = parameters
    if step in OVERFLOWS:
        first.grad[0, 0] = float("inf")
    if step in NAN:
        first.grad[1, 1] = float("nan")
    if step in SECOND_ONLY:
        second.grad[0, 2] = -float("inf")


def run(scaler, factor, clip, steps=200):
    """Train two weights with an optimizer each; return the scales, the steps done, the weights."""
    parameters = layers()
    first = torch.optim.Adam(parameters[:1], 1e-3)
    second = torch.optim.SGD(parameters[1:], 1e-3, momentum=0.9)
    scales, done = [], []
    for step in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        loss = (x @ parameters[0] @ parameters[1]).square().mean()
        first.zero_grad(), second.zero_grad()
        scaler.scale(loss).backward()
        planted(step, parameters)
        if clip:
            scaler.unscale_(first)
            clip_grad_norm_(parameters[:1], 0.1)
        before = [p.detach().clone() for p in parameters]
        for optimizer in (first, second):
            scaler.step(optimizer)
        done.append([not torch.equal(a, b) for a, b in zip(before, parameters)])
        scaler.update()
        scales.append(factor(scaler))
    return scales, done, parameters


@pytest.mark.parametrize("clip", [False, True])
def test_two_hundred_steps_are_those_of_pytorchs_scaler(clip):
    ours = run(LossScaler(**OPTIONS), lambda scaler: scaler.factor, clip)
    theirs = run(pytorchs(), lambda scaler: scaler.get_scale(), clip)
    assert ours[0] == theirs[0] and len(set(ours[0])) > 20
    assert ours[1] == theirs[1]
    skipped = [step for step, (first, _) in enumerate(ours[1]) if not first]
    assert skipped == sorted(OVERFLOWS | NAN)
    assert [step for step, (_, second) in enumerate(ours[1]) if not second] == sorted(SECOND_ONLY)
    assert every(map(torch.equal, ours[2], theirs[2]))


def test_the_sequence_tells_scalers_apart():
    """Another rule gives other scales: the comparison above can fail."""
    truth = run(pytorchs(), lambda scaler: scaler.get_scale(), False)[0]
    for name, value in (("interval", 5), ("growth", 2.0), ("backoff", 0.5), ("initial", 512.0)):
        other = run(LossScaler(**OPTIONS | {name: value}), lambda scaler: scaler.factor, False)
        assert other[0] != truth, name


def test_a_scale_never_grows_to_infinity():
    ours, theirs = LossScaler(2.0**126, interval=1), torch.amp.GradScaler("cpu", 2.0**126)
    theirs.set_growth_interval(1)
    seen = []
    for _ in range(4):
        weight = torch.ones(1, requires_grad=True)
        factors = []
        for scaler in (ours, theirs):
            optimizer = torch.optim.SGD([weight], 0.0)
            weight.grad = torch.full((1,), 1.0)
            scaler.scale(weight.sum())
            scaler.step(optimizer), scaler.update()
            factors.append(ours.factor if scaler is ours else theirs.get_scale())
        seen.append(factors)
    assert seen == [[2.0**127, 2.0**127]] * 4


def test_a_state_goes_on_where_it_was():
    whole = run(LossScaler(**OPTIONS), lambda scaler: scaler.factor, False, steps=60)[0]
    first = LossScaler(**OPTIONS)
    run(first, lambda scaler: scaler.factor, False, steps=30)
    second = LossScaler()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state_dict() == first.state_dict()
    assert {"factor", "finite_updates"} <= first.state_dict().keys()
    assert (second.factor, second.finite_updates) == (whole[29], first.finite_updates)
    with pytest.raises(KeyError):
        second.load_state_dict({"factor": 1.0})
    assert second.factor == whole[29]


def test_a_static_scale_stays_and_still_skips():
    scaler = LossScaler.static(128.0)
    scales, done, _ = run(scaler, lambda scaler: scaler.factor, False)
    assert set(scales) == {128.0}
    assert [step for step, (first, _) in enumerate(done) if not first] == sorted(OVERFLOWS | NAN)


def one_weight(dtype=torch.float32):
    weight = torch.ones(3, requires_grad=True, dtype=dtype)
    return weight, torch.optim.SGD([weight], 1.0)


def backward(scaler, weight):
    scaler.scale(weight.float().sum()).backward()


def test_step_says_whether_it_was_done():
    scaler, (weight, optimizer) = LossScaler(4.0), one_weight()
    backward(scaler, weight)
    assert scaler.step(optimizer) is True
    assert weight.tolist() == [0.0, 0.0, 0.0]
    scaler.update()
    backward(scaler, weight)
    weight.grad[1] = float("nan")
    assert scaler.step(optimizer) is False
    assert weight.tolist() == [0.0, 0.0, 0.0]


def test_sparse_gradients_are_unscaled_once():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer, scaler = torch.optim.SGD(table.parameters(), 1.0), LossScaler(8.0)
    before = table.weight.detach().clone()
    scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
    assert scaler.step(optimizer)
    expected = torch.tensor([[0.0], [2.0], [0.0], [1.0]])
    torch.testing.assert_close(before - table.weight, expected.expand(4, 2))


def test_misuse_is_refused_in_words():
    scaler, (weight, optimizer) = LossScaler(4.0), one_weight()
    with pytest.raises(RuntimeError, match="No loss was scaled"):
        scaler.unscale_(optimizer)
    scaler.scale(weight.sum())
    with pytest.raises(RuntimeError, match="No parameter of this optimizer has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="neither was called"):
        scaler.update()
    backward(scaler, weight)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="divide its gradients by the scale twice"):
        scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]  # once, in spite of the second call
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already called for this optimizer"):
        scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="No loss was scaled"):
        scaler.step(optimizer)


def test_gradients_in_fp16_are_refused():
    scaler, (weight, optimizer) = LossScaler(2.0**24), one_weight(torch.float16)
    scaler.scale((weight * 2.0**-20).float().sum()).backward()
    with pytest.raises(ValueError, match="wrap it in MasterWeights"):
        scaler.step(optimizer)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial": 0.0}, "a positive number, not by 0.0"),
        ({"initial": float("inf")}, "a positive number, not by inf"),
        ({"growth": 0.5}, "growth is 0.5"),
        ({"backoff": 1.5}, "backoff is 1.5"),
        ({"backoff": 0.0}, "backoff is 0.0"),
        ({"interval": 0}, "at least 1, not 0"),
    ],
)
def test_factors_without_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LossScaler(**options)


def test_the_flag_comes_from_outside_also_without_gradients():
    seen = []

    def elsewhere(flag):
        seen.append(flag.item())
        return torch.ones_like(flag)

    scaler, (weight, optimizer) = LossScaler(4.0, found_anywhere=elsewhere), one_weight()
    backward(scaler, weight)
    assert scaler.step(optimizer) is False
    scaler.update()
    assert scaler.factor == 2.0
    weight.grad = None
    assert scaler.step(optimizer) is False
    assert seen == [0.0, 0.0]
