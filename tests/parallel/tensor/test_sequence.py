"""Megatron's sequence parallelism: spread equals whole, and what goes wrong without a sum."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from lib.parallel.tensor import (
    assert_replicated,
    clip_grad_norm_,
    gather_sequence,
    gathered,
    plain_gradients,
    scatter_sequence,
    sequence,
    sequence_parallel,
    tensor_parallel,
    vocab_parallel_cross_entropy,
)
from lib.single import GPT, next_token_loss
from tests.parallel.tensor import models
from tests.parallel.tensor.steps import differences, joined, plain, spread

CASES = [*models.SHAPES, *models.HARD]


@pytest.mark.parametrize("name", CASES)
def test_spread_equals_whole(world, name):
    """Outputs, every gradient and weights after two steps; dropout takes a part of the mask."""
    found = differences(world.run(spread, name, sequence_parallel), plain(name))
    assert set(found) == {"losses", "logits", "gradients", "weights"}
    assert max(found.values()) < 1e-10, found


def order_of_backward():
    """What a gathered column layer does in backward, in order: launches, products and waits."""
    order = []

    def noted(name, launch):
        def launched(*arguments):
            order.append(f"launch {name}")
            finish = launch(*arguments)
            return lambda: (order.append(f"wait {name}"), finish())[1]

        return launched

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._schema.name.endswith(("::mm", "::bmm")):
                rows, columns = args[0].shape[-2], args[1].shape[-1]
                order.append(f"product [{rows}, {columns}]")
            return func(*args, **(kwargs or {}))

    x = torch.randn(1, 3, 5, requires_grad=True)  # 6 tokens of 2 ranks
    weight = torch.randn(7, 5, requires_grad=True)
    y = gathered.gathered_product(x, weight, None)
    with (
        mock.patch.object(gathered, "gather_async", noted("gather", gathered.gather_async)),
        mock.patch.object(
            gathered, "reduce_scatter_async", noted("scatter", gathered.reduce_scatter_async)
        ),
        torch.autograd.set_multithreading_enabled(False),
        Products(),
    ):
        y.sum().backward()
    return order


def test_backward_sends_while_it_computes(worlds):
    """x is gathered under the product for dx, and dx is summed under that for dW."""
    assert worlds(2, device="cpu").run(order_of_backward) == [[
        "launch gather", "product [6, 5]", "launch scatter", "wait gather", "product [7, 5]",
        "wait scatter",
    ]] * 2  # fmt: skip


def without_sums(name):
    """A shipped bug: the gradients of norms and of row layers' biases stay each rank's own."""
    with mock.patch.object(sequence, "sum_gradient"):
        model = sequence_parallel(models.gpt(name))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens, targets = models.batch(model.shape.vocabulary)
    vocab_parallel_cross_entropy(model(tokens), targets).backward()
    gradients = plain_gradients(model)
    optimizer.step()
    try:
        assert_replicated(model)
    except AssertionError as error:
        return gradients, str(error)


def test_norms_that_are_not_summed_diverge(worlds):
    """The checksum names the first of them; the matrices are right."""
    model = models.gpt("plain")
    tokens, targets = models.batch(48)
    next_token_loss(model(tokens), targets).backward()
    for gradients, text in worlds(2).run(without_sums, "plain"):
        assert text.startswith("blocks.0.positions.weight is not replicated any more")
        wrong = {name for name, p in model.named_parameters()
                 if (gradients[name].to("cpu") - p.grad).abs().max() > 1e-8}  # fmt: skip
        assert wrong == {name for name, _ in model.named_parameters()
                         if "norm" in name or "positions" in name
                         or name.endswith(("proj.bias", "down.bias"))}  # fmt: skip


def clipped(name):
    model = sequence_parallel(models.gpt(name))
    v = model.shape.vocabulary
    tokens, targets = models.batch(v)
    vocab_parallel_cross_entropy(model(tokens), targets, vocabulary=v).backward()
    return clip_grad_norm_(model, 0.01).item()


def test_the_norm_of_the_gradients_is_the_plain_models(worlds):
    model = models.gpt("padded, tied")
    tokens, targets = models.batch(model.shape.vocabulary)
    next_token_loss(model(tokens), targets).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()
    assert worlds(4).run(clipped, "padded, tied") == pytest.approx([expected] * 4, rel=1e-10)


def between(transform, name):
    """Return the shape of what the norms of the second block see."""
    model, shapes = transform(models.gpt(name)), []
    norm = model.get_submodule("blocks.2.norm2")
    norm.register_forward_hook(lambda _, given, __: shapes.append(list(given[0].shape)))
    model(models.batch(48)[0])
    return shapes


def test_between_the_regions_a_rank_has_its_tokens(world):
    n = world.size
    assert world.run(between, tensor_parallel, "plain") == [[[3, 12, 24]]] * n
    assert world.run(between, sequence_parallel, "plain") == [[[3, 12 // n, 24]]] * n


def dropped(seed):
    """Return what the first dropout of a rank lets through, of ones."""
    model = sequence_parallel(models.gpt("dropout"), seed=seed)
    torch.manual_seed(3)
    dropout = model.get_submodule("blocks.1.mlp").dropout
    return dropout(torch.ones(2, 6, 24)).to("cpu")


@pytest.mark.parametrize("seed", [None, 7])
def test_each_rank_drops_other_numbers(worlds, seed):
    first, second = worlds(2).run(dropped, seed)
    assert not torch.equal(first, second) and (first == 0).any() and (second == 0).any()


def both_ways():
    """The pair is conjugate: <gather(x), y> = <x, scatter(y)>, summed over the ranks."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(2, 3, 5, dtype=torch.double, requires_grad=True)
    y = torch.randn(2, 3 * dist.get_world_size(), 5, dtype=torch.double, requires_grad=True)
    (gather_sequence(x) * y.detach()).sum().backward()
    (scatter_sequence(y) * x.detach()).sum().backward()
    return [torch.equal(x.grad, scatter_sequence(y.detach())),
            torch.equal(y.grad, gather_sequence(x.detach()))]  # fmt: skip


