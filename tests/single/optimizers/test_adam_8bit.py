"""8-bit Adam against steps in plain loops, against 32-bit Adam where blocks are exact, in bytes."""

import copy

import pytest
import torch
from torch import nn

from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss
from lib.single.optimizers import Adam8bit
from lib.single.optimizers import adam_8bit as module
from lib.single.optimizers.code_maps import dynamic_values
from tests.every import every

RATE, BETA1, BETA2, EPS = 0.01, 0.9, 0.999, 1e-8
SHAPE = GPTShape(width=32, heads=2, layers=2, sequence=16)


def gradients(numel, steps, seed=0):
    noise = torch.Generator().manual_seed(seed)
    scale = 10 ** (2 * torch.rand(numel, generator=noise) - 2)
    return [torch.randn(numel, generator=noise) * scale for _ in range(steps)]


def nearest(value, values):
    """The index of the nearest of the values, found by looking at each."""
    return min(range(len(values)), key=lambda code: abs(values[code] - value))


def by_hand(weights, steps_of_gradients, block):
    """The paper's steps, number by number: decode, Adam's equations, encode with new maxima."""
    w, numel = weights.tolist(), len(weights)
    maps = [dynamic_values(True).tolist(), dynamic_values(False).tolist()]
    codes = [[nearest(0, values)] * numel for values in maps]
    maxima = [[0.0] * -(-numel // block) for _ in maps]
    for t, gradient in enumerate(steps_of_gradients, 1):
        new = [[0.0] * numel, [0.0] * numel]
        for n, g in enumerate(gradient.tolist()):
            m, v = (
                values[code[n]] * top[n // block] for values, code, top in zip(maps, codes, maxima)
            )
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
            m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
            w[n] -= RATE * m_hat / (v_hat**0.5 + EPS)
            new[0][n], new[1][n] = m, v
        for k, numbers in enumerate(new):
            for first in range(0, numel, block):
                top = max(abs(number) for number in numbers[first : first + block])
                maxima[k][first // block] = top
                for n in range(first, min(first + block, numel)):
                    codes[k][n] = nearest(numbers[n] / top, maps[k])
    return w, codes, maxima


def trained(weights, steps_of_gradients, make):
    parameter = nn.Parameter(weights.clone())
    optimizer = make([parameter])
    for gradient in steps_of_gradients:
        parameter.grad = gradient.clone().view_as(parameter)
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


@pytest.mark.parametrize("chunk", [1, 16, 10**6])
@pytest.mark.parametrize("block", [1, 8, 30, 100])
def test_steps_equal_those_by_hand(block, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    start, pushed = torch.linspace(-1, 1, 30), gradients(30, 4)
    expected, codes, maxima = by_hand(start, pushed, block)
    make = lambda p: Adam8bit(p, RATE, smallest=0, block=block)
    weights, state = trained(start, pushed, make)
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-6, atol=1e-6)
    for k, name in enumerate(("exp_avg", "exp_avg_sq")):
        assert state[f"{name}_codes"].tolist() == codes[k]
        assert state[f"{name}_maxima"].tolist() == pytest.approx(maxima[k], rel=1e-6)


def adam(parameters):
    return torch.optim.Adam(parameters, RATE, foreach=True)


def test_with_exact_blocks_it_is_adam_to_the_bit():
    """Of blocks of one positive number the maximum is the number, whose code is that of 1."""
    start, pushed = torch.linspace(-1, 1, 50), [g.abs() for g in gradients(50, 5)]
    make = lambda p: Adam8bit(p, RATE, smallest=0, block=1)
    expected, _ = trained(start, pushed, adam)
    assert torch.equal(trained(start, pushed, make)[0], expected)
    signed = [-g for g in pushed]  # there is no code for -1: the nearest value is -0.993
    assert not torch.equal(trained(start, signed, make)[0], trained(start, signed, adam)[0])


def test_small_tensors_keep_32_bits():
    start, pushed = torch.zeros(4095), gradients(4095, 3)
    weights, state = trained(start, pushed, lambda p: Adam8bit(p, RATE))
    assert torch.equal(weights, trained(start, pushed, adam)[0])
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    start, pushed = torch.zeros(4096), gradients(4096, 3)
    weights, state = trained(start, pushed, lambda p: Adam8bit(p, RATE))
    assert "exp_avg_codes" in state and state["exp_avg_maxima"].shape == (16,)
    assert not torch.equal(weights, trained(start, pushed, adam)[0])


def test_small_tensors_are_updated_together_also_between_large_ones(monkeypatch):
    """Each list has a few calls for any number of parameters, which small ones share."""
    lengths, plain = [], torch._foreach_sqrt
    counted = lambda tensors: lengths.append(len(tensors)) or plain(tensors)
    monkeypatch.setattr(torch, "_foreach_sqrt", counted)
    parameters = [nn.Parameter(torch.ones(n)) for n in (10, 2**18, 20, 2**18, 30)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    Adam8bit(parameters, RATE).step()
    assert lengths == [3]


def test_the_error_of_a_step_is_small_on_numbers_of_many_sizes():
    start, pushed = torch.zeros(10_000), gradients(10_000, 20)
    exact = trained(start, pushed, adam)[0]
    codes = trained(start, pushed, lambda p: Adam8bit(p, RATE))[0]
    assert (codes - exact).norm() < 0.05 * exact.norm()
    linear = trained(start, pushed, lambda p: Adam8bit(p, RATE, kind="linear"))[0]
    assert (linear - exact).norm() > 10 * exact.norm()


def test_a_second_moment_that_becomes_zero_makes_a_huge_step():
    """A rare number beside a usual one of 5,000 times its gradient, and then a gradient of 0."""
    first, then = torch.tensor([1.0, 2e-4]), torch.tensor([1.0, 0.0])
    options = {"lr": RATE, "smallest": 0}
    weights, state = trained(torch.zeros(2), [first, then], lambda p: Adam8bit(p, **options))
    assert abs(weights[1]) > 1 and abs(weights[0]) < 0.03
    exact = trained(torch.zeros(2), [first, then], adam)[0]
    assert abs(exact[1]) < 0.03
    apart = trained(torch.zeros(2), [first, then], lambda p: Adam8bit(p, block=1, **options))[0]
    assert abs(apart[1]) < 0.03


def gpt():
    model = GPT(SHAPE)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (4, 17), generator=draw)
    return model, (tokens[:, :-1], tokens[:, 1:])


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = next_token_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


def measured(optimizer):
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.parametrize("options", [{}, {"block": 100}, {"smallest": 10}, {"block": 2048}])
def test_the_bytes_of_its_states_are_as_predicted(options):
    model, batch = gpt()
    optimizer = Adam8bit(model.parameters(), **options)
    one_step(model, optimizer, batch)
    assert measured(optimizer) == state_bytes("adam8bit", SHAPE, **options)
    assert measured(optimizer) < 0.45 * state_bytes("adam", SHAPE)  # biases stay in 32 bits


def test_a_gpt_learns_as_with_32_bits_and_not_at_all_with_a_linear_map():
    """The linear map has 0 for every second moment below 1/510 of the largest of its block."""
    losses = {}
    for name, make in (("8 bits", lambda p: Adam8bit(p, 1e-2)),
                       ("32 bits", lambda p: torch.optim.Adam(p, 1e-2)),
                       ("linear", lambda p: Adam8bit(p, 1e-2, kind="linear"))):  # fmt: skip
        model, batch = gpt()
        optimizer = make(model.parameters())
        losses[name] = [one_step(model, optimizer, batch) for _ in range(30)]
    assert losses["32 bits"][-1] < 0.2
    assert abs(losses["8 bits"][-1] - losses["32 bits"][-1]) < 0.01
    assert losses["linear"][-1] > 10 * losses["linear"][0]


def test_a_state_dict_keeps_codes_as_bytes_and_training_goes_on_the_same():
    model, batch = gpt()
    optimizer = Adam8bit(model.parameters())
    for _ in range(2):
        one_step(model, optimizer, batch)
    again = copy.deepcopy(model)
    other = Adam8bit(again.parameters(), lr=99)
    saved = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict(saved)
    kinds = {str(t.dtype) for state in other.state.values() for t in state.values()}
    assert kinds == {"torch.uint8", "torch.float32"}
    for _ in range(2):
        one_step(model, optimizer, batch)
        one_step(again, other, batch)
    assert every(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    first = next(iter(saved["state"].values()))
    assert first["step"] == 2  # what was saved did not train on


def test_weights_in_bf16_keep_maxima_in_fp32():
    start, pushed = torch.zeros(5000), gradients(5000, 3)
    low = [g.bfloat16() for g in pushed]
    make = lambda p: Adam8bit(p, RATE)
    weights, state = trained(start.bfloat16(), low, make)
    assert weights.dtype == torch.bfloat16 and state["exp_avg_maxima"].dtype == torch.float32
    expected = trained(start, [g.float() for g in low], make)[0]
    torch.testing.assert_close(weights.float(), expected, rtol=2e-2, atol=1e-3)
    parameter = nn.Parameter(weights)
    other = make([parameter])
    parameter.grad = low[0]
    other.step()
    other.load_state_dict({"state": {0: state}, "param_groups": other.state_dict()["param_groups"]})
    assert other.state[parameter]["exp_avg_maxima"].dtype == torch.float32


def test_weights_that_lie_in_another_order_and_missing_gradients():
    noise = torch.Generator().manual_seed(0)
    plain = torch.randn(70, 80, generator=noise)
    turned = nn.Parameter(plain.T.contiguous().T)
    assert not turned.is_contiguous()
    straight, unused = nn.Parameter(plain.clone()), nn.Parameter(torch.ones(5000))
    optimizer = Adam8bit([turned, straight, unused], RATE, weight_decay=0.1)
    for gradient in gradients(5600, 2):
        turned.grad = straight.grad = gradient.view(70, 80)
        optimizer.step()
    assert torch.equal(turned, straight) and not torch.equal(turned, plain)
    assert unused not in optimizer.state and torch.equal(unused, torch.ones(5000))


def test_weight_decay_is_decoupled():
    start, pushed = torch.linspace(1, 2, 100), gradients(100, 3)
    make = lambda p: Adam8bit(p, RATE, weight_decay=0.3)
    expected = trained(start, pushed, lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.3))[0]
    torch.testing.assert_close(trained(start, pushed, make)[0], expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1}, "lr must be finite"),
        ({"betas": (0.9, 1.0)}, "Each of betas must be below 1"),
        ({"block": 0}, "block must be a whole number"),
        ({"kind": "tree"}, "Choose dynamic or linear"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Adam8bit([nn.Parameter(torch.zeros(3))], **options)


def test_sparse_gradients_are_refused():
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = Adam8bit(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="Adam8bit cannot use the sparse gradient"):
        optimizer.step()
