"""Groups that only their members make: they meet under one name, whatever else each rank made."""

import pytest
import torch
import torch.distributed as dist

from lib.ranks import RankError
from lib.ranks.mesh import mesh


def pair(*members):
    """Give the group of these ranks, made by them alone; None elsewhere."""
    return dist.new_group(list(members), use_local_synchronization=True)


def summed(group):
    number = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(number, group=group)
    return number.item()


def after_groups_that_only_some_ranks_made():
    rank = dist.get_rank()
    sums = []
    for members in ((0, 1), (1, 2), (2, 3), (0, 3)):  # rank 1 has made one more than rank 2
        if rank in members:
            sums.append(summed(pair(*members)))
    whole = pair(0, 1, 2, 3)
    return sums, summed(whole)


def test_groups_that_some_ranks_made_do_not_rename_those_of_others(worlds):
    answers = worlds(4).run(after_groups_that_only_some_ranks_made)
    pairs = [sums for sums, _ in answers]
    assert pairs == [[3.0, 5.0], [3.0, 5.0], [5.0, 7.0], [7.0, 5.0]]
    assert [whole for _, whole in answers] == [10.0] * 4


def one_pair_again_and_again(destroy):
    group, sums, names = None, [], []
    for _ in range(4):
        if group is not None and destroy:
            dist.destroy_process_group(group)
        group = pair(0, 1)
        names.append(group.group_name)
        sums.append(summed(group))
    return sums, len(set(names))


@pytest.mark.parametrize("destroy", [False, True])
def test_each_group_of_the_same_members_has_a_name_of_its_own(worlds, destroy):
    """A name that is used again would find what the first group left in the store."""
    assert worlds(2).run(one_pair_again_and_again, destroy) == [([3.0] * 4, 4)] * 2


def meshes_after_one_rank_made_a_group():
    if dist.get_rank() < 2:
        pair(0, 1)
    m = mesh(dp=2, tp=2)
    return [summed(m[name].group) for name in ("dp", "tp")]


def test_a_mesh_meets_after_groups_that_only_some_ranks_made(worlds):
    assert worlds(4).run(meshes_after_one_rank_made_a_group) == [[4, 3], [6, 3], [4, 7], [6, 7]]


def fails_on_one_rank():
    if dist.get_rank() == 1:
        pair(1)
        raise ValueError("rank 1 stops here")
    dist.barrier()


def test_names_begin_anew_in_the_world_after_a_failure(worlds):
    """The rank that failed had made one group more; afterwards all meet again."""
    with pytest.raises(Exception, match="rank 1 stops here"):
        worlds(4).run(fails_on_one_rank)
    assert [whole for _, whole in worlds(4).run(after_groups_that_only_some_ranks_made)] == [10] * 4


def split_twice():
    halves = dist.split_group(split_ranks=[[0, 2], [3, 1]])
    last = dist.split_group(halves, [[1]], group_desc="last")
    return summed(halves), last and (summed(last), str(last))


def test_a_group_is_split_by_places_in_it(worlds):
    answers = worlds(4).run(split_twice)
    assert [half for half, _ in answers] == [4.0, 6.0, 4.0, 6.0]
    ends = [(3.0, "<group last of ranks [2]>"), (4.0, "<group last of ranks [3]>")]
    assert [last for _, last in answers] == [None, None, *ends]


def split_the_world(ranks):
    dist.split_group(split_ranks=ranks)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([], "none of them empty and no rank in two"),
        ([[0], []], "none of them empty and no rank in two"),
        ([[0, 1], [1]], "none of them empty and no rank in two"),
        ([[2, 3]], r"from 0 to 1, not \[\[2, 3\]\]. dist.new_group takes the ranks"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(worlds, split, words):
    with pytest.raises(RankError, match=words):
        worlds(2).run(split_the_world, split)
