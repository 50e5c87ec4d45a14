"""Methods combined on one mesh: the training of the plain model, what is sent, what is refused."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError, recipe
from lib.parallel.data import DistributedDataParallel
from lib.parallel.pipeline import Pipeline
from lib.parallel.sharded import FSDP, ShardedDataParallel
from lib.predict.pipeline import schedules
from lib.predict.shape import GPTShape
from lib.predict.sharded.traffic import of_fsdp
from lib.predict.sharded.units import units_of
from lib.predict.sharded.zero_step import exchanges
from lib.ranks.mesh import mesh
from lib.recipe import ddp, fsdp, parallelize, pipeline, zero1, zero2
from lib.single import GPT, mean_squares, next_token_loss
from tests.every import every

SHAPE = GPTShape(width=16, heads=2, layers=3, vocabulary=64, sequence=8, tied=True)
STEPS, ADAMW = 3, {"lr": 1e-2, "weight_decay": 0.1}


class Odd(nn.Module):
    """A layer with a frozen weight, an unused one, and sizes that 4 does not divide."""

    def __init__(self):
        super().__init__()
        self.used, self.frozen, self.unused = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 7)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return torch.tanh(self.frozen(self.used(x))) + x


def gpt():
    return GPT(SHAPE).double()


def odd():
    torch.manual_seed(3)
    return nn.Sequential(Odd(), nn.Linear(7, 7), Odd(), nn.Linear(7, 3)).double()


def batch_of(make, step):
    draw = torch.Generator().manual_seed(step)
    if make is gpt:
        tokens = torch.randint(64, (8, 9), generator=draw)
        return tokens[:, :-1], tokens[:, 1:]
    sizes = (8, 7), (8, 3)
    return tuple(torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes)


def loss_of(make):
    return next_token_loss if make is gpt else mean_squares


UNUSED = {"find_unused": True}
# The axes of the mesh, and the methods; each is called on the ranks, by its name and arguments.
RECIPES = {
    "DDP": ({"dp": 4}, [(ddp, ("dp",), UNUSED)]),
    "ZeRO-1": ({"dp": 4}, [(zero1, ("dp",), UNUSED)]),
    "ZeRO-2": ({"dp": 4}, [(zero2, ("dp",), {"bucket_bytes": 2000})]),
    "FSDP": ({"dp": 4}, [(fsdp, ("dp",), {"units": nn.Linear})]),
    "hybrid": ({"replicate": 2, "shard": 2}, [(fsdp, ("replicate", "shard"), {})]),
    "pipeline": ({"pp": 4}, [(pipeline, ("pp", schedules.zb_h1(4, 4)), {})]),
    "pipeline, DDP": (
        {"pp": 2, "dp": 2},
        [(pipeline, ("pp", schedules.one_f_one_b(2, 4)), {}), (ddp, ("dp",), {})],
    ),
    "DDP outside, interleaved": (
        {"dp": 2, "pp": 2},
        [(pipeline, ("pp", schedules.interleaved(4, 4)), {}), (ddp, ("dp",), {})],
    ),
    "pipeline, ZeRO-1": (
        {"pp": 2, "dp": 2},
        [(pipeline, ("pp", schedules.zb_v(4, 4)), {}), (zero1, ("dp",), {})],
    ),
}


def ruined(make):
    """A model whose weights on all ranks but the first must not matter."""
    model = make()
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())
    return model


def spread(make, axes, methods):
    model = ruined(make)
    made = [method(*args, **options) for method, args, options in methods]
    return model, parallelize(model, mesh(**axes), *made, loss=loss_of(make))


def trained(make, axes, methods):
    """Losses of this rank's shares, the last gradients and weights, and where its share lies."""
    model, run = spread(make, axes, methods)
    optimizer, losses = run.optimizer(torch.optim.AdamW, **ADAMW), []
    for n in range(STEPS):
        optimizer.zero_grad()
        losses.append(run.forward_backward(*run.share(batch_of(make, n))))
        gradients = gradients_of(model, run.model)
        optimizer.step()
    weights = {name: p.detach().clone() for name, p in held_by(model, run.model).items()}
    return losses, gradients, weights, run.data.rank if run.data else 0


def held_by(model, spread_model):
    """The whole weights that a rank has, by name."""
    if isinstance(spread_model, FSDP):
        state = spread_model.full_state_dict()
        return {name: state[name] for name, _ in spread_model.named_parameters()}
    own = {id(p) for p in spread_model.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) in own}


def gradients_of(model, spread_model):
    """Gradients by name: whole ones, or under ZeRO-2 slices with their place."""
    if isinstance(spread_model, FSDP):
        return spread_model.full_gradients()
    if not isinstance(spread_model, ShardedDataParallel):
        held = held_by(model, spread_model)
        return {name: None if p.grad is None else p.grad.clone() for name, p in held.items()}
    names, slices = {id(p): name for name, p in model.named_parameters()}, {}
    for flat in spread_model.flats:
        for n, parameter in enumerate(flat.parameters):
            place = slice(*flat.layout.piece(n, flat.rank))
            if flat.gradients[n] is not None:
                slices[names[id(parameter)]] = place, flat.gradients[n].clone()
    return slices


