"""What chapter 3 says of `fully_shard` with seeds and buffers, and of numbers beside its cells."""

import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lib.course.fsdp import lessons, slow_chain
from lib.draw import states
from lib.predict.sharded.models import model
from lib.predict.sharded.states import fewest_ranks, held
from tests.course.stored_chapter import shown, stored_chapter, text_of


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("03-fsdp")


def with_own_seeds(hybrid: bool):
    """Return the weights that this rank built, and the whole ones of its sharded layer."""
    torch.manual_seed(dist.get_rank())
    layer = torch.nn.Linear(4, 4, bias=False)
    built = layer.weight.detach().clone()
    if hybrid:
        names = ("replicate", "shard")
        fully_shard(layer, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=names))
    else:
        fully_shard(layer)
    layer(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.0).step()
    return built, layer.weight.full_tensor().detach()


def test_with_different_seeds_the_whole_is_a_mixture_and_replicas_differ(worlds, notebook):
    built, whole = zip(*worlds(4).run(with_own_seeds, False))
    mixture = torch.stack([weights[rank] for rank, weights in enumerate(built)])
    assert all(torch.equal(weights, mixture) for weights in whole)
    _, whole = zip(*worlds(4).run(with_own_seeds, True))
    assert torch.equal(whole[0], whole[1]) and not torch.equal(whole[0], whole[2])
    text = text_of(notebook)
    assert "each rank keeps its part of the model that it built" in text
    assert "a mixture of initialisations, with the rows of each rank's own" in text
    assert "replicas also differ from each other" in text


class Rotary(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("table", torch.full((1000,), 7.0), persistent=False)


def empty_on_this_rank():
    """Return what a checkpoint of a layer has, and whether its buffer survived `to_empty`."""
    with torch.device("meta"):
        layer = Rotary()
    fully_shard(layer)
    layer.to_empty(device="cpu")
    optimizer = torch.optim.Adam(layer.parameters())
    assert get_optimizer_state_dict(layer, optimizer)["state"]
    return list(get_model_state_dict(layer)), layer.table.is_meta


def test_no_checkpoint_has_the_buffers_that_are_not_persistent(worlds, notebook):
    for names, is_meta in worlds(4).run(empty_on_this_rank):
        assert names == ["weight", "bias"] and not is_meta
    assert "buffers that are not in the checkpoint, such as the tables of rotary" in text_of(
        notebook
    )


def test_prefetch_hides_fourteen_gathers_and_seven_reduce_scatters(notebook):
    """And the headline's prediction ends with the last collective, before the division."""
    speeds, exposed, ends = slow_chain.speeds(), [], []
    for limit in (0, 1):
        step = lessons.fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=limit)
        computing = list(step.where(rank=0, lane="compute"))
        moving = list(lessons.while_moving(step.where(rank=0, lane="comm"), speeds))
        waited = [r.op for r in moving if not any(c.start < r.end - 1e-9 and r.start < c.end - 1e-9
                                                  for c in computing)]  # fmt: skip
        exposed.append([waited.count(op) for op in ("all_gather", "reduce_scatter")])
        ends.append((max(row.end for row in moving), lessons.until_update(step)))
    assert exposed == [[16, 8], [2, 1]]
    each = moving[0].seconds
    assert ends[0][1] - ends[1][1] == pytest.approx(21 * each)
    text = text_of(notebook)
    assert f"21 × {1e6 * each:.0f} µs = {1e3 * 21 * each:.2f} ms" in text
    after = 1e6 * (ends[1][1] - ends[1][0])
    assert f"divides its sum by n, which takes {after:.0f} µs and has no outline" in text
    assert f"with it the prediction is {1e3 * ends[1][1]:.2f} ms too" in text


def test_the_peak_on_the_meta_device_is_four_shards_and_a_unit(notebook):
    gathers = re.findall(r"all_gather ([\d,]+)", shown(notebook, "same gradients"))
    embedding, layer, head = (int(gathers[n].replace(",", "")) for n in range(3))
    whole = embedding + 4 * layer + head
    shards, unit = (embedding + 3 * layer) / 4 / whole, layer / whole
    text = text_of(notebook)
    assert f"four shards ({shards:.2f} of the model) and the fifth unit ({unit:.2f})" in text
    assert f"{shards + unit:.2f}" in shown(notebook, "lessons.built_on_meta")


def test_the_caption_of_the_stages_names_activations_unless_they_are_drawn():
    assert "Activations, gathered units, whole gradients" in states().live[1]["caption"]
    assert "to step. Gathered units" in states(activations=10**10).live[1]["caption"]


def test_the_marked_variant_of_exercise_1_can_be_computed(notebook):
    assert "the same of Llama 3 70B on 32 GPUs (`held` and `fewest_ranks`" in text_of(notebook)
    numel = model("Llama 3 70B").numel
    sizes = [held(numel, 32, stage).total for stage in (2, 3)]
    assert sizes == sorted(sizes, reverse=True) and fewest_ranks(numel, 141e9, 3) == 9
