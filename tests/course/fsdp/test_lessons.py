"""Chapter 3's small experiments: what each shows on real ranks."""

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lib.course.fsdp import lessons, published, slow_chain, wall_clock
from lib.draw import memory
from lib.parallel.sharded import FSDP
from lib.parallel.sharded.units import find_units, weights_by_unit
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.predict.sharded.states import held, keeping
from lib.single import GPT, Batches, next_token_loss, share
from tests.course.machine import Machine
from tests.course.stored_chapter import stored_chapter
from tests.every import every

SHAPE = GPTShape(width=16, layers=2, heads=2, sequence=16)
BATCH = Batches(8, sequence=16)[0]


@pytest.fixture
def world(worlds):
    return worlds(4)


def theirs(model):
    for block in model.blocks.values():
        fully_shard(block)
    return fully_shard(model)


@pytest.mark.parametrize("stage", range(4))
def test_each_stage_keeps_what_is_predicted(world, stage):
    kept = world.run(lessons.kept, stage, SHAPE, BATCH)
    assert kept == [held(SHAPE.numel, 4, stage, keeping("adamw", "fp32"))] * 4


def test_fsdp_launches_what_fully_shard_launches(world):
    ours, pytorchs = (
        lessons.calls(world.record(lessons.one_backward, SHAPE, BATCH, wrap))
        for wrap in (FSDP, theirs)
    )
    assert ours == pytorchs and len(ours) > 6


def mixed_step(shape, batch):
    """Run one forward and backward of `fully_shard` in mixed precision, and clip gradients.

    Returns the types of shards, gradients and states, the norm that was clipped, and the whole one.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = GPT(shape)
    for block in model.blocks.values():
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    next_token_loss(model(x), y).backward()
    whole = [p.grad.full_tensor() for p in model.parameters()]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor()
    optimizer.step()
    states = [s["exp_avg"] for s in optimizer.state.values()]
    kinds = {t.dtype for p in model.parameters() for t in (p, p.grad)} | {s.dtype for s in states}
    return kinds, norm, torch.stack([g.square().sum() for g in whole]).sum().sqrt()


def test_in_mixed_precision_fully_shard_keeps_float32_and_clips_the_norm_of_all_ranks(world):
    for kinds, clipped, whole in world.run(mixed_step, SHAPE, BATCH):
        assert kinds == {torch.float32} and torch.allclose(clipped, whole)


def test_an_optimizer_made_too_early_changes_nothing_with_fully_shard(world):
    for wrap, before, changed in ((theirs, True, False), (theirs, False, True), (FSDP, True, True)):
        assert world.run(lessons.late_optimizer, wrap, SHAPE, BATCH, before) == [changed] * 4


def test_shards_of_four_ranks_are_loaded_by_two(world, worlds):
    saved, whole = zip(*world.run(lessons.trained_shards, SHAPE, BATCH))
    assert worlds(2).run(lessons.load_shards, SHAPE, list(saved), whole[0]) == [True] * 2
    other = whole[0] | {"blocks.0.tokens.weight": whole[0]["blocks.0.tokens.weight"] + 1}
    assert worlds(2).run(lessons.load_shards, SHAPE, list(saved), other) == [False] * 2


def test_a_model_built_on_the_meta_device_is_never_whole(world):
    whole = world.run(lessons.built_on_meta, SHAPE, False)
    in_shards = world.run(lessons.built_on_meta, SHAPE, True)
    assert min(whole) > 1 and max(in_shards[1:]) < 0.7


def test_the_memory_of_the_second_step_falls_from_stage_to_stage(world):
    peaks, shape = [], GPTShape(width=32, layers=4, heads=2, sequence=16)  # as in the chapter
    for stage in range(4):
        ledger = lessons.memory_of_rank_0(world.record(lessons.kept, stage, shape, BATCH))
        alive, peak = {}, 0
        for row in ledger:
            alive[row.op] = row.bytes
            peak = max(peak, sum(alive.values()))
        assert list(ledger.ranks) == [0]
        peaks.append(peak)
    predicted = lessons.predicted_memory(shape, 2, ledger)
    told = [memory(one).summary.split("peak ")[1].split(", made")[0] for one in (ledger, predicted)]
    assert told[0] == told[1] and told[0].startswith(f"{peak:,} bytes (activations")
    assert predicted.makespan == pytest.approx(ledger.makespan)
    assert peaks == sorted(peaks, reverse=True) and peaks[3] < 0.6 * peaks[0]


def test_collectives_are_drawn_only_while_they_move():
    hardware = speeds("H100", "NVLink4")
    step = fsdp_step(MLPShape((4096,) * 5, bias=False), [4096] * 2, hardware)
    moving = lessons.while_moving(step.where(rank=0), hardware)
    lane = sorted(moving.where(lane="comm"), key=lambda row: row.start)
    assert len(lane) == 12 and every(a.end <= b.start + 1e-12 for a, b in zip(lane, lane[1:]))
    assert list(moving.where(lane="compute")) == list(step.where(rank=0, lane="compute"))
    overlapping = sorted(step.where(rank=0, lane="comm"), key=lambda row: row.start)
    assert any(a.end > b.start for a, b in zip(overlapping, overlapping[1:]))


def test_a_predicted_step_is_joined_where_nothing_waits():
    hardware, shape = speeds("H100", "NVLink4"), MLPShape((4096,) * 5, bias=False)
    for prefetch, forward in ((0, 4), (1, 1)):
        step = fsdp_step(shape, [4096] * 2, hardware, prefetch=prefetch)
        joined = lessons.in_phases(step, shape, hardware)
        assert len(joined.where(rank=1, op="forward")) == forward
        lanes = sorted(joined.where(rank=0, lane="comm"), key=lambda row: row.start)
        assert every(a.end <= b.start + 1e-12 for a, b in zip(lanes, lanes[1:]))


def test_forward_and_backward_end_before_the_update():
    hardware, shape = speeds("H100", "NVLink4"), MLPShape((4096,) * 5, bias=False)
    for cut in ([1] * 4, [2] * 2, [4]):
        step = fsdp_step(shape, [4096] * 2, hardware, blocks=cut)
        updates = list(step.where(rank=0, lane="compute", op="add"))[-len(cut) :]
        took = sum(row.seconds for row in updates)
        assert took > 0 and lessons.until_update(step) == pytest.approx(step.makespan - took)


def recomputed(units, model):
    """Shard the blocks of a GPT with `units`, each of which computes its forward again."""
    blocks = model.blocks
    for name in list(blocks):
        blocks[name] = checkpoint_wrapper(blocks[name])
    return units(model)


def ours_by_block(model):
    return FSDP(model, units=list(model.blocks.values()))


@pytest.mark.parametrize("units", [theirs, ours_by_block], ids=["fully_shard", "FSDP"])
def test_a_unit_that_is_recomputed_is_not_gathered_a_third_time(world, units):
    plain, again = (
        lessons.calls_of_rank_0(world.record(lessons.one_backward, SHAPE, BATCH, wrap))
        for wrap in (units, partial(recomputed, units))
    )
    gathers = len(plain.where(op="all_gather"))
    assert gathers == 2 * SHAPE.blocks == len(again.where(op="all_gather"))


def test_without_synchronization_fully_shard_keeps_whole_gradients(world):
    """The card's warning: what accumulates is as large as the model, on every rank."""
    assert world.run(accumulated, SHAPE, BATCH, False) == [SHAPE.nbytes()] * 4
    assert max(world.run(accumulated, SHAPE, BATCH, True)) == 0


