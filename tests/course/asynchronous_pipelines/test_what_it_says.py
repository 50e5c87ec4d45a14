"""What the text of chapter 7 says, compared with the library and with what its cells show."""

import ast
import builtins
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import nbformat
import pytest
import torch
from PIL import Image

from lib.course.asynchronous_pipelines import cover, learning, lessons
from lib.course.asynchronous_pipelines import exercises as chapter
from lib.draw.parts.captions import of_each
from lib.parallel.pipeline import MixedPipeline
from lib.predict.pipeline import schedules
from lib.predict.pipeline.cuts import Partition, with_replicas
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.shared_stages.published import vgg16
from lib.predict.pipeline.versions import versions_kept, weight_versions
from lib.single.models import GPT
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
    assert "takes 63 ms. The `stream` never empties it and takes 45 ms" in text
    (table,) = [c.source for c in cells if c.source.startswith("# Asynchronous")]
    both = cover.above_one_another()
    assert "`1F1B`" in table and "`stream`" in table and list(both) == ["1F1B", "stream"]
    assert [one.makespan for one in both.values()] == pytest.approx([63e-3, 45e-3])
    assert len(of_each(both)) == 1  # and not by a formula
    assert of_each(both)[0].startswith("Predicted by simulating the schedule")


def test_what_streams_take_beside_zero_bubble_schedules(cells):
    assert shown(cells, "for name, candidate in candidates").splitlines() == [
        "messages take           0             1",
        "                 time  idle    time  idle",
        "1F1B, m = 4       168   43%     248   61%",
        "1F1B, m = 16      114   16%     170   44%",
        "stream            105    9%     157   39%",
    ]
    assert shown(cells, "for name, choice, costs in choices").splitlines() == [
        "messages take     0     2   held",
        "ZB-H1, m = 4    120   280      4",
        "ZB-V, m = 8    97.5   254      4",
        "ZB-V, m = 32   97.5 171.5      4",
        "ZB-H2, m = 8     99   168      7",
        "ZB-H2, m = 32    99   114      7",
        "1F1B, m = 32    105   209      4",
        "stream          105   209      4",
        "deeper stream   105   130      7",
    ]
    (text,) = [c.source for c in cells if "A stream gains in two other cases" in c.source]
    for words in (
        "takes 97.5 units",
        "ZB-H1 takes 120 units, and the stream 105",
        "the deeper stream takes 130 units, and ZB-H2 with m = 8 takes 168; both hold seven",
        "With m = 32, ZB-H2 takes only 114",
    ):
        assert words in text


def test_zb_v_gives_exact_gradients_for_the_memory_of_a_stream():
    half = Costs(0.5, 0.5, 0.5, activation=1)
    zb_v = play(schedules.repeated(schedules.zb_v(8, 8), 4), half)
    stream = play(schedules.pipedream(4, 32), Costs(activation=2))
    assert zb_v.makespan < stream.makespan and max(zb_v.peak_bytes) == stream.peak_bytes[0] == 8
    four = play(schedules.repeated(schedules.zb_v(8, 4), 8), half)  # fewer than 2p - 1 microbatches
    assert four.makespan > stream.makespan


def test_unequal_halves_of_the_backward_stop_zb_v(cells):
    """Of F, I and W of 1, 2 and 0.5; each of eight stages has half of them."""
    zb_v = play(schedules.repeated(schedules.zb_v(8, 8), 4), Costs(0.5, 1, 0.25))
    stream = play(schedules.pipedream(4, 32), Costs(1, 2, 0.5))
    assert (zb_v.makespan, stream.makespan) == (130, 122.5)
    (text,) = [c.source for c in cells if "A stream gains in two other cases" in c.source]
    assert "If the halves take 2 and 0.5, ZB-V needs 130 units and the stream 122.5" in text
    closer = play(schedules.repeated(schedules.zb_v(8, 8), 4), Costs(0.5, 0.7, 0.3)).makespan
    zb_h2 = play(schedules.repeated(schedules.zb_h2(4, 8), 4), Costs(1, 1.4, 0.6)).makespan
    assert f"1.4 and 0.6, ZB-V needs {closer:.1f} units and ZB-H2 {zb_h2:.1f}, and the" in text
    assert play(schedules.pipedream(4, 32), Costs(1, 1.4, 0.6)).makespan == 105


