"""Where a World runs: free GPUs if there are enough, else the CPU; what it says and refuses."""

import pytest

from lib import World
from lib.ranks.gpus import devices
from lib.ranks.gpus.placement import Placement, choose
from lib.ranks.slow_motion import SlowMotion

SPEEDS = SlowMotion("H100", factor=1e5)


def placed(size, **wish):
    """Where a World would run, as it says itself."""
    return str(choose(size, **wish))


def test_gpus_where_enough_are_free_else_the_cpu(machine):
    machine(0)
    assert placed(1) == placed(4) == "on the CPU, gloo"
    machine(1)
    assert placed(1) == "on cuda:0, NCCL"
    assert placed(4) == "on the CPU, gloo (this machine has 1 GPU)"
    machine(4)
    assert [placed(1), placed(2), placed(4)] == [
        f"on cuda:{numbers}, NCCL" for numbers in ("0", "0–1", "0–3")
    ]
    assert placed(5) == "on the CPU, gloo (this machine has 4 GPUs)"
    assert placed(4, device="cpu") == placed(4, backend="gloo") == "on the CPU, gloo"


def test_another_world_gets_other_gpus_until_the_first_has_gone(machine, capsys):
    machine(8)
    first, second = choose(4), choose(3)
    assert (first.gpus, second.gpus) == ((0, 1, 2, 3), (4, 5, 6))
    third = choose(2)
    assert str(third) == "on the CPU, gloo (1 of 8 GPUs are free)"
    assert third.note == (
        "World(2) runs on the CPU, since 1 of 8 GPUs are free: cuda:0–6 (held by another World). "
        "World(2, device='cuda') shares them."
    )
    assert choose(1).gpus == (7,)
    first.release()
    first.release()
    assert choose(4).gpus == (0, 1, 2, 3)
    assert not choose(4).note


def test_gpus_that_others_use_are_left_to_them(machine):
    machine(4, used=[0.5, 0.01, 0.1, 0.09])
    assert placed(2) == "on cuda:1, 3, NCCL"
    alone = choose(3)
    assert str(alone) == "on the CPU, gloo (2 of 4 GPUs are free)"
    assert "cuda:0 (50 % of the memory in use), cuda:2 (10 % of the memory in use)" in alone.note


def test_who_asks_for_gpus_shares_them_and_is_told(machine):
    machine(4, used=[0.5, 0, 0.2, 0])
    holder = choose(1)
    assert holder.gpus == (1,)
    three = choose(3, device="cuda")
    assert str(three) == "on cuda:1–3, NCCL"  # the emptiest of those in use
    assert three.note == (
        "World(3, device='cuda') shares cuda:1 (held by another World), "
        "cuda:2 (20 % of the memory in use)."
    )
    holder.release()
    three.release()
    two = choose(2, backend="nccl")
    assert (two.gpus, two.note) == ((1, 3), "")


def test_a_shared_gpu_stays_taken_when_its_first_world_has_gone(machine):
    machine(1)
    first = choose(1)
    second = choose(1, device="cuda")
    first.release()
    assert choose(1).device == "cpu"
    second.release()
    assert choose(1).device == "cuda"


