"""What is sent and what is kept equals the prediction, to the byte."""

from dataclasses import replace

import pytest
import torch

from lib.parallel.tensor import (
    sequence_parallel,
    tensor_parallel,
    vocab_parallel_cross_entropy,
)
from lib.predict.tensor import memory, sequence, traffic
from lib.ranks.memory import Memory
from lib.single import GPT, next_token_loss
from tests.parallel.tensor import models

SHAPES = models.SHAPES
WITHOUT = {"*.attention": "attention", "*.mlp": "mlp"}  # the vocabulary stays whole


KEPT = ["plain", "tied", "padded", "two keys", "one key, rotary", "dropout", "one key, dropout",
        "everything"]  # fmt: skip


def step(shape, vocabulary, dtype=torch.float32):
    """Make a model; return what runs one step. For "sequence", Megatron's sequence parallelism."""
    if vocabulary == "sequence":
        model = sequence_parallel(GPT(shape).to(dtype))
    else:
        model = tensor_parallel(GPT(shape).to(dtype), None, None if vocabulary else WITHOUT)
    loss = vocab_parallel_cross_entropy if vocabulary else next_token_loss
    tokens, targets = models.batch(shape.vocabulary)

    def run():
        loss(model(tokens), targets).backward()

    return model, run


def prepared(shape, vocabulary, dtype=torch.float32):
    import __main__

    __main__.step = step(shape, vocabulary, dtype)[1]


def run_prepared():
    import __main__

    __main__.step()


@pytest.mark.parametrize("vocabulary", [True, False], ids=["vocabulary", "whole vocabulary"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_ledger_is_the_prediction(world, name, vocabulary):
    world.run(prepared, SHAPES[name], vocabulary)
    ledger = world.record(run_prepared)
    expected = traffic.of_step(SHAPES[name], len(world), 3, vocabulary=vocabulary)
    assert expected
    for rank in range(len(world)):
        rows = sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start)
        found = [(row.op, len(row.members), row.bytes) for row in rows]
        assert found == [tuple(exchange) for exchange in expected]


def kept(shape, vocabulary):
    model, _ = step(shape, vocabulary)
    tokens, targets = models.batch(shape.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters())
    with Memory(model, optimizer) as counted:
        logits = model(tokens)
        forward = counted.now["activations"]
        if vocabulary:
            vocab_parallel_cross_entropy(logits, targets).backward()
            optimizer.step()
    return forward, counted.now


@pytest.mark.parametrize("vocabulary", [True, False], ids=["vocabulary", "whole vocabulary"])
@pytest.mark.parametrize("name", KEPT)
def test_what_a_rank_keeps_is_the_prediction(world, name, vocabulary):
    shape, n = SHAPES[name], len(world)
    held = memory.held(shape, n, 3, vocabulary=vocabulary)
    for forward, now in world.run(kept, shape, vocabulary):
        assert forward == memory.activations(shape, n, 3, vocabulary=vocabulary)
        if vocabulary:
            kinds = ("parameters", "gradients", "optimizer")
            assert [now[kind] for kind in kinds] == list(held[:3])


def kept_of(shape, samples, seed):
    model = tensor_parallel(GPT(shape), seed=seed)
    with Memory(model) as counted:
        logits = model(torch.zeros(samples, dtype=torch.long))
        assert logits.requires_grad
        return counted.now["activations"]


@pytest.mark.parametrize("samples", [(1, 1), (3, 1), (1, 12), (3, 12)], ids=str)
@pytest.mark.parametrize("keys", [1, 2, 4])
def test_with_dropout_few_samples_and_short_ones_are_counted_too(world, keys, samples):
    """A rank that has its own masks alone keeps the same: of the others' it keeps nothing."""
    shape = replace(models.SHAPE, kv_heads=keys, dropout=0.1)
    expected = memory.activations(shape, len(world), *samples)
    for seed in (None, 7):
        assert world.run(kept_of, shape, samples, seed) == [expected] * len(world)


def kept_by_the_loss(shape):
    """Bytes of what the loss saves for backward, but for single numbers."""
    width = -(-shape.vocabulary // torch.distributed.get_world_size())
    logits = torch.zeros(3, 12, width, requires_grad=True)
    _, targets = models.batch(shape.vocabulary)
    sizes = {}

    def noted(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes if tensor.dim() else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        loss = vocab_parallel_cross_entropy(logits, targets, vocabulary=shape.vocabulary)
    assert loss.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["plain", "padded"])
def test_what_the_loss_keeps_is_the_prediction(world, name):
    expected = memory.loss(SHAPES[name], len(world), 3)
    assert world.run(kept_by_the_loss, SHAPES[name]) == [expected] * len(world)


def test_a_layer_has_two_all_reduces_in_each_direction():
    one, two = (traffic.of_step(replace(models.SHAPE, layers=n), 4, 3) for n in (1, 2))
    assert len(two) - len(one) == 4
    assert {exchange.bytes for exchange in two} == {4 * 36, 8 * 36, 4 * 36 * 24}


# Sequence parallelism on top.


@pytest.mark.parametrize("name", SHAPES)
def test_the_ledger_of_split_sequences_is_the_prediction(world, name):
    """Forward sends what tensor parallelism sends; backward gathers the columns' inputs again."""
    world.run(prepared, SHAPES[name], "sequence")
    ledger = world.record(run_prepared)
    expected = sequence.of_step(SHAPES[name], len(world), 3)
    for rank in range(len(world)):
        rows = sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start)
        assert [(row.op, len(row.members), row.bytes) for row in rows] == [*map(tuple, expected)]


@pytest.mark.parametrize(("vocabulary", "predict"), [(True, traffic), ("sequence", sequence)])
def test_the_ledger_of_16_bits_is_the_prediction(world, vocabulary, predict):
    """The loss adds up in 32 bits, so one buffer is not halved."""
    world.run(prepared, models.SHAPE, vocabulary, torch.bfloat16)
    ledger = world.record(run_prepared)
    expected = predict.of_step(models.SHAPE, len(world), 3, itemsize=2)
    rows = sorted(ledger.where(lane="comm", rank=0), key=lambda row: row.start)
    assert [(row.op, len(row.members), row.bytes) for row in rows] == [*map(tuple, expected)]
    halved = predict.of_step(models.SHAPE, len(world), 3)
    assert [2 * e.bytes == f.bytes for e, f in zip(expected, halved)].count(False) == 1


@pytest.mark.parametrize("name", KEPT)
def test_what_a_rank_keeps_of_split_sequences_is_the_prediction(world, name):
    shape, n = SHAPES[name], len(world)
    for forward, _ in world.run(kept, shape, "sequence"):
        assert forward == sequence.activations(shape, n, 3)


def test_split_sequences_send_a_fourth_more():
    """Of a layer's large exchanges: 8 halves of an all_reduce without it, 10 with it."""
    shape = replace(models.SHAPE, layers=5)
    large = 4 * 36 * 24
    halves = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    ends = {False: 4, True: 5}  # of the embedding and of the head
    for split, per_layer in ((False, 8), (True, 10)):
        plan = sequence.of_step if split else traffic.of_step
        total = sum(halves[e.op] for e in plan(shape, 4, 3) if e.bytes == large)
        assert total == ends[split] + per_layer * shape.layers


@pytest.mark.parametrize("call", [sequence.of_step, sequence.activations])
def test_a_sequence_that_the_ranks_cannot_share_is_refused(call):
    with pytest.raises(ValueError, match="A sequence has 10 tokens"):
        call(models.SHAPE, 4, 3, 10)
