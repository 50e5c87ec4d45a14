"""Pipelines: gradients that are there already, replicas, and what is refused before a step."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError
from lib.parallel.pipeline import pipes
from lib.parallel.pipeline.pipedream import PipeDream
from lib.parallel.pipeline.runtime import Pipeline
from lib.predict.pipeline import schedules
from lib.ranks.mesh import mesh
from lib.single.batches import share
from lib.single.train import mean_squares
from tests.every import every

D = 4
torch.manual_seed(0)
X, Y = torch.randn(8, D).double(), torch.randn(8, D).double()


class Layer(nn.Module):
    """A linear layer, an unused one, and one that every second replica uses."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.used, self.unused = nn.Linear(D, D).double(), nn.Linear(D, D).double()
        self.sometimes = nn.Linear(D, D).double()
        self.other = nn.Parameter(torch.ones(D, dtype=dtype))
        self.active = False

    def forward(self, x):
        x = torch.tanh(self.used(x) * self.other)
        return self.sometimes(x) if self.active else x


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()


def model(tied=False, make=Layer):
    torch.manual_seed(1)
    first = make()
    return nn.Sequential(first, make(), make(), first if tied else make())


def gradients(whole, pipeline):
    mine = set(map(id, pipeline.parameters()))
    return {n: p.grad for n, p in whole.named_parameters() if id(p) in mine}


def same(found, expected, tolerance=1e-12):
    assert found
    for name, one in found.items():
        other = expected[name]
        assert (one is None) == (other is None), name
        assert one is None or (one - other).norm() <= tolerance * other.norm(), name


# --- gradients that are there already


def fill(parameters, kind):
    for parameter in parameters:
        if kind == "there before":
            parameter.grad = torch.full_like(parameter, 0.25)
        elif kind == "zeros" and parameter.grad is not None:
            parameter.grad.zero_()
        elif kind == "none":
            parameter.grad = None


@pytest.mark.parametrize("kind", ["there before", "zeros", "none", "added up"])
@pytest.mark.parametrize("replicas", [False, True], ids=["", "replicas"])
def test_a_tied_weight_sums_the_gradients_of_this_step_alone(worlds, kind, replicas):
    """Case 1: whatever is in .grad before a step is added to once, as on one device."""

    def step():
        whole = model(tied=True)
        if replicas:
            grid = mesh(dp=2, pp=2)
            groups = {"group": grid["pp"].group, "replicas": grid["dp"].group}
            batch = share((X, Y), grid["dp"].rank, 2)
        else:
            groups, batch = {}, (X, Y)
        schedule = schedules.gpipe(2 if replicas else 4, 4)
        pipeline = Pipeline(whole, schedule, loss=mean_squares, **groups)
        if kind == "there before":
            fill(whole.parameters(), kind)
        pipeline.step(*batch)
        fill(pipeline.parameters(), kind)
        pipeline.step(*batch)
        return gradients(whole, pipeline)

    plain = model(tied=True)
    if kind == "there before":
        fill(plain.parameters(), kind)
    mean_squares(plain(X), Y).backward()
    fill(plain.parameters(), kind)
    mean_squares(plain(X), Y).backward()
    expected = {name: p.grad for name, p in plain.named_parameters()}
    for found in worlds(4).run(step):
        same(found, expected)


def test_a_tied_weight_that_nobody_uses_has_no_gradient(worlds):
    """Case 6: not zeros, by which AdamW would let it decay."""

    def step():
        whole = model(tied=True)
        pipeline = Pipeline(whole, schedules.one_f_one_b(2, 4), loss=mean_squares)
        pipeline.step(X, Y)
        return gradients(whole, pipeline)

    for found in worlds(2).run(step):
        assert found["0.unused.weight"] is None and found["0.used.weight"] is not None


# --- replicas


@pytest.mark.parametrize("name", ["gpipe", "zb_h1"])
def test_replicas_average_what_one_of_them_uses_and_leave_the_rest(worlds, name):
    """Case 6: what no replica uses stays None, as do the stages before a detached one."""

    def step(halted):
        grid = mesh(dp=2, pp=2)
        whole = model()
        whole[2].active = grid["dp"].rank == 1
        if halted:
            whole.insert(2, Detached())
        schedule = getattr(schedules, name)(2, 4)
        pipeline = Pipeline(whole, schedule, grid["pp"].group, replicas=grid["dp"].group,
                            loss=mean_squares)  # fmt: skip
        pipeline.step(*share((X, Y), grid["dp"].rank, 2))
        return gradients(whole, pipeline)

    for halted in (False, True):
        plain, total = model(), 0
        if halted:
            plain.insert(2, Detached())
        for rank, part in enumerate(zip(X.chunk(2), Y.chunk(2))):
            plain[3 if halted else 2].active = rank == 1
            total = total + mean_squares(plain(part[0]), part[1]) / 2
        total.backward()
        expected = {name: p.grad for name, p in plain.named_parameters()}
        assert expected["0.unused.weight"] is None
        assert (expected["0.used.weight"] is None) == halted
        for found in worlds(4).run(step, halted):
            same(found, expected)


def test_replicas_of_a_stage_with_two_dtypes(worlds):
    """Case 11: one all-reduce for each dtype."""

    def mixed():
        return Layer(torch.float32)

    def step():
        grid = mesh(dp=2, pp=2)
        whole = model(make=mixed)
        pipeline = Pipeline(whole, schedules.gpipe(2, 4), grid["pp"].group,
                            replicas=grid["dp"].group, loss=mean_squares)  # fmt: skip
        pipeline.step(*share((X, Y), grid["dp"].rank, 2))
        return gradients(whole, pipeline)

    plain = model(make=mixed)
    mean_squares(plain(X), Y).backward()
    expected = {name: p.grad for name, p in plain.named_parameters()}
    for found in worlds(4).run(step):
        assert every(g is None or g.dtype == expected[n].dtype for n, g in found.items())
        same(found, expected, 1e-6)


