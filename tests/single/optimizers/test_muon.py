"""Muon against PyTorch's, against the exact polar factor, and which parameters are its own."""

import copy

import pytest
import torch
from torch import nn

from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.single import GPT, MLP, next_token_loss
from lib.single.optimizers import AdamW, Muon, split_parameters
from lib.single.optimizers.muon import newton_schulz
from tests.every import every

SHAPES = [(6, 6), (12, 5), (5, 12), (1, 7), (7, 1)]
SHAPE = GPTShape(width=32, heads=2, layers=2, sequence=16)


def matrix(m, n, seed=0, dtype=torch.float64):
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(m, n, generator=noise, dtype=dtype)


def trained(make, dtype=torch.float32, steps=4):
    """Four steps on matrices of all shapes; one has no gradient in the second step."""
    parameters = [nn.Parameter(matrix(*shape, dtype=dtype)) for shape in SHAPES]
    optimizer = make(parameters)
    for step in range(steps):
        for n, parameter in enumerate(parameters):
            parameter.grad = matrix(*parameter.shape, seed=10 * step + n + 1, dtype=dtype)
        if step == 1:
            parameters[0].grad = None
        optimizer.step()
    return parameters, optimizer


OPTIONS = [
    {},
    {"nesterov": False},
    {"adjust_lr_fn": "match_rms_adamw"},
    {"weight_decay": 0.0, "momentum": 0.5, "lr": 0.3},
    {"ns_steps": 2, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-3},
]


# Without Nesterov and in bf16, PyTorch's divides its own momentum: see the next test.
CASES = [
    (options, dtype)
    for options in OPTIONS
    for dtype in (torch.float32, torch.bfloat16, torch.float64)
    if dtype != torch.bfloat16 or options.get("nesterov", True)
]


@pytest.mark.parametrize(("options", "dtype"), CASES)
def test_it_is_pytorchs_to_the_bit(options, dtype):
    """Both run Newton-Schulz in bf16, whatever the weights are in."""
    theirs, their_optimizer = trained(lambda p: torch.optim.Muon(p, **options), dtype)
    ours, optimizer = trained(lambda p: Muon(p, **options), dtype)
    assert every(torch.equal(a, b) for a, b in zip(ours, theirs))
    assert every(
        torch.equal(optimizer.state[a]["momentum_buffer"],
                    their_optimizer.state[b]["momentum_buffer"])
        for a, b in zip(ours, theirs)
    )  # fmt: skip
    before = [matrix(*shape, dtype=dtype) for shape in SHAPES]
    assert any(not torch.equal(a, b) for a, b in zip(ours, before))


def test_pytorchs_normalizes_the_momentum_itself_in_one_case():
    """A bug of PyTorch 2.13: without Nesterov, `div_` works on the momentum where it is bf16."""
    start, gradient = matrix(6, 5).bfloat16(), 100 * matrix(6, 5, seed=1).bfloat16()
    norms = {}
    for make in (torch.optim.Muon, Muon):
        parameter = nn.Parameter(start.clone())
        optimizer = make([parameter], nesterov=False)
        parameter.grad = gradient
        optimizer.step()
        norms[make] = optimizer.state[parameter]["momentum_buffer"].float().norm().item()
    assert norms[torch.optim.Muon] == pytest.approx(1, rel=0.01)
    assert norms[Muon] == pytest.approx(0.05 * gradient.float().norm().item(), rel=0.01)


def test_their_state_dict_can_be_loaded():
    _, theirs = trained(torch.optim.Muon)
    ours = Muon([nn.Parameter(matrix(*shape, dtype=torch.float32)) for shape in SHAPES])
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    buffers = [state["momentum_buffer"] for state in ours.state.values()]
    expected = [state["momentum_buffer"] for state in theirs.state.values()]
    assert every(torch.equal(a, b) for a, b in zip(buffers, expected))


def test_precision_is_an_option():
    exact, _ = trained(lambda p: Muon(p, ns_dtype=None), torch.float64)
    rounded, _ = trained(Muon, torch.float64)
    apart = max((a - b).abs().max().item() for a, b in zip(exact, rounded))
    assert 1e-6 < apart < 1e-3  # four steps of 1e-3