def accumulated(shape, batch, sync):
    """Run one backward of `fully_shard`; return the bytes of unsharded gradients kept after it."""
    model = theirs(GPT(shape))
    model.set_requires_gradient_sync(sync)
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    next_token_loss(model(x), y).backward()
    groups = (m._get_fsdp_state()._fsdp_param_group for m in model.modules()
              if isinstance(m, FSDPModule))  # fmt: skip
    kept = 0
    for parameter in (p for group in groups if group for p in group.fsdp_params):
        whole = getattr(parameter, "_unsharded_param", None)
        gradients = parameter.unsharded_accumulated_grad, getattr(whole, "grad", None)
        kept += sum(g.nbytes for g in gradients if g is not None)
    return kept


def test_between_microbatches_fully_shard_sends_nothing_if_all_stays_whole(world):
    """The card's last way to accumulate: neither weights nor gradients are divided meanwhile."""
    once, thrice = (world.record(whole_for, SHAPE, BATCH, count) for count in (1, 3))
    sent = [[(row.op, row.bytes) for row in run.where(rank=0, lane="comm")]
            for run in (once, thrice)]  # fmt: skip
    assert sent[0] and {op for op, _ in sent[0]} == {"all_gather"} and sent[0] == sent[1]


def whole_for(shape, batch, count):
    """Run so many microbatches of `fully_shard` whose weights and gradients stay whole."""
    model = theirs(GPT(shape))
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_forward(False)
    model.set_reshard_after_backward(False)
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    for _ in range(count):
        next_token_loss(model(x), y).backward()


