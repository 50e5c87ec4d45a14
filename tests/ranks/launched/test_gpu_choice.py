"""Which GPU each rank of a launched world takes, from what the ranks see; no GPU is needed."""

import threading
import time

import pytest
import torch.distributed as dist

from lib.ranks.launched import gpu_choice
from lib.ranks.launched.gpu_choice import Sight, assign, exchange, shortage

ALL = ["A", "B", "C", "D"]


def on(host, *seen, locals_=True, promised=False):
    """Ranks of one host, each with the GPUs that it sees."""
    return [Sight(host, i if locals_ else None, list(gpus), promised)
            for i, gpus in enumerate(seen)]  # fmt: skip


@pytest.mark.parametrize(
    ("sights", "expected"),
    [
        (on("h", ALL, ALL, ALL, ALL), [0, 1, 2, 3]),  # torchrun: all see all
        (on("h", ALL, ALL), [0, 1]),
        (on("h", ALL, ALL, ALL, locals_=False), [0, 1, 2]),  # started by hand, without LOCAL_RANK
        (on("h", "A", "B", "C", "D"), [0, 0, 0, 0]),  # --gpus-per-task: each sees its own as 0
        (on("h", "BA", "BA"), [0, 1]),  # CUDA_VISIBLE_DEVICES turns them round
        (on("h", "AB", "CD"), [0, 0]),  # --gpus-per-task=2
        (on("h", ALL, ALL) + on("k", "EF", "EF"), [0, 1, 0, 1]),
        (on("h", "A") + on("k", "B"), [0, 0]),
        ([Sight("h", 1, ALL), Sight("h", 0, ALL)], [1, 0]),  # the launcher's own order
        (on("h", "A", "A"), [0, None]),  # one GPU for two
        (on("h", ALL, ALL) + on("k", "E", "E"), [0, 1, 0, None]),
        (on("h", "", ""), [None, None]),
    ],
)
def test_each_rank_takes_a_gpu_of_its_own(sights, expected):
    assert assign(sights) == expected
    taken = [s.gpus[n] for s, n in zip(sights, expected, strict=True) if n is not None]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize(
    ("sights", "said"),
    [
        (on("h/boot", "A", "A"),
         "Rank 1 finds no GPU of its own on host h: it sees 1 GPU, and 2 of the 2 "
         "ranks run there."),
        (on("h", ALL, ALL) + on("k", "E", "E"),
         "Rank 3 finds no GPU of its own on host k: it sees 1 GPU, and 2 of the 4 "
         "ranks run there."),
        (on("h", ALL) + on("k", ""),
         "Rank 1 finds no GPU of its own on host k: it sees 0 GPUs, and 1 of the 2 "
         "ranks run there."),
        (on("h", "", promised=True), "Rank 0 finds no GPU of its own on host h: it sees 0 GPUs"),
    ],
)  # fmt: skip
def test_a_shortage_is_told_with_its_host(sights, said):
    text = shortage(sights)
    assert said in text and text.endswith("--gpus-per-task=1).")


def test_where_nothing_speaks_of_gpus_there_is_nothing_to_tell():
    assert shortage(on("h", "", "")) is None
    assert shortage(on("h", ALL, ALL)) is None


class Late:
    """A store that this rank reads late."""

    def __init__(self, store, read):
        self.set, self.store, self.read = store.set, store, read

    def multi_get(self, keys):
        time.sleep(0.3)
        self.read.set()
        return self.store.multi_get(keys)


def test_rank_0_keeps_its_store_until_all_have_read(monkeypatch):
    """Rank 0 may end with an error right after: the others would say that they lost the store."""
    monkeypatch.setattr(gpu_choice, "_look", lambda local: on("host", "A")[0])
    store, read = dist.HashStore(), threading.Event()
    other = threading.Thread(target=exchange, args=(Late(store, read), 1, 2, 1))
    other.start()
    exchange(store, 0, 2, 0)
    assert read.is_set()
    other.join()
