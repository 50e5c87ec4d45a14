"""GPU tensors through gloo by way of copies; the board forgets groups that were left."""

import torch
import torch.distributed as dist

from lib.ranks import observe, staging
from lib.ranks.board import GROUPS, Board


def every_operation(staged):
    """Run each operation; with `staged`, pretend that its tensors lie where gloo cannot reach."""
    if staged:
        observe.elsewhere = staging.elsewhere = lambda tensor: True
        dist.group.WORLD.staged = True
    try:
        return _every_operation()
    finally:
        dist.group.WORLD.staged = False
        observe.elsewhere = staging.elsewhere = lambda tensor: tensor.device.type != "cpu"


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


def test_one_tensor_has_one_copy(monkeypatch):
    monkeypatch.setattr(staging, "elsewhere", lambda tensor: True)
    tensor = torch.ones(2)
    call = staging.Staged(lambda out, given: out.add_(given), (tensor, tensor), [tensor])
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
    assert worlds(2).run(many_groups, 30) == [2.0, 2.0]
    kept = worlds(2)._crew.board.counts(0)
    assert len([count for count in kept.values() if count.name.startswith("0>1 ranks")]) == 0


def test_the_board_stays_without_holes(tmp_path):
    board = Board(str(tmp_path / "board"), 1, create=True)
    for tag in range(1, GROUPS + 1):
        board.count(0, tag, tag, (0,), f"group {tag}")
    for tag in (1, 500, GROUPS):
        board.free(0, tag)
    left = set(range(1, GROUPS + 1)) - {1, 500, GROUPS}
    assert {t: c.launches for t, c in board.counts(0).items()} == {t: t for t in left}
    for tag in (5000, 5001, 5002):
        board.count(0, tag, 7, (0,), "new")
    assert set(board.counts(0)) == left | {5000, 5001, 5002}
