"""A mesh: who sits where, who talks to whom, and groups that are made once."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.ranks import RankError
from lib.ranks.mesh import Layout, mesh
from tests.every import every

# On paper


@pytest.mark.parametrize("axes", [{"dp": 4}, {"dp": 2, "tp": 4}, {"pp": 2, "dp": 3, "tp": 2}])
def test_the_first_axis_varies_slowest_as_numpy_has_it(axes):
    layout = Layout(**axes)
    grid = torch.arange(layout.size).view(*axes.values())
    for rank in range(layout.size):
        place = layout.place(rank)
        assert list(place) == list(axes) and layout.rank_at(**place) == rank
        assert grid[tuple(place.values())] == rank
        for dim, name in enumerate(axes):
            at = [*place.values()]
            at[dim] = slice(None)
            assert layout.line(name, rank) == tuple(grid[tuple(at)].tolist())


def test_lines_over_several_axes_cut_the_ranks_into_groups():
    layout = Layout(pp=2, dp=2, tp=2)
    assert layout.line(("pp", "tp"), 3) == (2, 3, 6, 7)
    assert layout.line(("dp", "tp"), 6) == (4, 5, 6, 7)
    assert layout.line(("pp", "dp", "tp"), 5) == tuple(range(8))
    assert layout.line((), 5) == (5,)


def test_a_mesh_prints_as_a_table_of_ranks():
    assert repr(Layout(dp=2, tp=4)) == "dp=2 × tp=4"
    assert str(Layout(pp=2, dp=2, tp=2)) == (
        "pp  dp  tp=0  tp=1\n"
        " 0   0     0     1\n"
        " 0   1     2     3\n"
        " 1   0     4     5\n"
        " 1   1     6     7"
    )
    assert str(Layout(dp=3)) == "dp=0  dp=1  dp=2\n   0     1     2"


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "A mesh needs an axis: mesh\\(dp=4\\)"),
        ({"dp": 0}, "Axis dp has size 0: it must be 1 or more"),
        ({"dp": 2, "tp": -2}, "Axis tp has size -2"),
        ({"dp": 2.0}, "Axis dp has size 2.0"),
        ({"dp": True}, "Axis dp has size True"),
    ],
)
def test_sizes_that_are_none(axes, said):
    with pytest.raises(ValueError, match=said):
        Layout(**axes)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: m.place(8), "There is no rank 8: a mesh of dp=2 × tp=4 has ranks 0 to 7"),
        (lambda m: m.rank_at(dp=0), "Give a coordinate for each axis: dp, tp"),
        (lambda m: m.rank_at(dp=0, tp=4), "Axis tp ends at 3, and tp=4 was asked for"),
        (lambda m: m.line("pp", 0), "This mesh has no axis 'pp': it has dp, tp"),
    ],
)
def test_places_that_are_not_there(ask, said):
    with pytest.raises((ValueError, KeyError)) as raised:
        ask(Layout(dp=2, tp=4))
    assert said in str(raised.value)


def test_in_the_notebook_itself_there_is_no_rank():
    with pytest.raises(RuntimeError, match="mesh\\(dp=2 × tp=2\\) is for a rank: call it inside"):
        mesh(dp=2, tp=2)


# On ranks


def who(axes, *names):
    m = mesh(**axes)
    found = {}
    for name in names or axes:
        axis = m[name]
        gathered = torch.zeros(axis.size, dtype=torch.int64)
        dist.all_gather_single(gathered, torch.tensor([m.rank]), group=axis.group)
        found[name] = (axis.name, axis.ranks, axis.rank, axis.size, tuple(gathered.tolist()))
    return m.rank, m.coordinates, str(m), found


@pytest.mark.parametrize(
    ("n", "axes"),
    [(1, {"dp": 1}), (2, {"dp": 2}), (2, {"dp": 1, "tp": 2}), (4, {"dp": 2, "tp": 2}),
     (4, {"tp": 4}), (8, {"pp": 2, "dp": 2, "tp": 2}), (8, {"dp": 2, "tp": 4})],
)  # fmt: skip
def test_each_group_joins_the_ranks_of_its_line(worlds, n, axes):
    layout = Layout(**axes)
    for rank, (me, place, text, found) in enumerate(worlds(n).run(who, axes)):
        assert (me, place, text) == (rank, layout.place(rank), str(layout))
        for name, size in axes.items():
            line = layout.line(name, rank)
            assert found[name] == (name, line, line.index(rank), size, line)


def test_axes_taken_together_are_one_group(worlds):
    axes = {"pp": 2, "dp": 2, "tp": 2}
    for rank, answer in enumerate(worlds(8).run(who, axes, ("pp", "dp"), ("tp", "dp"))):
        found = answer[3]
        line = Layout(**axes).line(("pp", "dp"), rank)
        assert found["pp", "dp"] == ("pp,dp", line, line.index(rank), 4, line)
        assert found["tp", "dp"][0] == "dp,tp"  # the mesh's own order, however it is asked for


def sums(axes, name):
    dist.all_reduce(torch.ones(3), group=mesh(**axes)[name].group)


@pytest.mark.parametrize("name", ["dp", "tp", ("dp", "tp")])
def test_the_ledger_calls_a_group_by_its_axis(worlds, name):
    ledger = worlds(4).record(sums, {"dp": 2, "tp": 2}, name)
    rows = list(ledger.where(lane="comm", op="all_reduce"))
    called = name if isinstance(name, str) else ",".join(name)
    assert len(rows) == 4 and {row.group for row in rows} == {called}
    assert every(row.members == Layout(dp=2, tp=2).line(name, row.rank) for row in rows)


def groups_of(axes):
    return [mesh(**axes)[name].group for name in axes]


def made_twice():
    made, real = [], dist.new_group
    dist.new_group = lambda *args, **kwargs: made.append(args[0]) or real(*args, **kwargs)
    try:
        first, second = groups_of({"a": 2, "b": 2}), groups_of({"a": 2, "b": 2})
        third = groups_of({"a": 2, "c": 2})
    finally:
        dist.new_group = real
    shared = [a is b for a, b in zip(first, second)], third[0] is first[0], third[1] is first[1]
    return len(made), *shared


def test_groups_are_made_once(worlds):
    assert worlds(4).run(made_twice) == [(3, [True, True], True, False)] * 4


kept = {}  # on each rank, from one call to the next


def keep():
    kept["mesh"] = mesh(dp=2, tp=2)
    kept["group"] = kept["mesh"]["tp"].group


def use_the_old_group():
    dist.all_reduce(torch.ones(1), group=kept["group"])


def use_the_old_mesh():
    dist.all_reduce(torch.ones(1), group=kept["mesh"]["tp"].group)


def rank_1_does_not_come():
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has other plans")
    dist.all_reduce(torch.ones(1))


def test_after_a_failure_a_mesh_has_new_groups(worlds):
    world = worlds(4)
    world.run(keep)
    world.run(use_the_old_group)
    with pytest.raises(RankError, match="rank 1 has other plans"):
        world.run(rank_1_does_not_come)
    with pytest.raises(RankError, match="group tp is closed.*Build again what holds it"):
        world.run(use_the_old_group)
    world.run(use_the_old_mesh)  # asked for its axis again, it gives a group that works
    answers = world.run(who, {"dp": 2, "tp": 2})
    assert [answer[3]["tp"][1] for answer in answers] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def destroyed():
    dist.destroy_process_group(mesh(dp=2, tp=2)["tp"].group)
    sums({"dp": 2, "tp": 2}, "tp")


def test_a_group_that_was_destroyed_is_made_anew(worlds):
    worlds(4).run(destroyed)


def of_three(axes):
    mesh(**axes)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"dp": 2, "tp": 3}, "A mesh of dp=2 × tp=3 has 6 ranks, and the world has 4: "
                             "choose sizes that multiply to 4"),
        ({"dp": 2}, "A mesh of dp=2 has 2 ranks, and the world has 4"),
        ({"dp": 4, "tp": 0}, "Axis tp has size 0"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_multiply_to_the_world_are_refused(worlds, axes, said):
    with pytest.raises(RankError) as raised:
        worlds(4).run(of_three, axes)
    assert said in str(raised.value)


def missing_axis():
    mesh(dp=2, tp=2)["pp"]


def test_an_axis_that_is_not_there_is_named(worlds):
    with pytest.raises(RankError, match="This mesh has no axis 'pp': it has dp, tp"):
        worlds(4).run(missing_axis)


# As PyTorch's DeviceMesh


def tensor_parallel(axes):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    want = model(x)
    m = mesh(**axes)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    there = m.torch()
    spread = parallelize_module(model, there["tp"] if len(axes) > 1 else there, plan)
    same = [*there.get_coordinate()] == [*m.coordinates.values()]
    return same and there.mesh_dim_names == tuple(axes), (spread(x) - want).abs().max().item()


@pytest.mark.parametrize(("n", "axes"), [(2, {"tp": 2}), (4, {"dp": 2, "tp": 2}), (4, {"tp": 4})])
def test_dtensor_runs_on_the_same_groups(worlds, n, axes):
    ledger = worlds(n).record(tensor_parallel, axes)
    same, errors = zip(*ledger.results, strict=True)
    assert all(same) and max(errors) < 1e-14
    rows = ledger.where(lane="comm", op="all_reduce")
    assert len(rows) == n and {row.group for row in rows} == {"tp"}
    assert every(row.members == Layout(**axes).line("tp", row.rank) for row in rows)
