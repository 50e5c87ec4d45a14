"""Chapter 3's cache of weights, fused buffers and arena: what is printed and said."""

import pytest
import torch

from lib.course.fsdp import lessons, little_memory, slow_chain
from lib.predict.shape import GPTShape
from lib.predict.sharded.models import model
from lib.predict.sharded.offload import STEP_BYTES, host_speeds
from lib.predict.sharded.offload_step import offloaded_step
from lib.single import Batches
from tests.course.stored_chapter import shown, stored_chapter, text_of

LAYER = lessons.SMALL.nbytes() // 8


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("03-fsdp")


def test_the_cache_trains_the_same_weights_and_holds_what_fits(notebook):
    lines = little_memory.cached(slow_chain.speeds()).splitlines()
    rows = [line.split() for line in lines[1:]]
    assert [(int(row[0]), int(row[2])) for row in rows] == [(2, 0), (4, 2), (8, 8)]
    assert [row[3] for row in rows] == [f"{n * LAYER:,}" for n in (2, 4, 8)]
    assert {row[4] for row in rows} == {"True"}
    for line in lines:
        assert line in shown(notebook, "little_memory.tables")


def test_a_full_cache_takes_as_long_as_zero_offload_and_a_small_one_longer():
    speeds, host = slow_chain.speeds(), host_speeds("H100")
    layer = lessons.LARGE.nbytes() // 8
    whole = offloaded_step(lessons.LARGE, lessons.ROWS, speeds, host).makespan
    assert little_memory.seconds_of_step(8 * layer, speeds) == pytest.approx(whole, rel=1e-3)
    assert little_memory.seconds_of_step(2 * layer, speeds) > 1.4 * whole
    assert round(1e3 * host.moving(layer), 1) == 1.1


def test_adam_on_the_host_moves_28_bytes_a_parameter_and_takes_longest(notebook):
    """It reads weight, gradient and two states, and writes all but the gradient, in 4 bytes."""
    assert (STEP_BYTES["sgd"], STEP_BYTES["adam"]) == ((2 + 1) * 4, (4 + 3) * 4)
    host, text = host_speeds("H100"), text_of(notebook)
    sgd, adam = (1e3 * host.working(STEP_BYTES[o] * lessons.LARGE.numel) for o in ("sgd", "adam"))
    assert "Adam, which also reads and writes its two states, would move 28 bytes" in text
    assert f"its update would take {adam:.0f} ms and not {sgd:.0f}." in text
    speeds = slow_chain.speeds()
    step = offloaded_step(lessons.LARGE, lessons.ROWS, speeds, host, "adam")
    updating = sum(host.working(row.bytes) for row in step.where(op="step"))
    assert 1e3 * updating == pytest.approx(adam)

    numel = model("Llama 3 8B").numel
    update, copy = host.working(STEP_BYTES["adam"] * numel), 2 * numel / host.bandwidth
    assert f"{2 * numel / 1e9:.2f} GB ÷ 63 GB/s = {copy:.2f} s to go down" in text
    assert f"28 bytes a parameter at 76.8 GB/s take {update:.1f} s" in text
    assert update > 2 * copy  # "the largest part"


def test_bfloat16_rounds_a_small_update_away(notebook):
    weight = torch.ones((), dtype=torch.bfloat16)
    assert weight - 1e-3 == weight and weight.float() - 1e-3 != weight.float()
    assert "(in bfloat16 small updates would be rounded away)" in text_of(notebook)


def test_whole_gradients_of_zero_2_do_not_grow_with_depth(notebook):
    table = little_memory.fused_buffers()
    rows = [line.split() for line in table.splitlines()[1:]]
    assert {row[3] for row in rows} == {"244"}
    assert float(rows[2][1].replace(",", "")) / float(rows[0][1]) == pytest.approx(2.5, rel=0.02)
    assert round(50_257 * 1024 * 4 / 1e6) == 206
    assert table.splitlines()[3] in shown(notebook, "little_memory.tables")
    assert "holds 244 MB of whole gradients" in text_of(notebook)


def test_an_arena_leaves_fewer_holes(worlds, notebook):
    shape = GPTShape(width=32, layers=4, heads=2, sequence=16)  # as in the chapter
    run = worlds(4, device="cpu").record(lessons.kept, 3, shape, Batches(8, sequence=16)[0])
    table = little_memory.holes(run)
    without, arena = ([int(n.replace(",", "")) for n in line.split()[2:]]
                      for line in table.splitlines()[1:])  # fmt: skip
    assert (round(without[0] / 1e6, 2), round(arena[0] / 1e6, 2)) == (0.20, 0.07)
    assert (without[1], arena[1]) == (2 * 2**20, 4 * 2**20)
    assert table.splitlines()[2] in shown(notebook, "little_memory.tables")
    assert "at most 0.07 MB are scattered" in text_of(notebook)