def test_the_exercises_stand_behind_what_they_need(cells):
    sources = [c.source for c in cells]

    def place(words):
        return min(n for n, source in enumerate(sources) if words in source)

    assert place("### Where to cut") < place("import equal, exact, greedy") < place("write.check(")
    assert place("### Replicas: several ranks") < place("repair.check(their_update, world)\n```")
    assert (
        place("### Replicas: several ranks") < place("exercises import plan") < place("### Break")
    )
    assert place("predict.check(\n    kept_by_stage_2=None") < place("## Going further")


def names_in(cells):
    """Return the names that the code of some cells binds, and those that it reads."""
    bound, read = set(), set()
    for cell in cells:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.arg):
                bound.add(node.name if isinstance(node, ast.FunctionDef) else node.arg)
    return bound, read


def test_each_further_section_needs_the_main_path_alone(cells):
    (end,) = [n for n, c in enumerate(cells) if c.source.startswith("## Going further")]
    main, _ = names_in(c for c in cells[:end] if c.cell_type == "code")
    sections = [[]]
    for cell in cells[end:]:
        if cell.cell_type == "markdown" and "### " in cell.source:
            sections.append([])
        elif cell.cell_type == "code":
            sections[-1].append(cell)
    assert len(sections) > 8
    for section in sections:
        bound, read = names_in(section)
        assert not read - bound - main - set(dir(builtins)) - {"display"}


def test_what_the_chapter_says_of_learning(cells):
    """The printed table has the methods with m = 1, the folded one those with a larger m."""
    printed = shown(cells, "print(learning.table(losses))").partition("rule, m")[2].splitlines()[1:]
    table = {" ".join(line[:16].split()): line[16:] for line in printed}
    assert list(table) == ["1F1B 1", "latest 1", "stashing 1", "vertical sync 1"]
    rates, seeds, losses = (0.05, 0.1, 0.2, 0.4), range(21), {}
    (text,) = [c.source for c in cells if "<summary>All methods that we tried" in c.source]
    of_all = text.split("| time |")[1].split("</details>")[0]
    folded = re.findall(r"^\| `(.+), (\d)` \| (.+) \| (\d+) \|$", of_all, re.M)
    assert len(folded) == 8
    for rule, m, row, time in folded:
        losses[rule, int(m)] = of = learning.trained(rule, int(m), rates, seeds)
        assert row.split(" | ") == [learning.shown(learning.ends(of, rate)) for rate in rates]
        assert learning.until(of, rule, int(m), 0.5)[0] == int(time)
        row = row.replace("|", "")
        assert table.setdefault(f"{rule} {m}", row).split() == row.split()
    of = learning.trained("1F1B", 1, rates, seeds)
    assert learning.until(of, "ZB-H1", 1, 0.5)[0] == 216 and "with m = 1 it takes 216" in text
    rows = {name: re.findall(r"(\d\.\d\d|-)(?: \((\d+)\))?", row) for name, row in table.items()}
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
        flushed, latest, stashing, buffered = (
            float(ends[f"{name} 4"][column]) for name in ("1F1B", "latest", "stashing", "2BW")
        )
        assert max(abs(latest - flushed), abs(stashing - flushed)) < 0.0301
        assert buffered > max(flushed, latest, stashing)
    times = {}
    for line in shown(cells, "goal=0.5").splitlines()[1:8]:
        *rule, every, time, _ = line.split()
        times[" ".join(rule), int(every)] = time
    assert [times[way] for way in (("1F1B", 1), ("1F1B", 4), ("ZB-H1", 4))] == ["288", "294", "210"]
    assert [times["stashing", 1], times["stashing", 4]] == ["105", "153"]
    assert [times["2BW", 4], times["ZB-H1", 2]] == ["273", "176"]


def test_how_long_a_microbatch_takes():
    assert learning.units("1F1B", 4, 56) == 294 and learning.units("stashing", 1, 32) == 105
    assert learning.units("ZB-H1", 4, 56) == 210 and 210 / 56 == 3.75
    assert learning.units("stashing", 4, 48) == 153 and learning.units("stashing", 4, 64) == 201
    assert 294 / 56 == 5.25 and round(153 / 48, 2) == 3.19
    assert learning.units("1F1B", 1, 24) == 288


def test_zb_h1_makes_the_updates_of_1f1b():
    runs = [learning.trained(name, 4, (0.1,), (0, 1)) for name in ("1F1B", "ZB-H1")]
    assert runs[0] == runs[1]
    assert runs[0] != learning.trained("1F1B", 2, (0.1,), (0, 1))