def test_the_published_gather_is_that_of_one_ring_over_hosts():
    """With an eighth of a host's link for each GPU, the network would bound the step."""
    moved = 511 / 512 * 2 * published.GPT3.numel
    ring, shared = moved / published.HOST, moved / (published.HOST / 8)
    assert (round(ring, 1), round(shared)) == (1.4, 11)
    step = published.prefetch_of_gpt3()[0].step
    assert 3 * ring < step < 3 * shared


def test_backward_prefetch_gains_the_gathers_and_reductions_of_all_units():
    for run in published.prefetch_of_gpt3():
        moved = 2 * 511 / 512 * 2 * published.GPT3.numel / published.HOST
        assert run.without - run.step == pytest.approx(moved, rel=0.02)


def test_a_step_is_timed_beside_its_prediction(worlds):
    computing, moving, whole = wall_clock.compared(
        worlds(2), Machine(), MLPShape((8,) * 3, bias=False), 4, repeats=3
    )
    assert moving[:2] == ("collectives", 60.0) and computing[2] is None  # 4 gathers, 2 reductions
    assert computing[1] < whole[1] <= computing[1] + 60 and 0 < whole[2] < 5
    lines = wall_clock.table([("computation", 1.0, None), ("whole step", 12.0, 10.0)]).splitlines()
    assert lines[1].split() == ["computation", "1000.0"] and lines[2].split()[-1] == "+20%"


def test_our_shares_of_the_states_are_equal_and_pytorchs_are_whole_parameters(worlds):
    world = worlds(4)
    ours, theirs = (
        world.record(lessons.zero_1_step, who, SHAPE, BATCH) for who in ("ours", "PyTorch's")
    )
    each = held(SHAPE.numel, 4, 1, keeping("adamw", "fp32")).optimizer
    kept = [[nbytes for nbytes, _ in run.results] for run in (ours, theirs)]
    assert kept[0] == [each] * 4 and sum(kept[1]) == sum(kept[0]) and max(kept[1]) > each
    calls = [lessons.calls_of_rank_0(run) for run in (ours, theirs)]
    sent = [[(t["op"], t.count, t.bytes) for t in rows.totals(("op",)) if t.bytes]
            for rows in calls]  # fmt: skip
    assert sent == [[("all_gather", 1, SHAPE.nbytes())],
                    [("broadcast", len(SHAPE.parameters), SHAPE.nbytes())]]  # fmt: skip
    every_rank = [weights for run in (ours, theirs) for _, weights in run.results]
    assert every(every(map(torch.equal, every_rank[0], weights)) for weights in every_rank)


def test_fully_shard_refuses_what_has_no_dims(worlds):
    from torch.distributed.fsdp import fully_shard

    world = worlds(2)
    refusal = world.run(lessons.refusal_of, fully_shard, SHAPE)[0]
    assert refusal.startswith("fully_shard doesn't support scalar parameters.")
    assert world.run(lessons.refusal_of, lessons.FSDP, SHAPE) == ["", ""]


def test_of_an_offloaded_step_each_row_does_one_thing_at_a_time(capsys):
    step = lessons.offloaded(speeds("H100", "NVLink4"), MLPShape((64,) * 4, bias=False), 8)
    assert capsys.readouterr().out.startswith("1. Offload\ncomputation ")
    assert list(step.ranks) == list(range(len(lessons.HOST_ROWS)))
    named = {rank: {row.op for row in step.where(rank=rank)} for rank in (1, 2, 3)}
    assert named == {1: {"to_host"}, 2: {"step"}, 3: {"to_device"}}
    computed = list(step.where(rank=0, lane="compute"))
    assert [row.op for row in computed] == ["forward", "backward"]
    assert every(a.end == pytest.approx(b.start) for a, b in zip(computed, computed[1:]))
    for rank in (0, 1, 3):  # so small a model is updated in one piece
        rows = sorted(step.where(rank=rank, lane=["compute", "comm"]), key=lambda row: row.start)
        assert every(a.end <= b.start + 1e-12 for a, b in zip(rows, rows[1:]))


class Tied(torch.nn.Module):
    """An embedding whose weight is also that of the head."""

    def __init__(self):
        super().__init__()
        self.first, self.middle = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def still_tied(together: bool):
    """Run a tied model in `fully_shard`; return whether its weight is still one, or the error."""
    tied = Tied()
    try:
        for unit in ([tied.first, tied.last],) if together else (tied.first, tied.last):
            fully_shard(unit)
        fully_shard(tied)
        tied(torch.arange(8))
    except ValueError as error:
        return str(error)
    return tied.first.weight is tied.last.weight


