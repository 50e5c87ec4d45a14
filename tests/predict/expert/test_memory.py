"""A rank holds of a layer of experts what is predicted: weights exactly, activations nearly."""

import pytest
import torch

from lib.parallel.expert import expert_parallel
from lib.predict.expert.memory import layer_memory
from lib.ranks.memory import Memory
from lib.single.experts import MoE

WIDTH, HIDDEN, EXPERTS, K, TOKENS = 128, 256, 8, 2, 128


def held(crowded=False):
    """Return parameters, gradients and activations by the counter, and the rows that came."""
    layer = MoE(WIDTH, HIDDEN, EXPERTS, K)
    if crowded:
        layer.gate.bias[0] += 20.0
    if torch.distributed.is_initialized():
        expert_parallel(layer)
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    x = x.to(layer.gate.weight.device).requires_grad_()
    with Memory(layer) as counted:
        y = layer(x)
        kept = counted.now["activations"]
        y.sum().backward()
        return counted.now["parameters"], counted.now["gradients"], kept, layer.kept.tolist()


def test_on_one_device():
    parameters, gradients, kept, _ = held()
    expected = layer_memory(WIDTH, HIDDEN, EXPERTS, K, TOKENS)
    assert (parameters, gradients) == (expected.parameters, expected.gradients)
    assert expected.activations < kept < 1.05 * expected.activations


@pytest.mark.parametrize("crowded", [False, True], ids=["even", "crowded"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_ranks(worlds, ranks, crowded):
    found = worlds(ranks).run(held, crowded)
    came = [sum(counts) for counts in zip(*(rows for *_, rows in found))]
    own = EXPERTS // ranks
    for rank, (parameters, gradients, kept, _) in enumerate(found):
        arriving = sum(came[rank * own : (rank + 1) * own])
        expected = layer_memory(WIDTH, HIDDEN, EXPERTS, K, TOKENS, ranks, arriving=arriving)
        assert (parameters, gradients) == (expected.parameters, expected.gradients)
        assert expected.activations < kept < 1.06 * expected.activations
    if crowded:
        assert max(kept for *_, kept, _ in found) > 1.3 * min(kept for *_, kept, _ in found)


def test_optimizers_keep_their_numbers():
    sgd, adam = (layer_memory(8, 16, 4, 1, 10, 2, optimizer=name) for name in ("sgd", "adamw"))
    assert sgd.parameters == 4 * (4 * 8 + 2 * 2 * 8 * 16)
    assert (sgd.optimizer, adam.optimizer) == (0, 2 * sgd.parameters)
    with pytest.raises(ValueError, match="No optimizer here is called 'lion'"):
        layer_memory(8, 16, 4, 1, 10, optimizer="lion")
    with pytest.raises(ValueError, match="There are 4 experts"):
        layer_memory(8, 16, 4, 1, 10, 3)