# --- steps that differ from each other


def test_stages_are_frozen_and_thawed_between_steps(worlds):
    """Case 6: a gradient comes back as soon as something before wants it, also after a pause."""

    def rounds(whole, step):
        found = []
        for frozen in (True, False, True, False):
            whole[:2].requires_grad_(not frozen)
            for parameter in whole.parameters():
                parameter.grad = None
            step()
            found.append({n: p.grad for n, p in whole.named_parameters()})
        return found

    def step():
        whole = model()
        pipeline = Pipeline(whole, schedules.one_f_one_b(4, 4), loss=mean_squares)
        mine = set(map(id, pipeline.parameters()))
        names = {n for n, p in whole.named_parameters() if id(p) in mine}
        found = rounds(whole, lambda: pipeline.step(X, Y))
        return [{n: g for n, g in one.items() if n in names} for one in found]

    plain = model()
    expected = rounds(plain, lambda: mean_squares(plain(X), Y).backward())
    for answer in worlds(4).run(step):
        for found, wanted in zip(answer, expected):
            same(found, wanted)


def test_a_stage_whose_form_changes_is_told_so(worlds):
    class Changing(nn.Module):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return x if self.calls < 3 else (x, x)

    def step():
        whole = nn.Sequential(Changing(), nn.Linear(D, D).double())
        Pipeline(whole, schedules.gpipe(2, 4), loss=mean_squares).step(X, Y)

    with pytest.raises(RankError, match="Stage 0 returned .* for microbatch 2, but "):
        worlds(2).run(step)


def test_a_first_batch_draws_no_random_numbers_besides_its_own(worlds):
    """Case 12: what a stage gives is learned from its first message, not from a trial."""

    class Noisy(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, training=True)

    def step():
        whole = nn.Sequential(nn.Linear(D, D).double(), Noisy(), nn.Linear(D, D).double())
        pipeline = Pipeline(whole, schedules.gpipe(1, 4), loss=mean_squares)
        torch.manual_seed(5)
        found = pipeline.step(X, Y).item()
        torch.manual_seed(5)
        parts = zip(X.chunk(4), Y.chunk(4))
        return found, sum(mean_squares(whole(x), y).item() / 4 for x, y in parts)

    ((found, expected),) = worlds(1).run(step)
    assert found == pytest.approx(expected, rel=1e-12)


# --- what is refused


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (
            (8, D),
            (4, D),
            r"The inputs have shape \[8, 4\] and the targets \[4, 4\], but their first dim",
        ),
        ((0, D), (0, D), r"The batch is empty: the inputs have shape \[0, 4\]"),
        (
            (6, D),
            (6, D),
            "Dim 0 of the inputs has 6 entries; 4 microbatches cannot share them equally",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_on_every_rank(worlds, inputs, targets, words):
    """Case 12: before anything is computed or sent."""

    def step():
        pipeline = Pipeline(model(), schedules.gpipe(2, 4), loss=mean_squares)
        with pytest.raises(ValueError, match=words):
            pipeline.step(torch.ones(inputs).double(), torch.ones(targets).double())
        return pipeline.step(X, Y).item()

    assert len(set(worlds(2).run(step))) == 1


def test_a_stream_that_does_not_fit_is_refused_on_every_rank(worlds):
    """Case 12: the stream of an asynchronous pipeline likewise."""

    def run():
        whole = nn.Sequential(*(nn.Linear(D, D).double() for _ in range(2)))
        pipe = PipeDream(whole, schedules.pipedream(2, 4), lambda w: torch.optim.SGD(w, 0.1),
                         loss=mean_squares)  # fmt: skip
        for rows, wanted, words in ((8, 4, "their first 2 dims"), (0, 0, "The batch is empty")):
            with pytest.raises(ValueError, match=words):
                pipe.run(torch.ones(4, rows, D).double(), torch.ones(4, wanted, D).double())

    worlds(2).run(run)


def test_sparse_gradients_that_would_be_summed_are_refused(worlds):
    """Case 11: by name, when the pipeline is built; without replicas they are the optimizer's."""

    def build(replicas):
        grid = mesh(dp=2, pp=2)
        whole = nn.Sequential(nn.Embedding(9, D, sparse=True), nn.Linear(D, D))
        pipeline = Pipeline(whole, schedules.gpipe(2, 4), grid["pp"].group, loss=mean_squares,
                            replicas=grid["dp"].group if replicas else None)  # fmt: skip
        pipeline.step(torch.arange(8), torch.ones(8, D))
        return [p.grad.is_sparse for p in pipeline.parameters()]

    assert worlds(4).run(build, False) == [[True], [False, False]] * 2
    with pytest.raises(RankError, match="0 has a sparse gradient"):
        worlds(4).run(build, True)


def groups_after_each_of_three_pipelines():
    """Count groups where messages of a pair wait for one another, as on NCCL."""
    plain, pipes.one_at_a_time = pipes.one_at_a_time, lambda group: True
    try:
        counts = []
        for _ in range(3):
            Pipeline(model(), schedules.gpipe(2, 2), loss=mean_squares).step(X, Y)
            counts.append(len(dist.distributed_c10d._world.pg_map))
        return counts
    finally:
        pipes.one_at_a_time = plain


def test_all_pipelines_of_a_group_share_the_groups_of_their_messages(worlds):
    for first, *later in worlds(2).run(groups_after_each_of_three_pipelines):
        assert later == [first, first]
