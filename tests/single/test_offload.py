"""ZeRO-Offload: the same training with the optimizer in the host's memory, to the bit and byte."""

import copy

import pytest
import torch
from torch import nn

from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.offload import offloaded_bytes
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, next_token_loss
from lib.single.host_memory import HostMemory
from lib.single.offload import OffloadedOptimizer
from tests.every import every

SHAPE = GPTShape(32, 8, 16, 2, 2, tied=True)
KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
}


def tokens(step, rows=4):
    draw = torch.Generator().manual_seed(step)
    return [torch.randint(0, 32, (rows, 8), generator=draw) for _ in range(2)]


def plain_and_offloaded(kind, model, **more):
    plain = copy.deepcopy(model)
    make, defaults = KINDS[kind]
    trained = [p for p in plain.parameters() if p.requires_grad]
    return plain, make(trained, **defaults), model, OffloadedOptimizer(
        model.parameters(), make, **defaults, **more
    )  # fmt: skip


def train(model, optimizer, steps=5, parts=1):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = tokens(step)
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts)):
            loss = next_token_loss(model(x), y) / parts
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def same_weights(model, plain):
    pairs = list(zip(model.parameters(), plain.parameters(), strict=True))
    return bool(pairs) and all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("chunk_bytes", [1, 4000, 10**9])
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_to_the_bit(kind, chunk_bytes):
    """Which memory holds a number changes no digit of it; a tied model, 5 steps."""
    plain, optimizer, model, offloaded = plain_and_offloaded(
        kind, GPT(SHAPE).double(), chunk_bytes=chunk_bytes
    )
    assert train(model, offloaded) == train(plain, optimizer)
    assert same_weights(model, plain)
    assert every(p.grad is None for p in model.parameters())  # sent, and freed


def test_without_the_way_back_it_is_not(monkeypatch):
    plain, optimizer, model, offloaded = plain_and_offloaded("adamw", GPT(SHAPE))
    monkeypatch.setattr(HostMemory, "_copy", _only_down(HostMemory._copy))
    train(model, offloaded, 2)
    train(plain, optimizer, 2)
    assert not same_weights(model, plain)


def _only_down(copy_of):
    def only(self, op, destination, source, after):
        return copy_of(self, op, source if op == "to_device" else destination, source, after)

    return only


def test_gradients_of_several_backward_passes_are_added():
    plain, optimizer, model, offloaded = plain_and_offloaded("adamw", GPT(SHAPE))
    assert train(model, offloaded, parts=2) == train(plain, optimizer, parts=2)
    assert same_weights(model, plain)


def test_frozen_and_unused_weights_stay_as_they_are():
    model = GPT(SHAPE)
    model.unused = nn.Parameter(torch.ones(3))
    frozen = model.blocks["1"].norm1.weight.requires_grad_(False)
    before = frozen.clone()
    plain, optimizer, model, offloaded = plain_and_offloaded("adamw", model)
    train(model, offloaded)
    train(plain, optimizer)
    assert same_weights(model, plain) and torch.equal(frozen, before)
    assert torch.equal(model.unused, torch.ones(3)) and frozen not in offloaded.home


def test_gradients_that_were_set_by_hand_are_taken():
    """As FSDP does: no hook of autograd sees its shards' gradients."""
    weight = nn.Parameter(torch.ones(7))
    offloaded = OffloadedOptimizer([weight], torch.optim.SGD, lr=1.0)
    weight.grad = torch.full((7,), 0.25)
    offloaded.step()
    assert torch.equal(weight, torch.full((7,), 0.75)) and weight.grad is None


def test_weights_of_16_bits_are_stepped_in_32():
    """The reference: weights of 32 bits, rounded to 16 for forward and backward."""
    model = GPT(SHAPE).bfloat16()
    home = copy.deepcopy(model).float()
    offloaded = OffloadedOptimizer(model.parameters(), torch.optim.SGD, lr=0.003)
    reference, plain = torch.optim.SGD(home.parameters(), lr=0.003), copy.deepcopy(model)
    for step in range(5):
        plain.zero_grad()
        inputs, targets = tokens(step)
        next_token_loss(plain(inputs), targets).backward()
        for wide, narrow in zip(home.parameters(), plain.parameters()):
            wide.grad = narrow.grad.float()
        reference.step()
        with torch.no_grad():
            for wide, narrow in zip(home.parameters(), plain.parameters()):
                narrow.copy_(wide)
    train(model, offloaded)
    assert same_weights(model, plain)
    kept = list(offloaded.home.values())
    pairs = zip(kept, home.parameters(), strict=True)
    assert every(torch.equal(one, other.cpu()) for one, other in pairs)
    assert {one.dtype for one in kept} == {torch.float32}
    assert any(not torch.equal(one, one.bfloat16().float()) for one in kept)  # digits 16 bits lose


def test_the_norm_is_clipped_on_the_host():
    plain, optimizer, model, offloaded = plain_and_offloaded("adamw", GPT(SHAPE))
    for step in range(3):
        inputs, targets = tokens(step)
        for one in (model, plain):
            next_token_loss(one(inputs), targets).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        assert torch.allclose(offloaded.clip_grad_norm_(0.1), norm, rtol=1e-6) and norm > 0.1
        for one in (offloaded, optimizer):
            one.step()
            one.zero_grad()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    worst = max((a - b).abs().max().item() for a, b in pairs)
    assert worst < 1e-6  # the same numbers, summed in another order: the last gradient comes first