def test_the_operators_are_a_conjugate_pair(world):
    assert world.run(both_ways) == [[True, True]] * world.size


def shortened(name, length, transform=None):
    """Loss, logits and gradients of a step of `length` tokens, as many as the model has places."""
    torch.manual_seed(2)
    shape = replace(models.SHAPES[name], sequence=length)
    model = GPT(shape).double()
    if transform:
        model = transform(model)
    tokens, targets = (t[:, :length] for t in models.batch(shape.vocabulary))
    logits = model(tokens)
    v = shape.vocabulary
    if transform:
        loss = vocab_parallel_cross_entropy(logits, targets, vocabulary=v)
        loss.backward()
        return loss.item(), joined(logits.detach())[..., :v], plain_gradients(model)
    loss = next_token_loss(logits, targets)
    loss.backward()
    return loss.item(), logits.detach(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["plain", "padded, tied", "one key, rotary"])
@pytest.mark.parametrize("length", [11, 9, 3])
def test_a_sequence_that_does_not_divide_is_padded_without_a_trace(world, length, name):
    loss, logits, gradients = shortened(name, length)
    for found, found_logits, found_gradients in world.run(
        shortened, name, length, sequence_parallel
    ):
        assert found == pytest.approx(loss, rel=1e-12)
        assert (found_logits.to("cpu") - logits).abs().max() < 1e-12
        for key, gradient in gradients.items():
            assert (found_gradients[key].to("cpu") - gradient).abs().max() < 1e-12, key


def refused(length):
    """A slice of the model, as a pipeline takes it, gets its tokens without padding."""
    model = sequence_parallel(models.gpt("plain"))
    try:
        model[:2](torch.zeros(2, length, dtype=torch.long))
    except ValueError as error:
        return str(error)


def test_a_slice_of_a_model_refuses_a_sequence_that_does_not_divide(worlds):
    for text in worlds(4).run(refused, 10):
        assert text.startswith("A sequence has 10 tokens")


def strange():
    try:
        sequence_parallel(torch.nn.Linear(4, 4))
    except ValueError as error:
        return str(error)


def test_a_model_without_its_parts_is_refused(worlds):
    for text in worlds(2).run(strange):
        assert text.startswith("A Linear has no parts that tensor_parallel knows by itself.")
