"""The losses of layers of experts count on every stage of a pipeline, not only on the last."""

from unittest import mock

import pytest
import torch

from lib.parallel.pipeline import PipeDream, runtime
from lib.parallel.pipeline.runtime import Pipeline
from lib.predict.pipeline import schedules
from lib.single import GPT, next_token_loss
from lib.single.experts import auxiliary_loss, with_experts
from tests.parallel.pipeline.test_runtime import BATCH, SHAPE

MICROBATCHES = 4


def gpt():
    model = with_experts(GPT(SHAPE), 4, 2, losses={"balance": 1.0, "z": 0.1})
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return model.double()


def plain():
    """Loss and gradients of the same microbatches on one device."""
    model, total = gpt(), 0.0
    for inputs, targets in zip(*(t.chunk(MICROBATCHES) for t in BATCH)):
        loss = next_token_loss(model(inputs), targets) / MICROBATCHES
        (loss + auxiliary_loss(model) / MICROBATCHES).backward()
        total += loss.item()
    return total, {name: p.grad for name, p in model.named_parameters()}


def piped(schedule):
    pipeline = Pipeline(gpt(), schedule)
    return pipeline.step(*BATCH), pipeline.gradients()


def streamed(ranks):
    """Two updates of a stream that is flushed: the weights of this rank's stage, by name."""
    model = gpt()
    pipe = PipeDream(
        model,
        schedules.repeated(schedules.one_f_one_b(ranks, MICROBATCHES), 2),
        sgd,
        rule="flush",
        every=MICROBATCHES,
    )
    stream = [torch.stack(t.chunk(MICROBATCHES) * 2) for t in BATCH]
    pipe.run(*stream)
    return {name: weight.detach() for name, weight in zip(pipe.names, pipe.weights)}


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def two_steps():
    """The same two updates on one device."""
    model = gpt()
    optimizer = sgd(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        for inputs, targets in zip(*(t.chunk(MICROBATCHES) for t in BATCH)):
            loss = next_token_loss(model(inputs), targets) + auxiliary_loss(model)
            (loss / MICROBATCHES).backward()
        optimizer.step()
    return model.state_dict()


def test_a_stream_counts_them_too(worlds):
    expected, seen = two_steps(), set()
    for weights in worlds(2).run(streamed, 2):
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-9, atol=1e-12)
            seen.add(name)
    assert len([name for name in seen if name.endswith("gate.weight")]) == 6


def forgetful(schedule):
    with mock.patch.object(runtime, "auxiliary_loss", lambda stage: 0.0):
        return piped(schedule)


SCHEDULES = {
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "ZB-H1": schedules.zb_h1,
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_stage_goes_backward_from_its_own_losses(worlds, ranks, name):
    loss, gradients = plain()
    found = {}
    for value, own in worlds(ranks).run(piped, SCHEDULES[name](ranks, MICROBATCHES)):
        assert float(value) == pytest.approx(loss)
        found |= own
    assert found.keys() == gradients.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-9, atol=1e-12)


def test_a_pipeline_that_forgets_them_trains_other_gates(worlds):
    _, gradients = plain()
    for _, own in worlds(2).run(forgetful, SCHEDULES["1F1B"](2, MICROBATCHES)):
        gates = [key for key in own if key.endswith("gate.weight")]
        assert len(gates) == 3
        assert not any(torch.allclose(own[key], gradients[key], rtol=1e-3) for key in gates)
