"""What the text of chapter 7 says, compared with the library and with what its cells show."""

import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch
from PIL import Image

from lib.course.asynchronous_pipelines import cover, learning, lessons
from lib.course.asynchronous_pipelines import exercises as chapter
from lib.draw.parts.captions import of_ledger
from lib.predict.pipeline import schedules
from lib.predict.pipeline.cuts import Partition, with_replicas
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.shared_stages.published import vgg16
from lib.predict.pipeline.versions import versions_kept, weight_versions
from lib.single.models import MLP
from tests.course.stored_chapter import main_path, stored_chapter

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "chapters" / "07-asynchronous-pipelines.ipynb"


@pytest.fixture(scope="module")
def cells():
    return nbformat.read(NOTEBOOK, as_version=4).cells


def shown(cells, words):
    """What the one cell shows, as text, whose source has these words."""
    (cell,) = [c for c in cells if c.cell_type == "code" and words in c.source]
    plain = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "".join(plain)


def test_the_numbers_of_the_prose(cells):
    flushed = schedules.repeated(schedules.one_f_one_b(4, 4), 8)
    assert learning.schedule_of("1F1B", 4, 4, 32) == flushed
    stream = schedules.pipedream(4, 12)
    assert weight_versions(stream, "latest")[0][6] == (3, 6)
    assert versions_kept(stream, "2BW", 3) == [2] * 4  # m = p - 1 works in this order
    for m in (1, 2):
        with pytest.raises(ValueError, match="stage 0 has made only 0 updates by then"):
            versions_kept(stream, "2BW", m)
    text = "\n".join(c.source for c in cells)
    assert "They finish after 45 ms instead of 63" in text
    (table,) = [c.source for c in cells if c.source.startswith("# Asynchronous")]
    assert "*1F1B*" in table and "*stream*" in table and len(cover.ROWS) == 8
    rows = cover.side_by_side()
    ends = [max(r.end for r in rows.where(rank=ranks)) for ranks in ([0, 1, 2, 3], [4, 5, 6, 7])]
    assert ends == pytest.approx([63e-3, 45e-3])
    assert of_ledger(rows).startswith("Predicted by simulating the schedule")  # not by a formula


def test_a_synchronous_schedule_is_about_as_fast_as_a_stream_of_the_same_depth(cells):
    zb, deep = schedules.repeated(schedules.zb_h2(4, 8), 4), lessons.deep_stream(4, 32)
    for way, free, slow in (
        (schedules.pipedream(4, 32), 105, 157),
        (zb, 99, 120),
        (deep, 105, 111),
    ):
        assert [play(way).makespan, play(way, Costs(send=1)).makespan] == [free, slow]
    assert play(zb).peak_microbatches[0] == play(deep).peak_microbatches[0] == 7
    rows = shown(cells, "for name, way in ways").splitlines()
    assert rows[3:] == [
        "ZB-H2, m = 8   99  3%     120 20%      7",
        "stream        105  9%     157 39%      4",
        "deeper stream 105  9%     111 14%      7",
    ]


def test_the_exercises_stand_behind_what_they_need(cells):
    sources = [c.source for c in cells]

    def place(words):
        (found,) = [n for n, source in enumerate(sources) if words in source]
        return found

    assert place("### Where to cut") < place("import equal, exact, greedy") < place("write.check(")
    assert place("### Replicas: several ranks") < place("repair.check(their_update, world)\n```")
    assert place("predict.check(\n    kept_by_stage_2=None") < place("## Going further")


