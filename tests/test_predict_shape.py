"""Shapes on paper: names, order and numbers of the parameters equal those of the built models."""

import pytest

from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.single import GPT, MLP

SHAPES = [
    GPTShape(),
    GPTShape(tied=True),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=1, hidden=40),
    MLPShape(),
    MLPShape((6, 10, 4), bias=False),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_built_model_has_these_parameters(shape):
    model = (GPT if isinstance(shape, GPTShape) else MLP)(shape)
    built = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert [(p.name, p.shape) for p in shape.parameters] == built
    assert shape.numel == sum(p.numel() for p in model.parameters())
    assert shape.nbytes() == sum(p.nbytes for p in model.parameters())
    assert shape.blocks == len(model)
    for parameter in shape.parameters:
        model.blocks[str(parameter.block)].get_parameter(parameter.name.split(".", 2)[2])


def test_known_models():
    # GPT-2 small: 124,439,808 parameters (Radford et al. 2019; counted on the released weights)
    gpt2 = GPTShape(50257, sequence=1024, width=768, heads=12, layers=12, tied=True)
    assert gpt2.numel == 124_439_808
    # the large models' rule 12·L·D² (Narayanan et al. 2021, arXiv 2104.04473) within a per cent
    gpt3 = GPTShape(51200, sequence=2048, width=12288, heads=96, layers=96, tied=True)
    assert abs(gpt3.numel / 174.6e9 - 1) < 0.002
    assert isinstance(gpt3, ModelShape) and hash(gpt3) == hash(eval(repr(gpt3)))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="width 64 has no 5 equal heads"):
        GPTShape(width=64, heads=5)