def test_a_delayed_update_uses_the_gradients_of_the_step_before():
    """The reference keeps the last step's gradients and steps with them, after backward."""
    plain, optimizer, model, offloaded = plain_and_offloaded("adamw", GPT(SHAPE), delayed=True)
    before = None
    for step in range(5):
        optimizer.zero_grad()
        inputs, targets = tokens(step)
        next_token_loss(plain(inputs), targets).backward()
        now = [p.grad for p in plain.parameters()]
        for p, gradient in zip(plain.parameters(), before or [None] * len(now)):
            p.grad = gradient
        before = now
        optimizer.step()
    train(model, offloaded)
    assert same_weights(model, plain)
    prompt = GPT(SHAPE)
    train(prompt, OffloadedOptimizer(prompt.parameters(), torch.optim.AdamW, lr=0.01))
    assert not same_weights(model, prompt)


def test_groups_schedules_and_closures_are_those_of_pytorch():
    model = GPT(SHAPE)
    plain = copy.deepcopy(model)

    def groups(of):
        decayed = [p for p in of.parameters() if p.dim() > 1]
        rest = [p for p in of.parameters() if p.dim() < 2]
        return [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]

    one = OffloadedOptimizer(groups(model), torch.optim.AdamW, lr=0.01)
    other = torch.optim.AdamW(groups(plain), lr=0.01)
    for optimizer, trained in ((one, model), (other, plain)):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(4):
            inputs, targets = tokens(step)

            def closure():
                optimizer.zero_grad()  # noqa: B023
                loss = next_token_loss(trained(inputs), targets)  # noqa: B023
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
            schedule.step()
    assert same_weights(model, plain)


def test_states_are_saved_with_the_weights_in_full_precision():
    model = GPT(SHAPE).bfloat16()
    offloaded = OffloadedOptimizer(model.parameters(), lr=0.01)
    train(model, offloaded, 2)
    saved, weights = copy.deepcopy(offloaded.state_dict()), copy.deepcopy(model.state_dict())
    train(model, offloaded, 3)
    again = GPT(SHAPE, seed=1).bfloat16()
    resumed = OffloadedOptimizer(again.parameters(), lr=0.5)
    resumed.load_state_dict(saved)
    assert same_weights(again, GPT(SHAPE).bfloat16()) is False
    assert every(torch.equal(again.state_dict()[name], weights[name]) for name in weights)
    train(again, resumed, 3)
    assert same_weights(again, model) and resumed.param_groups[0]["lr"] == 0.01


def test_weights_changed_by_hand_are_told_by_refresh():
    model = nn.Linear(3, 1, bias=False)
    offloaded = OffloadedOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)

    def step_from(value, told):
        nn.init.constant_(model.weight, value)
        if told:
            offloaded.refresh()
        model(torch.ones(1, 3)).sum().backward()
        offloaded.step()
        return model.weight[0, 0].item()

    assert step_from(5.0, told=True) == 4.0
    assert step_from(9.0, told=False) == 3.0  # from the host's weights, which nobody told


# --- bytes


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_bytes_in_both_memories_are_as_predicted(itemsize, delayed):
    """What lasts through a step, to the byte; and the device never holds a state."""
    shape = MLPShape((16, 64, 64, 8))
    model = MLP(shape).to({2: torch.bfloat16, 4: torch.float32}[itemsize])
    offloaded = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, delayed=delayed, lr=0.01)
    x = torch.randn(4, 16).to(next(model.parameters()).dtype)
    with Memory(model, offloaded) as memory:
        for _ in range(3):
            model(x).square().mean().backward()
            offloaded.step()
    predicted = offloaded_bytes(shape, "adamw", itemsize, delayed=delayed)
    now = memory.now
    assert now["parameters"] == predicted.device_weights == shape.nbytes(itemsize)
    assert now["optimizer"] == now["gradients"] == 0 == memory.at_peak["optimizer"]
    assert memory.host == predicted.host
    moment = [row.bytes for row in memory.rows if row.op == "other"]
    assert max(moment) < shape.nbytes(itemsize)  # never all gradients at once


def test_zero_offloads_own_figures():
    """Table 1 of the paper: 2 bytes a parameter on the device instead of 16, 4 over the link."""
    shape = MLPShape((100, 100), bias=False)
    kept = offloaded_bytes(shape, "adamw", 2)
    assert kept.device_weights == 2 * shape.numel
    assert kept.host - 4 == 14 * shape.numel  # and Adam's counter
    assert kept.device_weights + kept.host - 4 == 16 * shape.numel


def test_without_offload_the_device_holds_the_states():
    """The bite: the same step with PyTorch's AdamW."""
    model = MLP(MLPShape((16, 64, 8)))
    optimizer = torch.optim.AdamW(model.parameters())
    with Memory(model, optimizer) as memory:
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
    assert memory.now["optimizer"] > 0 and memory.host == memory.host_peak == 0


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], "There are 0 parameters and none of them is trained. Give the trained parameters"),
        ([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, device="meta"))],
         "There are 2 parameters on 2 devices (cpu, meta)."),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_a_sentence(params, words):
    with pytest.raises(ValueError) as told:
        OffloadedOptimizer(params)
    assert words in str(told.value)