@pytest.mark.parametrize("stage", range(4))
def test_pytorch_refuses_a_changed_weight_except_on_stage_0(stage):
    module = MLP(lessons.SHAPE).double()[stage : stage + 1]
    x = torch.randn(8, lessons.SHAPE.widths[stage], dtype=torch.float64)
    y = module(x.requires_grad_(stage > 0)).sum()
    y.backward(retain_graph=True)
    torch.optim.SGD(module.parameters(), 0.1).step()
    if stage == 0:
        y.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_what_the_chapter_says_of_learning(cells):
    lines = shown(cells, "learning.trained(").partition("rule, m")[2].splitlines()[1:10]
    table = {line[:16].strip(): line[16:] for line in lines}
    names = [" ".join(name.split()) for name in table]
    assert names[4:] == ["1F1B 4", "1F1B 16", "stashing 4", "2BW 4", "ZB-H2 8"]
    rows = {
        name: re.findall(r"(\d\.\d\d|-)(?: \((\d+)\))?", row)
        for name, row in zip(names, table.values())
    }
    ends = {name: [end for end, _ in row] for name, row in rows.items()}
    last = {name: row[3][1] for name, row in rows.items()}
    diverged = [last[f"{name} 1"] for name in ("1F1B", "latest", "stashing", "vertical sync")]
    assert diverged == ["", "7", "10", "16"]  # of 21, at 0.4
    for column in (0, 1, 2):
        plain, latest, stashing, vertical = (
            float(ends[f"{name} 1"][column])
            for name in ("1F1B", "latest", "stashing", "vertical sync")
        )
        assert max(abs(latest - plain), abs(stashing - plain)) < 0.0201
        assert vertical > 1.5 * stashing
        flushed, stashing, buffered = (
            float(ends[f"{name} 4"][column]) for name in ("1F1B", "stashing", "2BW")
        )
        assert abs(stashing - flushed) < 0.0201 and buffered > max(flushed, stashing)
    printed = shown(cells, "goal=0.5").splitlines()[1:10]
    times = [line.split()[-2] for line in printed]
    assert times == ["288", "105", "105", "177", "294", ">342", "153", "273", "291"]


def test_how_many_times_longer_the_flushed_pipe_takes():
    assert learning.units("1F1B", 4, 56) == 294 and learning.units("stashing", 1, 32) == 105
    assert learning.units("stashing", 4, 48) == 153
    assert 294 / 56 == 5.25 and round(153 / 48, 2) == 3.19
    assert learning.units("ZB-H2", 8, 96) == 291 and learning.units("1F1B", 16, 96) == 342


def test_the_lines_that_the_picture_leaves_out_end_close_to_1f1b():
    ways = ("1F1B", 4), ("1F1B", 1), ("ZB-H2", 8)
    lines = [learning.by_time(learning.trained(*way, (0.1,), range(21)), *way, 0.1) for way in ways]
    ends = [[loss for time, loss in zip(*line) if time <= 300][-1] for line in lines]
    assert [round(end, 2) for end in ends] == [0.55, 0.51, 0.53]


def test_with_other_seeds_the_ways_with_few_updates_take_longer():
    expected = {("ZB-H2", 8): (339, 0.2), ("2BW", 4): (321, 0.1), ("stashing", 1): (105, 0.1)}
    for way, best in expected.items():
        rates = [best[1]] if way[0] == "stashing" else (0.05, 0.1, 0.2, 0.4)
        losses = learning.trained(*way, rates, range(21, 42), microbatches=192)
        assert learning.until(losses, *way, 0.5) == best


def test_the_last_loss_does_not_tell_that_replicas_differ(cells):
    lines = shown(cells, "lessons.without_average").splitlines()
    together, apart = ([float(x) for x in lines[n].split()[1:]] for n in (2, 5))
    assert [a < t for a, t in zip(apart, together)] == [True, True, False]


