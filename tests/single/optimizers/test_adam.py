"""Our Adam and AdamW are torch.optim's, to the bit, and so are their state dicts."""

import copy

import pytest
import torch

from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.optimizers import Adam, AdamW
from tests.every import every

SHAPE = GPTShape(width=16, heads=2, layers=2, sequence=16)
PAIRS = {"Adam": (Adam, torch.optim.Adam), "AdamW": (AdamW, torch.optim.AdamW)}
OPTIONS = [{}, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}]


def train(model, optimizer, steps, first=0):
    batches = Batches(4, SHAPE.sequence)
    for n in range(first, first + steps):
        x, y = batches[n]
        optimizer.zero_grad()
        next_token_loss(model(x), y).backward()
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=["defaults", "other options"])
@pytest.mark.parametrize("name", PAIRS)
def test_weights_are_pytorchs_to_the_bit(name, options, dtype):
    ours, theirs = (GPT(SHAPE).to(dtype) for _ in range(2))
    make, oracle = PAIRS[name]
    found = train(ours, make(ours.parameters(), **options), 4)
    expected = train(theirs, oracle(theirs.parameters(), foreach=True, **options), 4)
    assert every(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not every(torch.equal(a, b) for a, b in zip(found, GPT(SHAPE).to(dtype).parameters()))


def test_decay_that_is_decoupled_is_another_step():
    weights = []
    for make in PAIRS["Adam"][0], PAIRS["AdamW"][0]:
        model = GPT(SHAPE)
        weights.append(train(model, make(model.parameters(), weight_decay=0.1), 2))
    assert not every(torch.equal(a, b) for a, b in zip(*weights))


@pytest.mark.parametrize("name", PAIRS)
def test_a_state_dict_goes_to_pytorchs_class_and_back(name):
    make, oracle = PAIRS[name]
    whole = GPT(SHAPE)
    expected = train(whole, make(whole.parameters()), 4)
    model = GPT(SHAPE)
    first = make(model.parameters())
    train(model, first, 1)
    second = oracle(model.parameters(), foreach=True)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(model, second, 1, first=1)
    third = make(model.parameters())
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    found = train(model, third, 2, first=2)
    assert every(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_parameters_that_begin_later_have_their_own_bias_correction():
    """Each counts its own steps; one count for all would correct the late one too little."""
    weights = []
    for make in PAIRS["Adam"]:
        early, late = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        optimizer = make([early, late])
        for n in range(3):
            early.grad = torch.tensor([1.0, -2.0, 0.5])
            late.grad = early.grad.clone() if n == 2 else None
            optimizer.step()
        weights.append((early.detach(), late.detach()))
    assert every(torch.equal(a, b) for a, b in zip(*weights))
    first_step = 1 - 1e-3 * torch.tensor([1.0, -1.0, 1.0])
    assert torch.allclose(weights[0][1], first_step, atol=1e-7)


def test_groups_have_their_own_options_and_a_closure_gives_the_loss():
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = Adam([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (a + b).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    assert torch.allclose(a, torch.full((2,), 0.5)) and torch.allclose(b, torch.full((2,), 0.75))


def test_sparse_gradients_and_complex_parameters_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="Adam cannot use the sparse gradient"):
        Adam(embedding.parameters()).step()
    wave = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    wave.grad = torch.ones_like(wave)
    with pytest.raises(RuntimeError, match="AdamW cannot update a complex parameter"):
        AdamW([wave]).step()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lr": -1}, "lr must be finite and at least 0, not -1."),
        ({"betas": (0.9, 1.0)}, "Each of betas must be below 1, not 1.0."),
        ({"eps": float("nan")}, "eps must be finite and at least 0, not nan."),
    ],
)
def test_options_without_sense_are_refused(options, sentence):
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.") + "$"):
        Adam([torch.nn.Parameter(torch.ones(1))], **options)