def plain(make):
    model, losses = make(), []
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for n in range(STEPS):
        x, y = batch_of(make, n)
        optimizer.zero_grad()
        outputs = model(x)
        losses.append(loss_of(make)(outputs, y))
        losses[-1].backward()
        optimizer.step()
    return losses, dict(model.named_parameters())


def close(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def assert_whole(answers, truth):
    """Losses of the shares average to the whole's; every gradient and weight is the plain one's."""
    losses, parameters = truth
    by_share = {share: losses for losses, _, _, share in answers}
    for n, loss in enumerate(losses):
        found = [share_losses[n] for share_losses in by_share.values()]
        assert close(sum(found) / len(found), loss.detach())
    seen = {name: 0 for name, p in parameters.items() if p.grad is not None}
    for _, gradients, weights, _ in answers:
        assert weights
        for name, value in weights.items():
            assert close(value, parameters[name].detach()), name
        for name, found in gradients.items():
            expected, place = parameters[name].grad, slice(None)
            if isinstance(found, tuple):
                place, found = found
                expected = expected.flatten()
            assert (found is None) == (expected is None), name
            if found is not None:
                assert close(found, expected[place]), name
                seen[name] += found.numel()
    assert every(count >= parameters[name].numel() for name, count in seen.items())


@pytest.mark.parametrize("make", [gpt, odd])
@pytest.mark.parametrize("name", RECIPES)
def test_three_steps_are_those_of_the_plain_model(worlds, name, make):
    """Losses, gradients and weights of AdamW in float64; all ranks begin with the first's."""
    assert_whole(worlds(4).run(trained, make, *RECIPES[name]), plain(make))


def outputs_of(make, axes, methods):
    _, run = spread(make, axes, methods)
    return run.model(run.share(batch_of(make, 0)[0])).detach(), run.data.rank


@pytest.mark.parametrize("name", ["DDP", "ZeRO-2", "FSDP", "hybrid"])
def test_outputs_are_those_of_the_plain_model(worlds, name):
    answers = worlds(4).run(outputs_of, gpt, *RECIPES[name])
    found = torch.cat([outputs for outputs, _ in sorted(answers, key=lambda answer: answer[1])])
    assert close(found, gpt()(batch_of(gpt, 0)[0]).detach())


# --- what is sent


def one_recorded_step(make, axes, methods):
    """Two steps; a barrier stands before the last."""
    _, run = spread(make, axes, methods)
    optimizer = run.optimizer(torch.optim.AdamW, **ADAMW)
    for n in range(3):  # DDP orders its buckets anew after the first two
        if n == 2:
            dist.barrier()
        run.forward_backward(*run.share(batch_of(make, n)))
        optimizer.step()
        optimizer.zero_grad()


def sent(worlds, axes, methods):
    """Rank 0's collectives behind the barrier, in their order: (operation, group, bytes)."""
    ledger = worlds(4).record(one_recorded_step, gpt, axes, methods)
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.start)
    place = max(n for n, row in enumerate(rows) if row.op == "barrier")
    return [(row.op, row.group, row.bytes) for row in rows[place + 1 :]]


@pytest.mark.parametrize(("method", "stage"), [(zero1, 1), (zero2, 2)])
def test_zero_sends_what_is_predicted_along_its_axis(worlds, method, stage):
    found = sent(worlds, {"dp": 4}, [(method, ("dp",), {"bucket_bytes": 20_000})])
    predicted = exchanges(SHAPE, 4, stage, 20_000, itemsize=8)
    assert found == [(e.op, "dp", e.bytes) for e in predicted]


def test_hybrid_sharding_sums_shards_over_replicas(worlds):
    found = sent(worlds, *RECIPES["hybrid"])
    predicted = of_fsdp(units_of(SHAPE), 2, replicas=2, param_bytes=8, reduce_bytes=8)
    groups = {"all_reduce": "replicate"}
    assert found == [(e.op, groups.get(e.op, "shard"), e.bytes) for e in predicted]
    assert {group for _, group, _ in found} == {"replicate", "shard"}