def test_what_the_chapter_says_of_vgg16():
    profiled = list(vgg16().values())

    def ours(speed):
        return [str(with_replicas(profiled, [(gpus, speed * 1e9)])) for gpus in (4, 8, 16)]

    published = ["0:18 x3 | 18:37", "0:23 x7 | 23:37", "0:32 x15 | 32:37"]
    for speed in (0.5, 0.8, 1.0, 1.1):
        four, _, sixteen = ours(speed)
        assert [four, sixteen] == published[::2]
    assert ours(1.0)[1] == "0:25 x7 | 25:37"
    takes = [
        Partition.read(text).bottleneck(profiled, 1e9) for text in (published[1], ours(1.0)[1])
    ]
    assert takes == pytest.approx([0.2055, 0.0889], abs=5e-5)
    assert [profiled[n].activation for n in (22, 24)] == [205520896, 51380224]
    assert not set(ours(1.25)) & set(published)
    assert ours(1.5) == ["0:37 x4", "0:37 x8", "0:26 x15 | 26:37"]
    assert ours(2.0) == ["0:37 x4", "0:37 x8", "0:37 x16"]
    free = [replace(layer, activation=0) for layer in profiled]  # messages take no time
    for speed in (0.5, 0.8, 1.0, 1.1, 1.25):
        four, eight, sixteen = (with_replicas(free, [(n, speed * 1e9)]) for n in (4, 8, 16))
        assert str(eight) == published[1] and eight.time == pytest.approx(0.0884, abs=5e-5)
        assert not {str(four), str(sixteen)} & set(published)
    milliseconds = [1e3 * sum(layer.time for layer in of) for of in (profiled, profiled[23:25])]
    assert [round(each, 1) for each in milliseconds] == [672.5, 3.1]


def test_from_m_equal_to_p_on_no_rule_keeps_more_than_two_versions():
    for stages in (4, 8):
        order = schedules.pipedream(stages, 6 * stages)
        for rule in ("stashing", "vertical sync", "2BW"):
            assert max(versions_kept(order, rule, stages)) == 2
        assert versions_kept(order, "vertical sync") == [stages] * stages
        for every, first in ((1, 2), (2, 4)):
            if stages == 4:
                with pytest.raises(ValueError, match=f"0F{first} needs version 1"):
                    versions_kept(order, "2BW", every)


def test_pytorch_has_the_schedules_that_the_chapter_lists(cells):
    import torch.distributed.pipelining as torchs

    (text,) = [c.source for c in cells if "### PyTorch's own" in c.source]
    known = [name for name in torchs.__all__ if name.startswith("Schedule")]
    assert len(known) == 7 and "exports seven schedules" in text
    assert all(f"`{name}`" in text for name in known)


def pytorchs_mesh_and_stage(make_mesh, make_stage, device):
    """Run the text's code for data × pipeline on this rank; return the ranks of the stage."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage

    names = {"init_device_mesh": init_device_mesh, "PipelineStage": PipelineStage}
    names["mesh"] = mesh = eval(make_mesh, names)
    arguments = torch.nn.Linear(2, 2), mesh["pp"].get_local_rank(), 2, torch.device(device)
    stage = eval(make_stage.replace("...", "*arguments"), names | {"arguments": arguments})
    return torch.distributed.get_process_group_ranks(stage.group)


def test_pytorchs_data_and_pipeline_is_built_as_the_text_says(cells, worlds):
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    (make_mesh,) = re.findall(r"`(init_device_mesh\(.*?\))`", text)
    (make_stage,) = re.findall(r"`(PipelineStage\(.*?\))`", text)
    world = worlds(4)
    make_mesh = make_mesh.replace("cuda", world.device)
    ranks = world.run(pytorchs_mesh_and_stage, make_mesh, make_stage, world.device)
    assert ranks == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_every_exercise_of_the_chapter_has_hints(cells):
    code = "\n".join(c.source for c in cells if c.cell_type == "code")
    for name in ("predict", "write", "repair", "plan"):
        exercise = getattr(chapter, name)
        assert exercise.hints and exercise.task and exercise.name == name
        assert f"exercises import {name}\n" in code and f"{name}.check(" in code


def test_the_main_path_is_short():
    """At most 3,000 words before Going further, without what is folded and without pictures."""
    count, words = main_path(stored_chapter("07-asynchronous-pipelines"))
    assert 0 < count <= 45 and 0 < words <= 3000


def test_the_cover_is_what_the_course_draws(tmp_path):
    cover.write(tmp_path / cover.IMAGE)
    drawn = Image.open(tmp_path / cover.IMAGE)
    stored = Image.open(ROOT / "chapters" / "images" / cover.IMAGE)
    assert drawn.size == stored.size


def test_a_gradient_of_the_deeper_stream_is_six_updates_old():
    seen = weight_versions(lessons.deep_stream(4, 32), "latest", 1)
    assert max(back - forward for forward, back in seen[0]) == 6