def test_a_weight_that_two_units_share_is_refused_and_belongs_into_one(worlds):
    world = worlds(2)
    assert "shared" in world.run(still_tied, False)[0]
    assert world.run(still_tied, True) == [True, True]
    tied = Tied()
    apart = find_units(tied, [tied.first, tied.middle, tied.last])
    in_root = weights_by_unit(tied, apart)[""]  # the library's choice
    assert [weight.names for weight in in_root] == [["first.weight", "last.weight"]]


def freezing(wrap, what: str) -> None:
    """Run forward and backward of three layers, of which the middle one is frozen, or its bias."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    (model[1] if what == "unit" else model[1].bias).requires_grad_(False)
    wrapped = wrap(model)
    dist.barrier()
    wrapped(torch.ones(4, 8)).sum().backward()


def their_layers(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


@pytest.mark.parametrize("what, gathers", [("unit", (6, 6)), ("bias", (8, 6))])
def test_a_frozen_unit_is_gathered_twice_and_not_reduced(worlds, what, gathers):
    """A frozen bias beside a trained weight costs our FSDP a gather of its own."""
    for wrap, count in zip((FSDP, their_layers), gathers):
        calls = lessons.calls_of_rank_0(worlds(2).record(freezing, wrap, what))
        assert len(calls.where(op="all_gather")) == count
        assert len(calls.where(op="reduce_scatter")) == (2 if what == "unit" else 3)


def test_the_hook_of_the_chapters_unit_refuses_a_frozen_parameter():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        frozen.register_post_accumulate_grad_hook(lambda p: None)


def test_a_rank_of_the_chain_waits_for_every_gather_without_prefetch_and_for_two_with_it():
    rows, speeds = [lessons.ROWS] * slow_chain.RANKS, slow_chain.speeds()
    waits = [
        slow_chain.waited_for(fsdp_step(lessons.LARGE, rows, speeds, prefetch=n)) for n in (0, 1)
    ]
    assert waits == [16, 2]


def test_units_of_more_layers_hold_more_and_take_longer():
    cuts = [slow_chain.cut(layers) for layers in (1, 2, 4, 8)]
    assert cuts == sorted(cuts) and cuts[3].held == 6 * cuts[0].held
    rows = [lessons.ROWS] * slow_chain.RANKS
    step = fsdp_step(lessons.LARGE, rows, slow_chain.speeds())
    assert cuts[0].seconds == lessons.until_update(step) < step.makespan


def test_ranks_of_any_factor_have_the_same_prediction():
    """A class on one machine starts the ranks slower, and its pictures stay those of the H100."""
    slow, predicted = slow_chain.start(factor=150)
    with slow:
        drawn = [repr(slow_chain.beside(slow, predicted, limit)) for limit in (0, 1)]
    rows = [lessons.ROWS] * slow_chain.RANKS
    for limit, step in enumerate(predicted):
        usual = fsdp_step(lessons.LARGE, rows, slow_chain.speeds(), prefetch=limit)
        assert list(step) == list(usual)
    assert every("all_gather × 16" in text and "dashed: predicted" in text for text in drawn)


PRINTED = re.compile(r"```python\n(import torch\.distributed\.checkpoint.*?)```", re.S)


def saved_whole(shape, wrap, folder):
    """Save what `fully_shard` keeps on every rank; return the whole weights."""
    torch.manual_seed(5)
    model = GPT(shape)
    wrap(model)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    return [p.full_tensor() for p in model.parameters()]


def loaded_whole(code, shape, wrap, folder):
    """Run the chapter's lines on every rank; return the whole weights of the model."""
    names = {"torch": torch, "GPT": GPT, "shape": shape, "theirs": wrap, "folder": folder}
    exec(code, names | {"device": "cpu"}, names)
    return [p.full_tensor() for p in names["model"].parameters()]


def test_the_printed_lines_load_a_checkpoint_on_another_number_of_ranks(worlds, tmp_path):
    (cell,) = [c for c in stored_chapter("03-fsdp").cells if PRINTED.search(c.source)]
    assert "dcp.save(get_model_state_dict(model), checkpoint_id=folder)" in cell.source
    code, folder = PRINTED.search(cell.source)[1], str(tmp_path / "weights")
    before = worlds(4).run(saved_whole, SHAPE, theirs, folder)
    after = worlds(2).run(loaded_whole, code, SHAPE, theirs, folder)
    assert len(before[0]) > 20
    for rank in after:
        assert every(map(torch.equal, rank, before[0]))