def test_a_pipeline_sends_along_its_axis_and_averages_before_zero_gathers(worlds):
    """Messages on pp, then the averages of the stage's gradients on dp, then its weights on dp."""
    schedule = schedules.one_f_one_b(2, 4)
    methods = [(pipeline, ("pp", schedule), {}), (zero1, ("dp",), {})]
    untied = [(op, group) for op, group, _ in sent(worlds, {"pp": 2, "dp": 2}, methods)]
    on_dp = [op for op, group in untied if group == "dp"]
    on_pp = [op for op, group in untied if group == "pp"]
    # Of a tied weight both ends exchange their parts, and average the sum by itself.
    average = ["all_reduce", "all_gather"]
    assert on_dp == [*average, *average, "all_gather"]
    assert on_pp.count("send") == 4 + 2 and on_pp.count("recv") == 4 + 2
    assert on_pp[-1] == "broadcast" and untied[-1] == ("all_gather", "dp")
    assert untied.index(("all_reduce", "dp")) > untied.index(("send", "pp"))


# --- what is refused


def refusal_of(make, axes, methods):
    """The refusal, and whether a weight was changed by then."""
    model = ruined(make)
    before = copy.deepcopy(model.state_dict())
    try:
        parallelize(model, mesh(**axes), *(one(*args, **more) for one, args, more in methods))
    except ValueError as error:
        same = every(torch.equal(before[name], v) for name, v in model.state_dict().items())
        return str(error), same


def assert_refused(world, words, make, axes, methods):
    """A sentence with these words comes on every rank, before anything is sent or changed."""
    ledger = world.record(refusal_of, make, axes, methods)
    for refusal, unchanged in ledger.results:
        assert words in refusal and re.search(r"[A-Z].*\.$", refusal) and unchanged
    assert len(ledger.where(lane="comm")) == 0


def whole_ddp():
    return DistributedDataParallel(gpt())


SCHEDULE = schedules.one_f_one_b(2, 4)
CUT, DP = (pipeline, ("pp", SCHEDULE), {}), (ddp, ("dp",), {})
GRID = {"pp": 2, "dp": 2}
REFUSED = {
    "needs at least one method": (gpt, {"dp": 4}, []),
    "A pipeline comes before DDP: it cuts the plain model": (gpt, GRID, [DP, CUT]),
    "DDP and FSDP both make a data parallelism": (gpt, GRID, [DP, (fsdp, ("pp",), {})]),
    "A pipeline and A pipeline both make": (gpt, GRID, [CUT, CUT]),
    "no axis 'tp' for DDP: the mesh of dp=4 has dp": (gpt, {"dp": 4}, [(ddp, ("tp",), {})]),
    "Axis 'pp' is asked to serve A pipeline and DDP": (gpt, GRID, [CUT, (ddp, ("pp",), {})]),
    "No method uses axis 'pp' of the mesh of pp=2 × dp=2": (gpt, GRID, [DP]),
    "2 stages on 2 ranks, 4 microbatches> is for 2 ranks, but axis 'pp'": (gpt, {"pp": 4}, [CUT]),
    "pipeline cuts a model into slices, but a Odd": (Odd, GRID, [CUT, DP]),
    "takes no find_unused": (gpt, GRID, [CUT, (zero1, ("dp",), UNUSED)]),
    "ZeRO-2 inside a pipeline": (gpt, GRID, [CUT, (zero2, ("dp",), {})]),
    "FSDP inside a pipeline": (gpt, GRID, [CUT, (fsdp, ("dp",), {})]),
    "FSDP was given 3 axes": (gpt, {**GRID, "tp": 1}, [(fsdp, ("pp", "dp", "tp"), {})]),
    "replicate along 'dp' and shard along 'pp', but the mesh": (
        gpt, GRID, [(fsdp, ("dp", "pp"), {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_sent(worlds, words):
    assert_refused(worlds(4), words, *REFUSED[words])


def refused_models():
    grid, found = mesh(dp=2), []
    for model in (whole_ddp(), nn.Sequential(FSDP(gpt())), Pipeline(gpt(), SCHEDULE)):
        try:
            parallelize(model, grid, ddp("dp"))
        except ValueError as error:
            found.append(str(error))
    return found


def test_a_model_that_is_wrapped_already_is_refused(worlds):
    for refusals in worlds(2).run(refused_models):
        names = ["DistributedDataParallel", "FSDP", "Pipeline"]
        for name, refusal in zip(names, refusals, strict=True):
            assert refusal.startswith(f"The model has a {name} in it already.")


def test_what_is_no_mesh_or_no_method_is_refused(worlds):
    for wrong in (lambda: parallelize(gpt(), None, ddp("dp")),
                  lambda: parallelize(gpt(), mesh(dp=2), DistributedDataParallel)):  # fmt: skip
        with pytest.raises(RankError, match="parallelize takes a model, a mesh and methods"):
            worlds(2).run(wrong)


def test_the_note_names_every_method():
    every_name = ("tensor", "grid", "context", "pipeline", "ddp", "zero1", "zero2", "fsdp")
    names = [name for name in every_name if f"`{name}`" in
             recipe.__doc__]  # fmt: skip
    assert len(names) == 8 and recipe.ORDER == ("tensor", "context", "pipeline", "data")
