"""Shapes: names, order and numbers of the parameters equal those of the built models."""

import pytest

from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.single import GPT, MLP

SHAPES = [
    GPTShape(),
    GPTShape(tied=True),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=1, hidden=40),
    GPTShape(width=24, heads=6, kv_heads=2, layers=2, positions="rotary", dropout=0.1),
    GPTShape(width=24, heads=6, kv_heads=1, layers=1, hidden=40, tied=True),
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
    with pytest.raises(
        ValueError,
        match="The width of a GPT has 64 entries; 5 heads cannot share them equally. Choose",
    ):
        GPTShape(width=64, heads=5)


def test_options_of_a_gpt():
    """The heads of keys are as many as the heads by default; what no model has is refused."""
    assert GPTShape().kv_heads == 4 and GPTShape() == GPTShape(kv_heads=4)
    grouped = GPTShape(width=24, heads=6, kv_heads=2)
    assert grouped.head_size == 4 and grouped.qkv_width == 24 + 2 * 8
    # two thirds of the keys' and values' rows are missing, with their biases
    assert GPTShape(width=24, heads=6).numel - grouped.numel == 4 * (2 * 16) * (24 + 1)
    learned, rotary = GPTShape(), GPTShape(positions="rotary")
    assert learned.numel - rotary.numel == 64 * 64 and learned.blocks == rotary.blocks
    for options, words in (
        ({"kv_heads": 3}, "4 heads; 3 heads of keys cannot share them equally. Choose a number of"),
        ({"kv_heads": 8}, "A GPT has 4 heads; 8 heads of keys"),
        ({"kv_heads": -1}, "kv_heads of a GPT must be a whole number of at least 0, not -1."),
        ({"positions": "alibi"}, "must be 'learned' or 'rotary', not 'alibi'."),
        ({"positions": "rotary", "width": 12}, "turn pairs of numbers, but a head has 3."),
        ({"dropout": 1.0}, "dropout of a GPT must be below 1, not 1.0."),
        ({"dropout": -0.1}, "dropout of a GPT must be finite and at least 0, not -0.1."),
    ):
        with pytest.raises(ValueError, match=words):
            GPTShape(**options)