def by_hand(start, gradients, lr, decay, mu):
    """The source's equations, with the polynomial applied to singular values: no products."""
    w, momentum = start.clone(), torch.zeros_like(start)
    for g in gradients:
        momentum = mu * momentum + g
        update = mu * momentum + g
        u, s, v = torch.linalg.svd(update, full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        m, n = start.shape
        w = w - lr * decay * w - lr * max(1, m / n) ** 0.5 * u @ s.diag() @ v
    return w


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_by_hand(shape):
    start, gradients = matrix(*shape), [matrix(*shape, seed=n) for n in range(1, 4)]
    parameter = nn.Parameter(start.clone())
    optimizer = Muon([parameter], lr=0.1, weight_decay=0.2, momentum=0.9, ns_dtype=None)
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    expected = by_hand(start, gradients, 0.1, 0.2, 0.9)
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (32, 128)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_comes_near_the_polar_factor_and_does_not_reach_it(shape, dtype):
    update = matrix(*shape)
    u, s, v = torch.linalg.svd(update, full_matrices=False)
    near = newton_schulz(update.to(dtype)).double()
    inside = u.T @ near @ v.T  # of the exact singular vectors: nearly diagonal
    values, own = torch.linalg.svdvals(near), inside.diag()
    large = s / s.norm() > 0.01  # 3.4445 to the fifth is 485: smaller ones have not come up yet
    assert large.sum() >= 0.9 * len(s)
    assert 0.65 < own[large].min() < own.max() < 1.25
    assert values.max() - values[large].min() > 0.1  # they do not settle at 1
    off = inside - own.diag()
    assert off.abs().max() < (1e-12 if dtype == torch.float64 else 0.05)
    # The singular values of the update itself differ by more.
    assert s.max() / s[large].min() > 1.5 * values.max() / values[large].min()


def test_the_range_of_singular_values_is_that_of_the_polynomial():
    """From 0.003 of the norm on, all come between 0.68 and 1.21; what is smaller stays smaller."""
    before = torch.logspace(-2.5, 0, 5000, dtype=torch.float64)
    after = before.clone()
    for _ in range(5):
        after = 3.4445 * after - 4.7750 * after**3 + 2.0315 * after**5
    assert 0.681 < after.min() < 0.683 and 1.15 < after.max() < 1.203
    update = torch.tensor([1.0, 1e-4], dtype=torch.float64).diag()
    assert newton_schulz(update).diag()[1] == pytest.approx(1e-4 * 3.4445**5, rel=1e-2)


def test_directions_of_small_gradients_come_up():
    """A matrix with singular values 1 and 0.01: afterwards the two count about the same."""
    update = torch.diag(torch.tensor([1.0, 0.01], dtype=torch.float64))
    values = newton_schulz(update).diag()
    assert values.min() > 0.65 and values.max() < 1.25
    assert newton_schulz(update, steps=0).diag()[1] == pytest.approx(0.01, rel=1e-3)


def test_the_scale_of_the_update_does_not_matter():
    update = matrix(5, 9)
    torch.testing.assert_close(newton_schulz(1e3 * update), newton_schulz(update))
    assert newton_schulz(torch.zeros(3, 4)).abs().max() == 0


def test_a_gpt_is_split_into_hidden_matrices_and_the_rest():
    model = GPT(SHAPE)
    names = {id(p): name for name, p in model.named_parameters()}
    hidden, rest = split_parameters(model)
    found = [names[id(p)] for p in hidden]
    kinds = ("attention.qkv", "attention.proj", "mlp.up", "mlp.down")
    assert found == [f"blocks.{n}.{kind}.weight" for n in (1, 2) for kind in kinds]
    others = [name for name in names.values() if name not in found]
    assert [names[id(p)] for p in rest] == others
    assert {"blocks.0.tokens.weight", "blocks.3.linear.weight"} <= set(others)


def test_tied_frozen_excluded_and_convolutional_parameters():
    tied = GPT(GPTShape(width=32, heads=2, layers=1, sequence=16, tied=True))
    hidden, rest = split_parameters(tied)
    assert len(hidden) == 4 and len(rest) == len({id(p) for p in rest})
    tied.get_parameter("blocks.1.mlp.up.weight").requires_grad_(False)
    hidden, rest = split_parameters(tied, exclude=["blocks.1.attention"])
    assert len(hidden) == 1 and hidden[0] is tied.get_parameter("blocks.1.mlp.down.weight")
    assert not any(p is tied.get_parameter("blocks.1.mlp.up.weight") for p in rest)
    seen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 2))
    assert [list(p.shape) for p in split_parameters(seen)[0]] == [[4, 4]]
    assert len(split_parameters(MLP())[0]) == len(MLP()) - 1
    assert split_parameters(nn.LayerNorm(3))[0] == []


def test_the_bytes_of_the_states_are_as_predicted():
    model, (tokens, targets) = GPT(SHAPE), (torch.arange(16)[None], torch.arange(16)[None])
    hidden, rest = split_parameters(model)
    optimizers = [Muon(hidden), AdamW(rest)]
    next_token_loss(model(tokens), targets).backward()
    for optimizer in optimizers:
        optimizer.step()
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    kept = sum(tensor.nbytes for state in states for tensor in state.values())
    assert kept == state_bytes("muon", SHAPE) < state_bytes("adam", SHAPE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1}, "lr must be finite"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"adjust_lr_fn": "rms"}, "No scale of Muon is called 'rms'"),
        ({"ns_steps": 1.5}, "ns_steps must be a whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Muon([nn.Parameter(torch.zeros(3, 3))], **options)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"a parameter has the shape \[3\]\. Give it to AdamW"):
        Muon(nn.Linear(3, 3).parameters())
    complex_one = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    optimizer = Muon([complex_one])
    complex_one.grad = torch.ones_like(complex_one)
    with pytest.raises(RuntimeError, match="cannot update a complex parameter"):
        optimizer.step()
