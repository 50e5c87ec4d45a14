"""GPU tensors through gloo by way of copies; the board forgets groups that were left."""

import torch
import torch.distributed as dist

from lib.ranks.observed import gpu_staging, observed_group
from lib.ranks.shared.notice_board import GROUPS, NoticeBoard


def every_operation(staged):
    """Run each operation; with `staged`, pretend that its tensors lie where gloo cannot reach."""
    if staged:
        observed_group.elsewhere = gpu_staging.elsewhere = lambda tensor: True
        dist.group.WORLD.staged = True
    try:
        return _every_operation()
    finally:
        dist.group.WORLD.staged = False
        observed_group.elsewhere = gpu_staging.elsewhere = lambda tensor: (
            tensor.device.type != "cpu"
        )


def _every_operation():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, found = torch.arange(4.0) + 10 * rank, {}

    def out(name, *shape):
        found[name] = torch.full(shape, -1.0)
        return found[name]

    dist.all_gather_single(out("all_gather", 4 * n), mine)
    dist.reduce_scatter_single(out("reduce_scatter", 2), mine.repeat(n // 2))
    dist.all_to_all_single(out("all_to_all", 4), mine)
    reduced = out("reduce", 4).copy_(mine)
    dist.reduce(reduced, 1)
    found["reduce"] = reduced if rank == 1 else None
    parts = [out(f"gather {r}", 4) for r in range(n)]
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    dist.scatter(out("scatter", 2), list(mine.view(2, 2)) * (n // 2) if rank == 2 else None, src=2)
    works = [dist.isend(mine, (rank + 1) % n), dist.irecv(out("ring", 4), (rank - 1) % n)]
    for work in works:
        work.wait()
    return found


def test_every_operation_gives_the_same_by_way_of_copies(worlds):
    for plain, staged in zip(*(worlds(4).run(every_operation, s) for s in (False, True))):
        assert plain.keys() == staged.keys()
        for name, tensor in plain.items():
            assert torch.equal(tensor, staged[name]) if tensor is not None else True, name


def through_a_future():
    """Take the future of an all-reduce by way of copies, as DDP's C++ part does; never wait."""
    observed_group.elsewhere = gpu_staging.elsewhere = lambda tensor: True
    dist.group.WORLD.staged = True
    try:
        x = torch.ones(4)
        (value,) = dist.all_reduce(x, async_op=True).get_future().wait()
        return x.tolist(), value.data_ptr() == x.data_ptr()
    finally:
        dist.group.WORLD.staged = False
        observed_group.elsewhere = gpu_staging.elsewhere = lambda tensor: (
            tensor.device.type != "cpu"
        )


def test_futures_are_complete_once_the_results_are_home(worlds):
    assert worlds(2).run(through_a_future) == [([2.0] * 4, True)] * 2


def test_one_tensor_has_one_copy(monkeypatch):
    monkeypatch.setattr(gpu_staging, "elsewhere", lambda tensor: True)
    tensor = torch.ones(2)
    call = gpu_staging.Staged(lambda out, given: out.add_(given), (tensor, tensor), [tensor])
    call()
    assert tensor.tolist() == [1.0, 1.0]
    call.finish()
    assert tensor.tolist() == [2.0, 2.0]


# The board forgets groups that were left.


def many_groups(count):
    for _ in range(count):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        dist.send(torch.ones(1), 1, group) if dist.get_rank() == 0 else dist.recv(
            torch.ones(1), 0, group
        )
        dist.destroy_process_group(group)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_groups_that_were_left_make_room_for_others(worlds):
    board = worlds(2)._processes.board
    before = board.counts(0).keys()  # of groups that other tests have made
    assert worlds(2).run(many_groups, 30) == [2.0, 2.0]
    kept = [count for tag, count in board.counts(0).items() if tag not in before]
    assert not [count.name for count in kept if count.name.startswith("0>1 ranks")]


def test_the_board_stays_without_holes(tmp_path):
    board = NoticeBoard(str(tmp_path / "board"), 1, create=True)
    for tag in range(1, GROUPS + 1):
        board.count(0, tag, tag, (0,), f"group {tag}")
    for tag in (1, 500, GROUPS):
        board.free(0, tag)
    left = set(range(1, GROUPS + 1)) - {1, 500, GROUPS}
    assert {t: c.launches for t, c in board.counts(0).items()} == {t: t for t in left}
    for tag in (5000, 5001, 5002):
        board.count(0, tag, 7, (0,), "new")
    assert set(board.counts(0)) == left | {5000, 5001, 5002}