@pytest.mark.parametrize("set_of_seeds", range(3))
def test_the_times_for_three_sets_of_seeds(cells, set_of_seeds):
    """The table of the text, the best synchronous schedule, and what does not get there."""
    (text,) = [c.source for c in cells if "| method | seeds 0 to 20 |" in c.source]
    rows = re.findall(r"^\| `(.+), (\d)` \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    assert len(rows) == 4
    seeds, rates = range(21 * set_of_seeds, 21 * set_of_seeds + 21), (0.05, 0.1, 0.2, 0.4)
    losses = {("1F1B", m): learning.trained("1F1B", m, rates, seeds) for m in (1, 2, 4)}
    losses |= {("ZB-H1", m): losses["1F1B", m] for m in (1, 2, 4)}
    for way in (("stashing", 1), ("stashing", 4), ("2BW", 4), ("ZB-H2", 8)):
        losses[way] = learning.trained(*way, rates, seeds)
    times = {way: learning.until(of, *way, 0.5)[0] for way, of in losses.items()}
    for name, every, *by_set in rows:
        assert times[name, int(every)] == int(by_set[set_of_seeds])
    assert "ZB-H1 takes 180 and 240 units, and `stashing, 4` takes 201 both times" in text
    best = min(times["ZB-H1", m] for m in (1, 2, 4))
    assert best == (176, 180, 216)[set_of_seeds] and f"{best:g}" in text
    assert 1.65 < best / times["stashing", 1] < 2.1 and "1.7 to 2.1 times as fast" in text
    assert times["1F1B", 1] == learning.units(
        "1F1B", 1, 24
    )  # 24 microbatches, and 32 with stashing
    assert (times["2BW", 4] < inf, times["ZB-H2", 8] < inf) == (set_of_seeds == 0,) * 2


def test_what_three_seeds_give_in_a_class(cells):
    (text,) = [c.source for c in cells if "take `range(3)` for the seeds" in c.source]
    times = []
    for way in (("stashing", 1), ("1F1B", 4)):
        losses = learning.trained(*way, (0.05, 0.1, 0.2, 0.4), range(3))
        times.append(learning.until(losses, *way, 0.5)[0])
    assert times == [81, 336] and "81 units for `stashing, 1` and 336 for `1F1B, 4`" in text


def test_the_last_loss_does_not_tell_that_replicas_differ(cells):
    lines = shown(cells, "lessons.without_average").splitlines()
    together, apart = ([float(x) for x in lines[n].split()[1:]] for n in (-4, -1))
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


def test_deepspeeds_two_by_two_is_the_second_order_of_the_cell(cells):
    """Its topology has the axes pipe, data, so its pipelines are those printed for pp × dp."""
    (box,) = [c.source for c in cells if '"In two-by-two, GPUs' in c.source]
    said = re.search(r"DeepSpeed's: .*GPUs (\d) and (\d) are one.*GPUs (\d) and (\d) average", box)
    pipeline, means = (said[1], said[2]), (said[3], said[4])
    printed = shown(cells, "def two_by_two(**axes)")
    (second,) = re.findall(r"pp × dp pipelines: (.*)", printed)
    pipelines = re.findall(r"\((\d), (\d)\)", second)
    assert pipeline in pipelines and means in list(zip(*pipelines))


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
    deep = lessons.deep_stream(4, 32)
    for microbatches, old in ((1, 6), (4, 2), (7, 1)):  # one, as the card says, from 2p - 1 on
        seen = weight_versions(deep, "latest", microbatches)
        assert max(back - forward for forward, back in seen[0]) == old
    with pytest.raises(ValueError, match="0F8 needs version 1"):
        weight_versions(deep, "2BW", 4)
    assert weight_versions(deep, "2BW", 7)


def blocks_exchange(cut):
    """Run the mixed cut of the text on this rank."""
    pipeline = MixedPipeline(GPT(lessons.FOUR_HEADS).double(), Partition.read(cut), m=4)
    pipeline.step(*lessons.small_batch())


def test_how_many_activations_a_shared_block_exchanges(cells, worlds):
    """14 activations in buffers, and 8 sent: gathers and reduce-scatters send half their buffer."""
    ledger = worlds(4).record(blocks_exchange, "0:2 | 2:6 /2 | 6:8")
    rows = ledger.where(lane="comm", group="stage", rank=1)
    reduced = sum(row.bytes for row in rows.where(op="all_reduce"))
    others = sum(row.bytes for row in rows.where(op=["all_gather", "reduce_scatter"]))
    assert reduced + others == sum(row.bytes for row in rows)
    activation = 4 * 4 * 8192  # of four microbatches and four blocks
    assert [reduced / activation, others / activation] == [2, 12]
    (text,) = [c.source for c in cells if "14 activations of 8,192 bytes" in c.source]
    assert "2 + 12 ÷ 2 = 8 activations a block" in text
