"""What is sent, kept and computed equals the prediction, to the byte and to the block."""

from dataclasses import replace
from weakref import WeakSet

import pytest
import torch

from lib.parallel.sequence import context_parallel, ring
from lib.predict.sequence import memory, traffic
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT
from tests.parallel.sequence import models

SHAPES = {
    "learned": models.SHAPE,
    "two keys": replace(models.SHAPE, kv_heads=2),
    "one key, rotary": replace(models.SHAPE, kv_heads=1, positions="rotary"),
    "rotary": replace(models.SHAPE, positions="rotary"),
}
METHODS = ["ring", "ulysses"]


def prepared(shape, options, documents=None, axes=None):
    import __main__

    if axes:
        here = mesh(**axes)
        options = options | {"group": here["ring"].group, "inner": here["ulysses"].group}
    model = context_parallel(GPT(shape), **options)
    __main__.model, __main__.batch = model, model.context.shard(*models.batch(32), documents)


def step():
    import __main__

    model, (tokens, labels) = __main__.model, __main__.batch
    model.context.loss(model(tokens), labels).backward()


def comm(ledger, rank):
    """What a rank has sent, in order; a receive is another's send."""
    rows = sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start)
    return [(row.op, row.bytes) for row in rows if row.op != "recv"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_ledger_is_the_prediction(world, name, method):
    world.run(prepared, SHAPES[name], {"method": method})
    ledger = world.record(step)
    expected = traffic.of_step(SHAPES[name], method, len(world), 2)
    forward = [(move.op, move.bytes) for move in expected.forward]
    backward = [(move.op, move.bytes) for move in expected.backward]
    for rank in range(len(world)):
        found = comm(ledger, rank)
        assert found[: len(forward)] == forward
        assert sorted(found[len(forward) :]) == sorted(backward)


@pytest.mark.parametrize("axes", [{"ring": 2, "ulysses": 2}, {"ring": 2, "ulysses": 4}], ids=str)
def test_the_ledger_of_both_axes_is_the_prediction(worlds, axes):
    shape, world = SHAPES["two keys"], worlds(axes["ring"] * axes["ulysses"])
    world.run(prepared, shape, {}, None, axes)
    ledger = world.record(step)
    expected = traffic.of_step(shape, "ring", axes["ring"], 2, inner=axes["ulysses"])
    forward, backward = ([(move.op, move.bytes) for move in part] for part in expected)
    for rank in range(len(world)):
        found = comm(ledger, rank)
        assert found[: len(forward)] == forward
        assert sorted(found[len(forward) :]) == sorted(backward)


def kept(shape, options, axes):
    prepared(shape, options, None, axes)
    import __main__

    model, (tokens, labels) = __main__.model, __main__.batch
    optimizer = torch.optim.AdamW(model.parameters())
    with Memory(model, optimizer) as counted:
        logits = model(tokens)
        forward = counted.now["activations"]
        model.context.loss(logits, labels).backward()
        optimizer.step()
    return forward, counted.now


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_what_a_rank_keeps_is_the_prediction(world, name, method, layout):
    shape, n = SHAPES[name], len(world)
    expected = memory.held(shape, method, n, 2)
    for forward, now in world.run(kept, shape, {"method": method, "layout": layout}, None):
        assert forward == memory.activations(shape, method, n, 2)
        kinds = ("parameters", "gradients", "optimizer")
        assert [now[kind] for kind in kinds] == list(expected[:3])


def test_what_a_rank_of_both_axes_keeps_is_the_prediction(worlds):
    axes = {"ring": 2, "ulysses": 2}
    for name, shape in SHAPES.items():
        expected = memory.activations(shape, "ring", 2, 2, inner=2)
        for forward, _ in worlds(4).run(kept, shape, {}, axes):
            assert forward == expected, name


def under_way(shape):
    """The most bytes of all blocks that hops send, receive or have received, when a hop begins."""
    hops, most, begin = WeakSet(), 0, ring.Hop.__init__

    def noted(hop, *arguments):
        nonlocal most
        begin(hop, *arguments)
        hops.add(hop)
        blocks = {block for one in hops for block in (one.sent, one.arriving) if block is not None}
        most = max(most, sum(block.nbytes for block in blocks))

    prepared(shape, {"method": "ring"})
    ring.Hop.__init__ = noted
    try:
        step()
    finally:
        ring.Hop.__init__ = begin
    return most


@pytest.mark.parametrize("name", ["learned", "two keys"])
def test_what_is_under_way_is_the_prediction(world, name):
    expected = memory.travelling(SHAPES[name], len(world), 2)
    assert world.run(under_way, SHAPES[name]) == [expected] * len(world)
