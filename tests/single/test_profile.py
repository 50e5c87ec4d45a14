"""Profiles: the bytes are exact, the times are of the order of the work."""

import pytest
import torch

from lib.predict.pipeline.cuts import with_replicas
from lib.predict.shape import GPTShape, MLPShape
from lib.single.batches import Batches
from lib.single.models import GPT, MLP
from lib.single.profile import profile
from tests.every import every


def test_bytes_are_those_of_the_model():
    shape = GPTShape(layers=2, width=16, heads=2, sequence=8)
    tokens, _ = Batches(4, sequence=8)[0]
    model = GPT(shape)
    layers = profile(model, tokens, repeats=1)
    assert [layer.activation for layer in layers] == [4 * 4 * 8 * 16] * 3 + [4 * 4 * 8 * 256]
    assert sum(layer.weights for layer in layers) == 4 * shape.numel
    assert every(p.grad is None for p in model.parameters())


def test_frozen_weights_do_not_count():
    model = MLP(MLPShape((6, 8, 3)))
    model[:1].requires_grad_(False)
    layers = profile(model, torch.randn(4, 6), repeats=1)
    assert [layer.weights for layer in layers] == [0, 4 * (8 * 3 + 3)]


@pytest.mark.quiet
def test_more_work_takes_longer_and_the_partitioner_takes_the_layers():
    model = MLP(MLPShape((256, 256, 2048, 256)))
    layers = profile(model, torch.randn(64, 256), repeats=3)
    assert min(layers[1].time, layers[2].time) > layers[0].time > 0
    assert with_replicas(layers, [(2, 1e9)]).time <= sum(layer.time for layer in layers)


def test_an_empty_number_of_passes_is_refused():
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 1, not 0"):
        profile(MLP(MLPShape((6, 3))), torch.randn(4, 6), repeats=0)
