"""Bytes of optimizer states by the formula, against the tensors that optimizers keep."""

from functools import partial

import pytest
import torch

from lib.predict.memory import optimizer_states
from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, next_token_loss
from lib.single.optimizers import (
    SM3,
    Adafactor,
    Adam,
    Adam8bit,
    AdamW,
    Muon,
    split_parameters,
)

SHAPE = GPTShape(width=32, heads=2, layers=2, sequence=16, tied=True)
MADE = {
    ("sgd",): partial(torch.optim.SGD, lr=0.1),
    ("momentum",): partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    ("adam",): Adam,
    ("adamw",): AdamW,
    ("adafactor",): Adafactor,
    ("adafactor", True): partial(Adafactor, momentum=0.9),
    ("sm3",): SM3,
    ("sm3", False): partial(SM3, momentum=0.0),
    ("adam8bit",): Adam8bit,
}


def measured(make, dtype, shape=SHAPE):
    model = GPT(shape).to(dtype)
    optimizer = make(model.parameters())
    tokens = torch.arange(2 * (shape.sequence + 1)).view(2, -1) % 256
    for _ in range(2):
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in states if value is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("key", MADE, ids=str)
def test_the_states_of_a_gpt_are_predicted_to_the_byte(key, dtype):
    name, *momentum = key
    options = {"momentum": momentum[0]} if momentum else {}
    predicted = state_bytes(name, SHAPE, dtype.itemsize, **options)
    assert measured(MADE[key], dtype) == predicted


def test_pytorchs_adafactor_keeps_the_same():
    assert measured(torch.optim.Adafactor, torch.float32) == state_bytes("adafactor", SHAPE)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_the_two_formulas_agree(name):
    assert state_bytes(name, SHAPE) == optimizer_states(SHAPE, name)


def test_a_matrix_a_stack_a_vector_and_a_scalar():
    shapes = [(6, 4), (2, 3, 4), (5,), ()]
    assert state_bytes("adafactor", shapes) == 4 * (10 + 14 + 5 + 1) + 4 * 4
    assert state_bytes("sm3", shapes, momentum=False) == 4 * (10 + 9 + 5 + 1)
    assert state_bytes("sm3", shapes) == 4 * (10 + 9 + 5 + 1) + 4 * (24 + 24 + 5 + 1)


def test_8_bit_adam_keeps_codes_and_maxima_of_large_tensors_only():
    assert state_bytes("adam8bit", [(64, 64)]) == 2 * 4096 + 2 * 4 * 16 + 4
    assert state_bytes("adam8bit", [(4095,)]) == 8 * 4095 + 4
    assert state_bytes("adam8bit", [(4097,)]) == 2 * 4097 + 2 * 4 * 17 + 4


def test_muon_keeps_one_number_for_the_matrices_of_hidden_layers():
    small = GPTShape(width=8, heads=2, layers=1, sequence=4, vocabulary=16)
    inner = [p for p in small.parameters if p.block == 1 and len(p.shape) == 2]
    inside = sum(p.numel for p in inner)
    others = len(small.parameters) - len(inner)
    assert len(inner) == 4
    assert state_bytes("muon", small) == 4 * inside + 8 * (small.numel - inside) + 4 * others
    assert state_bytes("muon", [(4, 4), (4,)], hidden=lambda shape: False) == 8 * 20 + 2 * 4


@pytest.mark.parametrize("model", [GPT(SHAPE), GPT(GPTShape(width=8)), MLP(MLPShape((4, 6, 8, 3)))],
                         ids=["tied", "untied", "MLP"])  # fmt: skip
def test_muon_and_adamw_keep_what_is_predicted(model):
    hidden, others = split_parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    total = 0
    for optimizer in (Muon(hidden), AdamW(others)):
        optimizer.step()
        total += sum(v.nbytes for state in optimizer.state.values() for v in state.values())
    assert total == state_bytes("muon", model.shape)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="No optimizer here is called 'lion'. Choose one of sgd, "):
        state_bytes("lion", SHAPE)
