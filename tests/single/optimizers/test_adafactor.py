"""Our Adafactor beside PyTorch's, beside a step by hand, and where the two differ."""

import copy

import pytest
import torch

from lib.predict.shape import GPTShape
from lib.single import GPT
from lib.single.optimizers import Adafactor
from tests.every import every
from tests.single.optimizers.test_adam import train

SHAPE = GPTShape(width=16, heads=2, layers=2, sequence=16)
AS_PAPER = {"eps": (1e-30, 1e-3)}  # PyTorch's bounds far below every gradient here


def gpt():
    """A GPT without what rounding alone moves: a key's bias has no gradient (a softmax does not
    see it), but the rounding error in its place is divided by its own size."""
    model = GPT(SHAPE).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("qkv.bias"))
    return model


def far(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(((a - b).norm() / b.norm().clamp(min=1e-30)).item() for a, b in pairs)


def parameters(shapes=((6, 4), (5,), (), (2, 3, 4)), dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    made = []
    for shape in shapes:
        value = torch.randn(shape, generator=draw, dtype=torch.float64)
        made.append(torch.nn.Parameter(value.to(dtype)))
    return made


def gradients(of, step):
    draw = torch.Generator().manual_seed(step + 1)
    for parameter in of:
        noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        parameter.grad = (noise * (step + 1) ** 2).to(parameter.dtype)


def by_hand(weights, steps, *, lr=1e-2, relative_step=True, scale_parameter=True, momentum=0.0,
            clip=1.0, power=0.8, eps=(1e-30, 1e-3), weight_decay=0.0):  # fmt: skip
    """Algorithms 4 and 5 of the paper, with V written out as a whole matrix."""
    rms = lambda x: x.square().mean().sqrt()
    kept = [{} for _ in weights]
    for t in range(1, steps + 1):
        gradients(weights, t - 1)
        for weight, state in zip(weights, kept):
            square = weight.grad.square() + eps[0]
            if weight.dim() > 1:
                means = {"rows": square.mean(-1, keepdim=True),
                         "columns": square.mean(-2, keepdim=True)}  # fmt: skip
            else:
                means = {"v": square}
            for key, mean in means.items():
                state[key] = (1 - t**-power) * state.get(key, 0) + t**-power * mean
            v = state.get("v")
            if v is None:
                v = state["rows"] * state["columns"] / state["rows"].mean(-2, keepdim=True)
            u = weight.grad / v.sqrt()
            u = u / max(1.0, (rms(u) / clip).item())
            step = min(lr, t**-0.5) if relative_step else lr
            step = step * max(eps[1], rms(weight.detach()).item()) if scale_parameter else step
            state["m"] = momentum * state.get("m", 0) + (1 - momentum) * step * u
            weight.data = weight.data * (1 - lr * weight_decay) - state["m"]
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.3, "momentum": 0.9},
        {"relative_step": False, "scale_parameter": False, "lr": 0.02},
        {"clip": 0.5, "power": 0.5, "weight_decay": 0.1},
        {"clip": float("inf"), "momentum": 0.5, "scale_parameter": False},
    ],
    ids=str,
)
def test_steps_are_those_of_the_paper(options):
    weights = parameters()
    optimizer = Adafactor(weights, **options)
    for step in range(4):
        gradients(weights, step)
        optimizer.step()
    expected = by_hand(parameters(), 4, **options)
    assert far([weight.detach() for weight in weights], expected) < 1e-13
    other = by_hand(parameters(), 4, **options | {"power": 0.7})
    assert far([weight.detach() for weight in weights], other) > 1e-6


@pytest.mark.parametrize("foreach", [False, True])
def test_a_gpt_is_pytorchs_within_rounding(foreach):
    ours, theirs = gpt(), gpt()
    found = train(ours, Adafactor(ours.parameters()), 5)
    oracle = torch.optim.Adafactor(theirs.parameters(), foreach=foreach, **AS_PAPER)
    assert far(found, train(theirs, oracle, 5)) < 1e-12
    unclipped = gpt()
    other = train(unclipped, Adafactor(unclipped.parameters(), clip=float("inf")), 5)
    assert far(found, other) > 1e-6


