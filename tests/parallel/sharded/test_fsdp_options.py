"""FSDP with its options, and what readers do beside a plain step."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.sharded import FSDP, ShardedDataParallel
from lib.ranks.mesh import mesh
from lib.single import share
from tests import on_gpus
from tests.every import every
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import differences, fsdp, plain, ruined, sgd, step


def on_mesh(kind, axes):
    """Hybrid sharding: replicated along the first axis, sharded along the second."""
    return fsdp(kind, options={"group_or_mesh": mesh(**axes)})


OPTIONS = [{"reshard_after_forward": False}, {"reshard_after_forward": 2}, {"prefetch": 0},
           {"prefetch": 3}, {"units": []}, {"units": nn.Linear},
           {"units": (nn.Linear, nn.LayerNorm)}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_spread_equals_whole_with_each_option(worlds, options):
    for kind in (models.Twice, models.Tokens):
        found = differences(worlds(4).run(fsdp, kind, options=options), plain(kind))
        assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("axes", [{"replicas": 2, "shards": 2}, {"dp": 4}], ids=str)
def test_spread_equals_whole_on_a_mesh(worlds, axes):
    for kind in (models.Tied, models.Seven):
        found = differences(worlds(4).run(on_mesh, kind, axes), plain(kind))
        assert max(found.values()) < 1e-12, found


def test_a_mesh_averages_shards_over_replicas(worlds):
    """One all-reduce of a shard for each reduce-scatter; each replica gathers by itself."""
    ledger = worlds(4).record(on_mesh, models.Perceptron, {"replicas": 2, "shards": 2})
    reduced = sorted(
        ledger.where(rank=0, lane="comm", op="reduce_scatter"), key=lambda row: row.number
    )
    averaged = sorted(
        ledger.where(rank=0, lane="comm", group="replicas"), key=lambda row: row.number
    )
    assert {row.members for row in reduced} == {(0, 1)}
    assert {row.op for row in averaged} == {"all_reduce"}
    assert len(reduced) == 6  # two steps of three units
    assert [row.bytes for row in averaged] == [row.bytes // 2 for row in reduced]
    waits = [row.start for row in ledger.where(rank=0, lane="wait", op="all_reduce")]
    # On GPUs a wait may begin with the launch: both are read from one event of the stream.
    begins = waits[0] >= averaged[2].start if on_gpus.WANTED else waits[0] > averaged[2].start
    assert begins, "the sums of a step are waited for at its end"
    assert averaged[1].start < reduced[2].start, "each is launched while backward goes on"


def test_a_smaller_number_of_ranks_serves_backward(worlds):
    """Forward gathers over all four ranks, backward over two neighbours."""
    options = {"reshard_after_forward": 2}
    ledger = worlds(4).record(fsdp, models.Perceptron, 1, options)
    for rank, members in ((0, (0, 1)), (3, (2, 3))):
        rows = ledger.where(rank=rank, lane="comm", op="all_gather", group="reshard of 2")
        assert [row.members for row in rows] == [members] * 3


def refused(make):
    try:
        make()
    except ValueError as error:
        return str(error)


def wrong_arguments():
    model = models.Twice
    return [
        refused(lambda: FSDP(model(), reshard_after_forward=3)),
        refused(lambda: FSDP(model(), mesh(a=2, b=2, c=1))),
        refused(lambda: FSDP(model(), prefetch=-1)),
        refused(lambda: FSDP(model(), units=[nn.Linear(2, 2)])),
        refused(lambda: FSDP(model(), units=nn.LSTM)),
        refused(lambda: FSDP(model() if dist.get_rank() else models.Seven())),
    ]


def test_what_does_not_fit_is_refused_in_words(worlds):
    messages = worlds(4).run(wrong_arguments)[1]
    words = [
        "reshard_after_forward=3 cannot share", "one axis", "prefetch must be",
        "not part of this model", "No module of the model is a unit", "The models differ",
    ]  # fmt: skip
    for message, word in zip(messages, words, strict=True):
        assert word in message and message.endswith(".")


def second_blocks(name, module):
    return name.endswith("blocks.1") and isinstance(module, nn.Module)


def chosen_by(rule):
    wrapped = FSDP(models.Twice(), units=rule)
    return [unit.name for unit in wrapped.units]


def test_a_function_of_name_and_module_chooses_units(worlds):
    assert worlds(2).run(chosen_by, second_blocks) == [["", "blocks.1"]] * 2
    found = differences(worlds(2).run(fsdp, models.Twice, options={"units": second_blocks}),
                        plain(models.Twice))  # fmt: skip
    assert max(found.values()) < 1e-12, found


# --- buffers


def spoilt(wrap):
    """Build a model whose buffers differ on each rank; they are those of the first rank then."""
    model = models.Images()
    for buffer in model.buffers():
        buffer.add_(1 + dist.get_rank())
    wrap(model)
    return dict(model.named_buffers())


@pytest.mark.parametrize("wrap", [FSDP, ShardedDataParallel])
def test_all_ranks_begin_with_the_buffers_of_the_first(worlds, wrap):
    expected = {name: buffer + 1 for name, buffer in models.Images().named_buffers()}
    for buffers in worlds(4).run(spoilt, wrap):
        assert buffers.keys() == expected.keys()
        assert every(torch.equal(buffers[name], value) for name, value in expected.items())


# --- a failure in a unit


class Breaks(models.Twice):
    """The second block raises when it is told to."""

    broken = False

    def forward(self, x):
        self.blocks[1].register_forward_hook(lambda *_: 1 / 0 if self.broken else None)
        return super().forward(x)


def fails_and_goes_on(backward):
    model = ruined(Breaks)
    wrapped = FSDP(model)
    x, y = share(model.batch(), dist.get_rank(), dist.get_world_size())
    sizes = []
    try:
        if backward:
            outputs = wrapped(x)
            outputs.register_hook(lambda _: None)
            inner = next(iter(model.blocks))
            inner.register_full_backward_hook(lambda *_: 1 / 0)
            model.loss(wrapped(x), y).backward()
        else:
            model.broken = True
            wrapped(x)
    except ZeroDivisionError:
        if backward:
            next(iter(model.blocks))._backward_hooks.clear()
        model.broken = False
        sizes = [flat.flat.untyped_storage().nbytes() for flat in wrapped.flats()]
    optimizer = sgd(wrapped.parameters())
    found = step(wrapped, optimizer, (x, y), model.loss)
    weights = wrapped.full_state_dict()
    return sizes, found | {"gradients": wrapped.full_gradients(), "weights": weights}


@pytest.mark.parametrize("backward", [False, True])
def test_after_an_exception_in_a_unit_the_next_step_is_right(worlds, backward):
    answers = worlds(2).run(fails_and_goes_on, backward)
    # The third may still be on its way; the next forward waits for it.
    assert every(sizes[:2] == [0, 0] for sizes, _ in answers)
    found = differences([part for _, part in answers], plain(models.Twice, 1))
    assert max(found.values()) < 1e-12, found


# --- accumulation, clipping, whole weights


def accumulated(how):
    """Gradients of a batch in two halves, with both reduced or only the second."""
    model = ruined(models.Tied)
    wrapped = FSDP(model)
    x, y = share(model.batch(), dist.get_rank(), dist.get_world_size())
    half = len(x) // 2
    if how == "no_sync":
        with wrapped.no_sync():
            (model.loss(wrapped(x[:half]), y[:half]) / 2).backward()
    else:
        (model.loss(wrapped(x[:half]), y[:half]) / 2).backward()
    (model.loss(wrapped(x[half:]), y[half:]) / 2).backward()
    return wrapped.full_gradients()


@pytest.mark.parametrize("how", ["no_sync", "reduced twice"])
def test_accumulated_gradients_are_the_whole_batchs(worlds, how):
    ledger = worlds(2).record(accumulated, how)
    truth = plain(models.Tied, 1)["gradients"]
    for gradients in ledger.results:
        for name, gradient in gradients.items():
            assert (gradient - truth[name]).norm() < 1e-12 * truth[name].norm(), name
    units = 1 + 5
    times = {"no_sync": 1, "reduced twice": 2}[how]
    assert len(ledger.where(rank=0, lane="comm", op="reduce_scatter")) == units * times


def clipped(kind, norm_type, local, axes=None):
    model = ruined(kind)
    wrapped = FSDP(model, mesh(**axes) if axes else None)
    x, y = share(model.batch(), dist.get_rank(), dist.get_world_size())
    model.loss(wrapped(x), y).backward()
    if local:  # the bug
        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), 0.01, norm_type)
    else:
        norm = wrapped.clip_grad_norm_(0.01, norm_type)
    return norm.item(), wrapped.full_gradients()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_the_norm_is_that_of_the_whole_model(world, norm_type):
    model = models.Tied().double()
    x, y = model.batch()
    model.loss(model(x), y).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type).item()
    for norm, gradients in world.run(clipped, models.Tied, norm_type, False):
        assert norm == pytest.approx(expected, rel=1e-12)
        for name, parameter in model.named_parameters():
            assert torch.allclose(gradients[name], parameter.grad, rtol=1e-10, atol=1e-18)


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
def test_on_a_mesh_the_norm_counts_each_shard_once(worlds, norm_type):
    """Replicas hold the same shards, so a norm over all ranks would be too large."""
    expected = worlds(1).run(clipped, models.Tied, norm_type, False)[0]
    axes = {"replicas": 2, "shards": 2}
    for norm, gradients in worlds(4).run(clipped, models.Tied, norm_type, False, axes):
        assert norm == pytest.approx(expected[0], rel=1e-12)
        for name, gradient in expected[1].items():
            assert torch.allclose(gradients[name], gradient, rtol=1e-10, atol=1e-18)


def test_the_norm_of_local_shards_is_another_on_each_rank(worlds):
    norms = [norm for norm, _ in worlds(2).run(clipped, models.Tied, 2.0, True)]
    whole = worlds(2).run(clipped, models.Tied, 2.0, False)[0][0]
    assert norms[0] != norms[1] and max(norms) < whole
    assert sum(norm**2 for norm in norms) == pytest.approx(whole**2)


def whole_weights_changed():
    model = ruined(models.Twice)
    wrapped = FSDP(model)
    with wrapped.unshard() as whole, torch.no_grad():
        shapes = [tuple(p.shape) for p in whole.parameters()]
        whole.blocks[1].weight.mul_(2)
    return shapes, wrapped.full_state_dict(), [p.dim() for p in wrapped.parameters()]


def test_unshard_shows_whole_weights_and_keeps_what_was_changed(worlds):
    torch.manual_seed(0)
    model = models.Twice().double()
    for shapes, state, dims in worlds(4).run(whole_weights_changed):
        assert shapes == [(5, 5), (5,)] * 3 and dims == [1] * 6
        for name, weight in model.state_dict().items():
            expected = weight * 2 if name == "blocks.1.weight" else weight
            assert torch.equal(state[name], expected)


def evaluated():
    model = ruined(models.Images)
    wrapped = FSDP(model).eval()
    x, y = model.batch()
    with torch.inference_mode():
        inferred = wrapped(x)
    with torch.no_grad():
        quiet = wrapped(x)
    sizes = [flat.flat.untyped_storage().nbytes() for flat in wrapped.flats()]
    wrapped.train()
    model.loss(wrapped(x), y).backward()
    return inferred.clone(), quiet, sizes, wrapped.full_gradients()


def test_evaluation_keeps_nothing_and_training_follows(worlds):
    torch.manual_seed(0)
    model = models.Images().double().eval()
    expected = model(model.batch()[0])
    for inferred, quiet, sizes, gradients in worlds(2).run(evaluated):
        assert torch.allclose(inferred, expected) and torch.equal(inferred, quiet)
        assert set(sizes) == {0}
        assert every(gradient.norm() > 0 for gradient in gradients.values())
