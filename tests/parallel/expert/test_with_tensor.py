"""Experts, data and matrices are spread on one mesh; everything equals the plain model's."""

import pytest
import torch

from lib.parallel import expert, tensor
from lib.ranks.mesh import mesh
from lib.single.experts import auxiliary_loss
from tests.parallel.expert import models


def part_of(axis, t):
    """Return the samples of this rank's place along an axis; a tp group has the same."""
    return t.chunk(axis.size)[axis.rank]


def spread(name, **axes):
    """Train for two steps of SGD; return losses, gradients and weights whole, and the norm."""
    here = mesh(**axes)
    data = here["dp", "ep"]
    model = models.gpt(name)
    tensor.tensor_parallel(model, here["tp"].group)
    replicas = {"replicas": here["dp"].group, "everyone": data.group} if axes["dp"] > 1 else {}
    expert.expert_parallel(model, here["ep"].group, **replicas)
    optimizer = torch.optim.SGD(model.parameters(), models.RATE)
    losses, gradients = [], []
    for step in range(models.STEPS):
        optimizer.zero_grad()
        inputs, targets = (part_of(data, t) for t in models.batch(step))
        logits = model(inputs)
        loss = tensor.vocab_parallel_cross_entropy(logits, targets, here["tp"].group)
        total = loss + auxiliary_loss(model)
        total.backward()
        losses.append(total.detach())
        gradients.append(whole(tensor.plain_gradients(model), expert.plain_gradients(model)))
        optimizer.step()
    return losses, gradients, whole(tensor.to_plain(model), expert.to_plain(model))


def whole(of_matrices, of_experts):
    """Take the experts' tensors from the one, all others from the other."""
    names = {name: of_experts if ".experts." in name else of_matrices for name in of_matrices}
    return {name: source[name].clone() for name, source in names.items()}


@pytest.mark.parametrize(
    "axes", [{"dp": 1, "ep": 2, "tp": 2}, {"dp": 2, "ep": 2, "tp": 2}], ids=str
)
@pytest.mark.parametrize("name", ["softmax", "one expert, capacity", "shared"])
def test_all_axes_together_equal_one_device(worlds, name, axes):
    expected = models.plain(name)
    ranks = axes["dp"] * axes["ep"] * axes["tp"]
    found = worlds(ranks).run(spread, name, **axes)
    losses = torch.stack([torch.stack(one) for one, *_ in found])  # [P, steps]
    assert torch.allclose(losses.mean(0), torch.stack(expected["losses"]), rtol=0, atol=1e-11)
    for _, gradients, weights in found:
        for own, right in [*zip(gradients, expected["gradients"]), (weights, expected["weights"])]:
            assert own.keys() == right.keys()
            for key, tensor_ in right.items():
                assert (own[key] - tensor_).abs().max() < 1e-11, key


def test_an_expert_summed_over_all_data_ranks_would_be_wrong(worlds):
    """The bite: without the axis of copies, the two copies of an expert see half of the tokens."""
    expected = models.plain("softmax")["gradients"][0]
    found = worlds(8).run(without_replicas)
    name = next(key for key in expected if key.endswith("experts.up"))
    assert (found[0][name] - expected[name]).abs().max() > 1e-3


def without_replicas():
    here = mesh(dp=2, ep=2, tp=2)
    model = models.gpt("softmax")
    tensor.tensor_parallel(model, here["tp"].group)
    expert.expert_parallel(model, here["ep"].group)
    inputs, targets = (part_of(here["dp", "ep"], t) for t in models.batch(0))
    loss = tensor.vocab_parallel_cross_entropy(model(inputs), targets, here["tp"].group)
    (loss + auxiliary_loss(model)).backward()
    return expert.plain_gradients(model)