def test_state_dicts_go_to_pytorchs_class_and_back():
    whole, model = gpt(), gpt()
    expected = train(whole, Adafactor(whole.parameters()), 3)
    first = Adafactor(model.parameters())
    train(model, first, 1)
    second = torch.optim.Adafactor(model.parameters(), **AS_PAPER)
    second.load_state_dict({"state": copy.deepcopy(first.state_dict()["state"]),
                            "param_groups": second.state_dict()["param_groups"]})  # fmt: skip
    train(model, second, 1, first=1)
    third = Adafactor(model.parameters())
    third.load_state_dict({"state": copy.deepcopy(second.state_dict()["state"]),
                           "param_groups": third.state_dict()["param_groups"]})  # fmt: skip
    assert far(train(model, third, 1, first=2), expected) < 1e-12


@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_pytorchs_epsilon_is_no_longer_small_beside_small_gradients(size):
    """Ours does not depend on the gradient's size; PyTorch's steps as far as clipping lets it."""
    moved = []
    for make in Adafactor, torch.optim.Adafactor:
        weight = torch.nn.Parameter(torch.ones(8, 8))
        optimizer = make([weight])
        draw = torch.Generator().manual_seed(0)
        for step in range(2):
            noise = torch.randn(8, 8, generator=draw) * size
            weight.grad = noise * (0.1 if step else 1.0)  # U of the second step is below 1
            before = weight.detach().clone()
            optimizer.step()
        moved.append((weight.detach() - before).square().mean().sqrt().item())
    ours, theirs = moved
    if size == 1.0:
        assert ours == pytest.approx(theirs, rel=1e-4)
    else:
        assert theirs > 3 * ours


def test_a_large_update_is_clipped_to_rms_1():
    weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    optimizer = Adafactor([weight], lr=1.0, relative_step=False, scale_parameter=False)
    for size in (1.0, 100.0):
        before = weight.detach().clone()
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
        assert (weight.detach() - before).square().mean().sqrt().item() <= 1 + 1e-12


def test_factors_are_exact_for_squares_of_rank_1():
    """Then V is Adam's, and otherwise it is not."""
    rows, columns = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([[1.0, 3.0]])
    for gradient, exact in ((rows * columns, True), (rows + columns**2, False)):
        weight = torch.nn.Parameter(torch.zeros(3, 2))
        optimizer = Adafactor([weight], clip=float("inf"), scale_parameter=False, lr=1.0)
        weight.grad = gradient.clone()
        optimizer.step()
        assert torch.allclose(-weight, gradient / gradient.square().sqrt(), atol=1e-5) == exact


def test_a_parameter_without_a_gradient_is_skipped_and_zeros_give_no_nan():
    a, b = parameters(((3, 2), (3, 2)))
    optimizer = Adafactor([a, b])
    before = b.detach().clone()
    a.grad = torch.zeros_like(a)
    optimizer.step()
    assert torch.equal(b, before) and not optimizer.state[b] and a.isfinite().all()


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="Adafactor cannot use the sparse gradient"):
        Adafactor(embedding.parameters()).step()


def test_one_list_or_many_give_the_same_step(monkeypatch):
    found = []
    for nbytes in (1, 2**30):
        monkeypatch.setattr("lib.single.optimizers.listwise.LIST_BYTES", {})
        monkeypatch.setattr("lib.single.optimizers.listwise.OTHER_LIST_BYTES", nbytes)
        weights = parameters()
        optimizer = Adafactor(weights)
        gradients(weights, 0)
        assert len(list(optimizer.lists(weights))) == (4 if nbytes == 1 else 1)
        optimizer.step()
        found.append(weights)
    assert every(torch.equal(a, b) for a, b in zip(*found))
