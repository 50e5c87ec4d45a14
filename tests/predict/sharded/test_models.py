"""Real models have as many parameters as their authors print, block by block."""

import pytest

from lib.predict.shape import GPTShape
from lib.predict.sharded.models import LlamaShape, model, models
from lib.predict.sharded.published import find


@pytest.mark.parametrize("name", models())
def test_a_model_has_as_many_parameters_as_its_authors_count(name):
    shape, entry = model(name), find("models", name)
    assert shape.numel == entry["numel"]
    assert shape.blocks == entry["sizes"]["layers"] + 2
    names = [parameter.name for parameter in shape.parameters]
    assert len(set(names)) == len(names)


def test_a_llama_is_counted_by_hand():
    small = LlamaShape(layers=2, width=8, hidden=24, heads=4, kv_heads=2, vocabulary=100)
    layer = 2 * 8 * 8 + 2 * 4 * 8 + 3 * 8 * 24 + 2 * 8
    assert small.numel == 2 * layer + 2 * 100 * 8 + 8
    by_block = [0] * small.blocks
    for parameter in small.parameters:
        by_block[parameter.block] += parameter.numel
    assert by_block == [800, layer, layer, 808]


def test_names_are_found_and_sizes_must_divide():
    assert isinstance(model("gpt-2"), GPTShape) and isinstance(model("llama3 8b"), LlamaShape)
    with pytest.raises(ValueError, match="None of the models is called 'Llama 5'."):
        model("Llama 5")
    with pytest.raises(
        ValueError, match="The width of a Llama has 8 entries; 3 heads cannot share them equally."
    ):
        LlamaShape(2, 8, 24, 3, 1, 100)
    with pytest.raises(ValueError, match="A Llama has 4 heads; 3 heads of keys cannot share"):
        LlamaShape(2, 8, 24, 4, 3, 100)
