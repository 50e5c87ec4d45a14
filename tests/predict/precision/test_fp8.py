"""Predicted bytes beside those of real layers: kept inputs, the whole GPT, gathered weights."""

import pytest
import torch

from lib.predict.precision.fp8 import (
    gathered_bytes,
    kept_inputs,
    linear_weights,
    matrix_bytes,
    no_longer_kept,
)
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches
from lib.single.precision import Fp8Linear, fp8

SHAPE = GPTShape(width=48, heads=4, layers=2, sequence=16)
TIED = GPTShape(width=48, heads=4, layers=1, sequence=16, tied=True, kv_heads=2)
SCALINGS = ["tensor", "delayed", "row", "block"]


def test_bytes_by_hand():
    """DeepSeek-V3's tiles for a matrix of 300 · 200, and one scale for all of it."""
    assert matrix_bytes(300, 200, "tensor") == 60_004
    assert matrix_bytes(300, 200, "row") == 60_000 + 4 * 300
    assert matrix_bytes(300, 200, "block") == 60_000 + 4 * 300 * 2
    assert matrix_bytes(300, 200, "block", weight=True) == 60_000 + 4 * 3 * 2
    assert matrix_bytes(300, 200, "block", block=50) == 60_000 + 4 * 300 * 4
    with pytest.raises(ValueError, match="scaling must be one of tensor, delayed, row, block, not"):
        matrix_bytes(2, 2, "column")


@pytest.mark.parametrize("shape", [SHAPE, TIED], ids=["plain", "tied"])
def test_the_linear_layers_are_those_of_the_model(shape):
    layers = {
        f"{name}.weight": tuple(module.weight.shape)
        for name, module in GPT(shape).named_modules()
        if type(module) is torch.nn.Linear
    }
    assert linear_weights(shape) == layers


def kept_by(model, tokens):
    """What autograd keeps in a forward, without parameters: tensors, each storage once."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in parameters:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(tokens)
    assert logits.requires_grad
    return list(seen.values())


@pytest.mark.parametrize("shape", [SHAPE, TIED], ids=["plain", "tied"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_is_kept_is_what_was_predicted(scaling, shape):
    tokens, _ = Batches(4, 16)[0]
    plain = kept_by(GPT(shape), tokens)
    model = fp8(GPT(shape), scaling, block=16)
    kept = kept_by(model, tokens)
    codes = sum(t.nbytes for t in kept if t.dtype == torch.float8_e4m3fn)
    sizes = [i for _, i in linear_weights(shape).values()]
    assert codes == 64 * sum(sizes)
    scales = kept_inputs(shape, 64, scaling, 16) - codes
    per_token = {"row": len(sizes), "block": sum(-(-i // 16) for i in sizes)}
    assert scales == 4 * (64 * per_token[scaling] if scaling in per_token else len(sizes))

    def total(tensors):
        return sum(t.untyped_storage().nbytes() for t in tensors)

    fewer = total(plain) - total(kept)
    assert fewer == no_longer_kept(shape, 64, scaling, 16) > 0


@pytest.mark.parametrize("scaling", SCALINGS)
def test_weights_that_are_gathered_have_the_bytes_of_their_codes_and_scales(scaling):
    model = fp8(GPT(SHAPE), scaling, block=16)
    layers = [m for m in model.modules() if isinstance(m, Fp8Linear)]
    codes = sum(layer.rounded("weight", layer.weight).nbytes for layer in layers)
    weights = sum(layer.weight.numel() for layer in layers)
    rest = sum(p.numel() for p in model.parameters()) - weights
    assert gathered_bytes(SHAPE, scaling, 16) == codes + 2 * rest
    plain = SHAPE.nbytes(2)
    assert plain / 2 < gathered_bytes(SHAPE, scaling, 16) < plain
