"""Split sequences beside tensor parallelism and beside data parallelism train as one device."""

import pytest
import torch

from lib.parallel.data import DistributedDataParallel
from lib.parallel.sequence import context_parallel
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import plain_gradients, tensor_parallel
from lib.ranks.mesh import mesh
from tests.parallel.sequence import models

EXACT = 1e-11
WHOLE_VOCABULARY = {"*.attention": "attention", "*.mlp": "mlp"}
METHODS = ["ring", "ulysses"]


def beside_tensor(name, method):
    """Loss and whole gradients of one step on cp × tp ranks."""
    here = mesh(cp=2, tp=2)
    model = tensor_parallel(models.gpt(name), here["tp"].group, WHOLE_VOCABULARY)
    context = context_parallel(model, here["cp"].group, method).context
    tokens, labels = context.shard(*models.batch(32))
    loss = context.loss(model(tokens), labels)
    loss.backward()
    return {"losses": [loss.item()], "gradients": plain_gradients(model)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["learned", "rotary, two keys", "one key, tied"])
def test_beside_tensor_parallelism(worlds, name, method):
    expected = models.plain(name, 32, steps=1)
    expected = {what: expected[what] for what in ("losses", "gradients")}
    for found in worlds(4).run(beside_tensor, name, method):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


def beside_data(name, method):
    """The gradients of one step on dp × cp ranks; each dp rank has one of both samples."""
    here = mesh(dp=2, cp=2)
    model = models.gpt(name)
    context = context_parallel(model, here["cp"].group, method).context
    wrapped = DistributedDataParallel(model, here["dp"].group)
    tokens, _ = models.batch(32)
    own = slice(here["dp"].rank, here["dp"].rank + 1)
    tokens, labels = context.shard(tokens[own], (tokens[own] + 1) % 40)
    context.loss(wrapped(tokens), labels).backward()
    return {"gradients": {key: p.grad for key, p in model.named_parameters()}}


@pytest.mark.parametrize("method", METHODS)
def test_beside_data_parallelism(worlds, method):
    model = models.gpt("learned")
    tokens, _ = models.batch(32)
    models.mean_loss(model(tokens), (tokens + 1) % 40).backward()
    expected = {"gradients": {key: p.grad for key, p in model.named_parameters()}}
    for found in worlds(4).run(beside_data, "learned", method):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


def few_labels_on_one_replica():
    """Two samples, of which the second has three labels that count."""
    tokens, labels = models.batch(32)
    labels[1, 3:] = -100
    return tokens, labels


def with_unequal_labels(method, over_replicas=True):
    """Loss and gradients of one step on dp × cp ranks, one sample on each replica."""
    here = mesh(dp=2, cp=2)
    model = models.gpt("learned")
    options = {"replicas": here["dp"].group} if over_replicas else {}
    context = context_parallel(model, here["cp"].group, method, **options).context
    wrapped = DistributedDataParallel(model, here["dp"].group)
    own = slice(here["dp"].rank, here["dp"].rank + 1)
    tokens, labels = context.shard(*(t[own] for t in few_labels_on_one_replica()))
    loss = context.loss(wrapped(tokens), labels)
    loss.backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    return loss.item(), {"gradients": gradients}


@pytest.mark.parametrize("method", METHODS)
def test_replicas_with_unequal_labels_have_the_mean_over_all_labels(worlds, method):
    """A shipped bug: each replica's own mean gives three labels the weight of many."""
    model = models.gpt("learned")
    tokens, labels = few_labels_on_one_replica()
    loss = models.mean_loss(model(tokens), labels)
    loss.backward()
    expected = {"gradients": {key: p.grad for key, p in model.named_parameters()}}
    found = worlds(4).run(with_unequal_labels, method)
    assert sum(part for part, _ in found) / 4 == pytest.approx(loss.item(), rel=1e-12)
    for _, gradients in found:
        what, apart = models.far(gradients, expected)
        assert apart < EXACT, (what, apart)
    _, gradients = worlds(4).run(with_unequal_labels, method, False)[0]
    assert models.far(gradients, expected)[1] > 1e-2, "a mean of the replicas' means"


def sharded_over_both(name, method, factor):
    """The whole weights after a step of SGD on dp × cp ranks that shard them as one group."""
    here = mesh(dp=2, cp=2)
    model = context_parallel(models.gpt(name), here["cp"].group, method, sum_gradients=False)
    context, fsdp = model.context, FSDP(model)
    tokens, _ = models.batch(32)
    own = slice(here["dp"].rank, here["dp"].rank + 1)
    tokens, labels = context.shard(tokens[own], (tokens[own] + 1) % 40)
    (factor * context.loss(fsdp(tokens), labels)).backward()
    torch.optim.SGD(fsdp.parameters(), lr=1.0).step()
    return {"weights": fsdp.full_state_dict()}


@pytest.mark.parametrize("method", METHODS)
def test_fsdp_over_data_and_context_parallel_ranks_needs_the_loss_times_p(worlds, method):
    """FSDP averages over all ranks, and the gradients of P ranks of a sample are parts of a sum."""
    model = models.gpt("learned")
    tokens, _ = models.batch(32)
    models.mean_loss(model(tokens), (tokens + 1) % 40).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    expected = {"weights": model.state_dict()}
    for found in worlds(4).run(sharded_over_both, "learned", method, 2):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)
    _, apart = models.far(worlds(4).run(sharded_over_both, "learned", method, 1)[0], expected)
    assert apart > 1e-3, "without the factor the step is half as long"


def order_reversed():
    """Split the tokens first and the heads afterwards, with the positions of the first."""
    here = mesh(cp=2, tp=2)
    model = context_parallel(models.gpt("rotary, two keys"), here["cp"].group)
    tensor_parallel(model, here["tp"].group, WHOLE_VOCABULARY)
    tokens, labels = model.context.shard(*models.batch(32))
    with torch.no_grad():
        return model.context.loss(model(tokens), labels).item()


def test_tensor_parallelism_keeps_positions_and_core(worlds):
    expected = models.plain("rotary, two keys", 32, steps=1)["losses"][0]
    assert worlds(4).run(order_reversed) == pytest.approx([expected] * 4, abs=1e-12)
