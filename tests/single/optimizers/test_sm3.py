"""SM3's steps beside plain loops over weights and slices, and the bounds that it promises."""

import itertools

import pytest
import torch

from lib.single.optimizers import SM3
from tests.every import every
from tests.single.optimizers.test_adafactor import far, gradients, parameters

SHAPES = ((6, 4), (5,), (), (2, 3, 4))


def slices(shape):
    """The cover of a tensor: the slices of each dim, by (dim, index); of a vector its elements."""
    return [(dim, n) for dim, size in enumerate(shape or (1,)) for n in range(size)]


def lies_in(index, piece):
    return not index or index[piece[0]] == piece[1]


def by_hand(weight, steps, *, lr=0.1, momentum=0.9, version="II"):
    """The algorithms of the paper, in plain numbers: the weights, and all ν of the last step."""
    entries = list(itertools.product(*map(range, weight.shape)))
    theta = {i: weight[i].item() for i in entries}
    mu = dict.fromkeys(slices(weight.shape), 0.0)
    average = dict.fromkeys(entries, 0.0)
    for step in range(steps):
        gradients([weight], step)
        g = {i: weight.grad[i].item() for i in entries}
        of = {i: [r for r in mu if lies_in(i, r)] for i in entries}
        if version == "I":
            for r in mu:
                mu[r] += max(g[j] ** 2 for j in entries if lies_in(j, r))
            nu = {i: min(mu[r] for r in of[i]) for i in entries}
        else:
            nu = {i: min(mu[r] for r in of[i]) + g[i] ** 2 for i in entries}
            mu = {r: max(nu[j] for j in entries if lies_in(j, r)) for r in mu}
        for i in entries:
            scaled = g[i] / nu[i] ** 0.5 if g[i] else 0.0
            average[i] = momentum * average[i] + (1 - momentum) * scaled
            theta[i] -= lr * average[i]
    made = lambda values: torch.tensor([values[i] for i in entries]).view(weight.shape)
    with_double = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return made(theta), made(nu)
    finally:
        torch.set_default_dtype(with_double)


def stepped(shape, steps=4, **options):
    (weight,) = parameters((shape,))
    optimizer = SM3([weight], **options)
    for step in range(steps):
        gradients([weight], step)
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("version", ["I", "II"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_those_of_the_paper(shape, version, momentum):
    found, _ = stepped(shape, version=version, momentum=momentum)
    expected, _ = by_hand(*parameters((shape,)), 4, version=version, momentum=momentum)
    assert far([found], [expected]) < 1e-13
    if len(shape) > 1:  # of a vector, the two versions are Adagrad
        other, _ = by_hand(*parameters((shape,)), 4, version={"I": "II", "II": "I"}[version],
                           momentum=momentum)  # fmt: skip
        assert far([found], [other]) > 1e-3


def test_of_a_vector_both_versions_are_adagrad():
    (weight,) = parameters(((5,),))
    oracle = torch.optim.Adagrad([weight], 0.1, eps=0.0)
    for step in range(4):
        gradients([weight], step)
        oracle.step()
    for version in ("I", "II"):
        assert far([stepped((5,), momentum=0.0, version=version)[0]], [weight.detach()]) < 1e-13


def test_the_bounds_hold_and_the_second_is_tighter():
    """γ ≤ ν of II ≤ ν of I for every weight, where γ is the sum of squares that Adagrad keeps."""
    (weight,) = parameters(((6, 4),))
    total = torch.zeros(6, 4, dtype=torch.float64)
    for step in range(4):
        gradients([weight], step)
        total += weight.grad.square()
    _, first = by_hand(weight, 4, version="I")
    _, second = by_hand(weight, 4, version="II")
    assert every((total <= second * (1 + 1e-12)).flatten())
    assert every((second <= first * (1 + 1e-12)).flatten()) and (second < 0.9 * first).any()


def test_a_row_without_gradient_stays_where_it_is():
    """0 / 0 is 0: an embedding's unused rows have ν = 0."""
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = SM3([weight], momentum=0.0)
    weight.grad = torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.5, 0.0]])
    optimizer.step()
    assert torch.equal(weight[1], torch.ones(2)) and weight.isfinite().all()
    assert torch.allclose(weight[0], torch.full((2,), 0.9))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_goes_on_from_its_state_dict(momentum):
    expected, _ = stepped((6, 4), momentum=momentum)
    (weight,) = parameters(((6, 4),))
    optimizer = SM3([weight], momentum=momentum)
    for step in range(4):
        if step == 2:
            saved = optimizer.state_dict()
            optimizer = SM3([weight], momentum=momentum)
            optimizer.load_state_dict(saved)
        gradients([weight], step)
        optimizer.step()
    assert torch.equal(weight.detach(), expected)


def test_what_it_keeps():
    _, state = stepped((2, 3, 4))
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    assert shapes == {
        "accumulator_0": [2, 1, 1], "accumulator_1": [1, 3, 1], "accumulator_2": [1, 1, 4],
        "momentum": [2, 3, 4],
    }  # fmt: skip
    assert every(name != "momentum" for name in stepped((2, 3), momentum=0.0)[1])


def test_an_unknown_version_and_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="SM3 has the versions I and II, not 'III'."):
        SM3([torch.nn.Parameter(torch.ones(1))], version="III")
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="SM3 cannot use the sparse gradient"):
        SM3(embedding.parameters()).step()
