"""The store in which ranks meet does what PyTorch's own stores do, by itself and under a prefix."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from lib.ranks.groups.store import FolderStore

SECOND = datetime.timedelta(seconds=1)


@pytest.fixture(params=["itself", "under a prefix", "its clone", "PyTorch's own"])
def store(request, tmp_path):
    """Our store in each of its forms; PyTorch's HashStore shows that the tests ask for no more."""
    ours = FolderStore(str(tmp_path / "store"))
    made = {
        "itself": lambda: ours,
        "under a prefix": lambda: dist.PrefixStore("here", ours),
        "its clone": lambda: dist.PrefixStore("here", ours).clone(),
        "PyTorch's own": dist.HashStore,
    }[request.param]()
    yield made
    assert ours.folder


def test_values_are_kept_counted_and_forgotten(store):
    store.set("a", "1")
    store.set("b", b"\x00\xff")
    assert (store.get("a"), store.get("b")) == (b"1", b"\x00\xff")
    before = store.num_keys()
    assert store.delete_key("a") and not store.delete_key("a")
    assert store.num_keys() == before - 1
    assert store.check(["b"]) and not store.check(["a"]) and not store.check(["a", "b"])


def test_numbers_are_added_and_values_compared(store):
    assert [store.add("n", 2), store.add("n", -1)] == [2, 1]
    assert store.compare_set("c", "", "new") == b"new"
    assert store.compare_set("c", "other", "newer") == b"new"
    assert store.compare_set("c", "new", "newer") == b"newer" == store.get("c")


def test_many_keys_at_once(store):
    store.append("log", "x")
    store.append("log", "yz")
    store.multi_set(["k1", "k2"], ["1", "2"])
    assert store.multi_get(["k1", "k2", "log"]) == [b"1", b"2", b"xyz"]


def test_a_wait_ends_at_its_time_limit(store):
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="(?i)time"):
        store.wait(["nobody sets it"], 0.3 * SECOND)
    assert 0.2 < time.monotonic() - began < 5


def test_a_time_limit_of_the_store_holds_for_get(store):
    store.set_timeout(0.3 * SECOND)
    with pytest.raises(RuntimeError, match="(?i)time"):
        store.get("nobody sets it")


def test_a_wait_ends_when_the_key_comes(store):
    threading.Timer(0.1, store.set, ("late", "1")).start()
    store.wait(["late"], 20 * SECOND)
    assert store.get("late") == b"1"


def test_a_wait_is_ended_in_a_clone_too(tmp_path):
    store = FolderStore(str(tmp_path / "store"))
    clone = dist.PrefixStore("group", store).clone()
    threading.Timer(0.1, store.stop).start()
    with pytest.raises(RuntimeError, match="stopped while it waited for the others"):
        clone.wait(["nobody sets it"])


def test_without_a_limit_a_wait_that_runs_out_names_what_is_missing(tmp_path):
    store = FolderStore(str(tmp_path / "store"))
    store.set("a", "1")
    with pytest.raises(dist.DistStoreError, match="waited 0.2 s for b, c in the store"):
        store.wait(["a", "b", "c"], 0.2 * SECOND)


# On ranks


def in_the_worlds_store():
    """What a reader does with the store of the world: count, wait, write down who was there."""
    store, rank = distributed_c10d._get_default_store(), dist.get_rank()
    store.append("order", f"{rank} ")
    store.multi_set([f"of {rank}", f"too {rank}"], [str(rank), "x"])
    store.wait([f"too {other}" for other in range(dist.get_world_size())], 20 * SECOND)
    distributed_c10d._store_based_barrier(
        rank, store, "reader's", dist.get_world_size(), 30 * SECOND
    )
    values = store.multi_get([f"of {other}" for other in range(dist.get_world_size())])
    return sorted(store.get("order").split()), values, store.clone().get("of 0")


def test_ranks_meet_in_the_worlds_store(worlds):
    size = 4
    ranks = [str(rank).encode() for rank in range(size)]
    assert worlds(size).run(in_the_worlds_store) == [(ranks, ranks, b"0")] * size


def a_key_that_never_comes():
    distributed_c10d._get_default_store().wait(["never"], 0.3 * SECOND)


def test_a_wait_in_the_worlds_store_ends_at_its_limit(worlds):
    with pytest.raises(Exception, match="waited 0.3 s for .*never in the store"):
        worlds(2).run(a_key_that_never_comes)
    assert worlds(2).run(dist.get_rank) == [0, 1]


def control_collectives():
    from torch._C._distributed_c10d import _StoreCollectives

    rank, size = dist.get_rank(), dist.get_world_size()
    whole = _StoreCollectives(distributed_c10d._get_default_store(), rank, size)
    whole.barrier("together", 20 * SECOND, True)
    return whole.all_sum("sum", rank + 1, 20 * SECOND)


def test_pytorchs_collectives_over_a_store_work_on_it(worlds):
    assert worlds(4).run(control_collectives) == [10] * 4


def monitored(late=None, sleeps=0, seconds=20):
    if dist.get_rank() == late:
        time.sleep(sleeps)
    if dist.get_rank() != late or sleeps:
        dist.monitored_barrier(timeout=seconds * SECOND)
    return torch.ones(1).item()


def test_a_monitored_barrier_lets_all_through(worlds):
    assert worlds(4, device="cpu").run(monitored) == [1.0] * 4
    rows = list(worlds(2, device="cpu").record(monitored, 1, 0.3).where(lane="comm"))
    assert [(row.op, row.end - row.start > 0.2) for row in rows if row.rank == 0] == [
        ("barrier", True)
    ]


def test_a_monitored_barrier_names_who_is_late(worlds):
    with pytest.raises(Exception, match="Rank 1 failed to pass monitoredBarrier in 1000 ms"):
        worlds(2, device="cpu").run(monitored, 1, 4, 1)
    assert worlds(2, device="cpu").run(monitored) == [1.0] * 2


def test_a_monitored_barrier_to_which_a_rank_cannot_come_any_more_ends_at_once(worlds):
    began = time.monotonic()
    with pytest.raises(Exception, match="rank 0 waits in monitored_barrier") as raised:
        worlds(2, device="cpu").run(monitored, 1)
    assert "nothing: it has not come" in str(raised.value) and time.monotonic() - began < 10
    assert worlds(2, device="cpu").run(monitored) == [1.0] * 2


def backends():
    group = dist.new_group([0, 1], backend=dist.get_backend())
    return dist.get_backend(), dist.get_backend(group), type(group).__name__


def test_the_backend_of_a_world_is_named_and_can_be_asked_for(worlds):
    name = worlds(2).backend
    assert worlds(2).run(backends) == [(name, name, "ObservedGroup")] * 2


def exchanged_with_gradients():
    """PyTorch's differentiable all_to_all, which takes another way where the backend is gloo."""
    from torch.distributed.nn.functional import all_to_all

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [torch.full((2,), float(10 * rank + to), requires_grad=True) for to in range(size)]
    received = all_to_all([torch.empty(2) for _ in range(size)], mine)
    sum((i + 1) * part.sum() for i, part in enumerate(received)).backward()
    return [part[0].item() for part in received], [part.grad[0].item() for part in mine]


def test_pytorchs_differentiable_collectives_know_the_backend(worlds):
    for rank, (received, gradients) in enumerate(worlds(2).run(exchanged_with_gradients)):
        assert received == [rank, 10 + rank] and gradients == [rank + 1] * 2