def test_ranks_take_shares_of_a_gpu_by_its_own_number(machine, monkeypatch):
    machine(8)  # two GPUs that each stand for four
    monkeypatch.setenv("RANKS_GPU_SHARES", "4")
    eight = choose(8)
    assert str(eight) == "on cuda:0–7, NCCL"
    assert [eight.gpu_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_numbers_can_be_chosen(machine):
    machine(8, used=[0, 0, 0, 0, 0, 0.7])
    chosen = choose(4, gpus=[4, 5, 6, 7])
    assert str(chosen) == "on cuda:4–7, NCCL"
    assert chosen.note == ("World(4, gpus=[4, 5, 6, 7]) shares cuda:5 (70 % of the memory in use).")
    assert [chosen.gpu_of(rank) for rank in range(4)] == [4, 5, 6, 7]
    assert choose(4).gpus == (0, 1, 2, 3)
    backwards = choose(2, gpus=(7, 2), device="cuda")
    assert [backwards.gpu_of(rank) for rank in range(2)] == [7, 2]
    assert str(backwards) == "on cuda:7, 2, NCCL"


def test_ranks_share_gpus_with_gloo(machine):
    machine(1)
    one = choose(4, backend="gloo", device="cuda")
    assert str(one) == "on cuda:0, gloo" and not one.note
    assert [one.gpu_of(rank) for rank in range(4)] == [0] * 4
    one.release()
    assert placed(4, device="cuda") == "on cuda:0, gloo"  # there is no other way
    machine(4)
    two = choose(4, backend="gloo", gpus=[1, 3])
    assert [two.gpu_of(rank) for rank in range(4)] == [1, 3, 1, 3]
    rest = choose(4, backend="gloo", device="cuda")
    assert rest.gpus == (0, 2) and not rest.note  # those that are free
    crowd = choose(3, backend="gloo", device="cuda")
    assert crowd.gpus == (0, 1, 2)
    assert crowd.note.endswith("shares cuda:0–2 (held by another World).")
    assert Placement().gpu_of(3) is None


def test_without_nccl_the_gpus_must_be_asked_for(machine):
    machine(4, own=None)
    assert placed(2) == "on the CPU, gloo (this PyTorch was built without NCCL)"
    assert placed(2, device="cuda") == placed(2, gpus=[0, 1]) == "on cuda:0–1, gloo"
    with pytest.raises(ValueError, match="built without NCCL. Take backend='gloo', device='cuda'"):
        choose(2, backend="nccl")


def test_a_driver_that_shows_no_gpu_means_the_cpu(machine, monkeypatch):
    machine(4)
    monkeypatch.setattr(devices, "visible", lambda _: [])
    assert placed(1) == "on the CPU, gloo (this machine has no working GPU)"
    with pytest.raises(ValueError, match="needs a GPU; this machine has no working GPU"):
        choose(1, device="cuda")


def test_another_accelerator_goes_by_its_own_name_and_backend(machine):
    machine(2, kind="pretend", own="pccl")
    for wish in ({}, {"device": "pretend"}, {"backend": "nccl"}, {"backend": "pccl"}):
        place = choose(2, **wish)
        assert (str(place), place.backend) == ("on pretend:0–1, PCCL", "pccl")
        place.release()
    with pytest.raises(ValueError, match="the GPUs of this machine are 'pretend', not 'cuda'."):
        choose(2, device="cuda")
    with pytest.raises(ValueError, match="the device is 'cpu' or 'pretend', the backend 'gloo' or"):
        choose(2, device="xpu")


def test_the_environment_keeps_every_world_on_the_cpu(machine, monkeypatch):
    machine(4)
    monkeypatch.setenv("RANKS_DEVICE", "cpu")
    assert placed(4) == "on the CPU, gloo (RANKS_DEVICE=cpu is set)"
    assert placed(4, device="cpu") == "on the CPU, gloo"
    for wish in ({"device": "cuda"}, {"backend": "nccl"}, {"gpus": [0, 1, 2, 3]}):
        with pytest.raises(ValueError, match="asks for GPUs, and RANKS_DEVICE=cpu in the environ"):
            choose(4, **wish)
    machine(0)
    assert placed(4) == "on the CPU, gloo"


REFUSED = [
    (2, {"device": "gpu"}, "World(2, device='gpu'): the device is 'cpu' or 'cuda', the backend"),
    (2, {"backend": "mpi"}, "World(2, backend='mpi'): the device is 'cpu' or 'cuda', the backend"),
    (2, {"device": "cpu", "backend": "nccl"}, "NCCL carries data between GPUs alone. Take World("),
    (2, {"device": "cpu", "gpus": [0, 1]}, "CPU ranks take no GPU. Leave out device='cpu', or"),
    (5, {"backend": "nccl"}, "needs a GPU for each rank; this machine has 4 GPUs. Take World(5, "),
    (5, {"backend": "nccl"}, "'cpu'), World(4), or World(5, backend='gloo', device='cuda')."),
    (2, {"gpus": []}, "gpus is a list of GPU numbers, such as gpus=[4, 5, 6, 7]."),
    (2, {"gpus": 2}, "gpus is a list of GPU numbers"),
    (2, {"gpus": "01"}, "gpus is a list of GPU numbers"),
    (2, {"gpus": [0, True]}, "gpus is a list of GPU numbers"),
    (2, {"gpus": [0, 1.0]}, "gpus is a list of GPU numbers"),
    (3, {"gpus": [0, 2, 0]}, "World(3, gpus=[0, 2, 0]) names GPU 0 more than once."),
    (2, {"gpus": [3, 4]}, "names GPU 4; this machine has 4 GPUs, numbered 0 to 3."),
    (2, {"gpus": [-1, 9]}, "names GPUs -1, 9; this machine has 4 GPUs"),
    (2, {"gpus": [0, 1, 2]}, "World(2, gpus=[0, 1, 2]) names 3 GPUs for 2 ranks: name 2."),
    (1, {"gpus": [0, 1]}, "names 2 GPUs for 1 rank: name 1."),
    (4, {"gpus": [0, 1]}, "names 2 GPUs for 4 ranks, and each rank needs one of its own with NCCL"),
    (4, {"gpus": [0, 1]}, "share GPUs: World(4, backend='gloo', device='cuda', gpus=[0, 1])."),
    (2, {"device": "cuda", "slow_motion": SPEEDS}, "slow motion stretches the time of CPU ranks"),
    (2, {"gpus": [0, 1], "slow_motion": SPEEDS}, "no GPU. Take World(2, slow_motion=...)."),
    (2, {"backend": "nccl", "slow_motion": SPEEDS}, "slow motion stretches the time of CPU ranks"),
]


@pytest.mark.parametrize(("size", "wish", "said"), REFUSED)
def test_wishes_that_cannot_be_granted(machine, size, wish, said):
    machine(4)
    with pytest.raises(ValueError) as error:
        World(size, **wish)
    assert said in str(error.value) and str(error.value).endswith(".")
    assert len(choose(4).gpus) == 4  # it took nothing


@pytest.mark.parametrize("wish", [{"device": "cuda"}, {"backend": "nccl"}, {"gpus": [0, 1]}])
def test_gpus_on_a_machine_without_any(machine, wish):
    machine(0)
    with pytest.raises(ValueError, match=r"needs a GPU.*; this machine has no GPU for PyTorch. T"):
        World(2, **wish)
