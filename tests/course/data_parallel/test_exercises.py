"""Chapter 1's checkers and its five bugs: right, wrong and not yet begun, on real ranks."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lib.course.data_parallel import bugs, lessons
from lib.course.data_parallel import exercises as chapter
from lib.course.data_parallel.cover import BF16, COUNT, WIDTHS, dp_and_ddp
from lib.course.data_parallel.scaling import efficiencies, scaling
from lib.course.narrow import WIDTH
from lib.parallel.data import DistributedDataParallel
from lib.predict.data.ddp_step import data_parallel_step
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow_motion import SlowMotion
from tests.course.stored_chapter import main_path, shown, stored_chapter
from tests.every import every

ROOT = Path(__file__).parents[3]
BUCKETS = "lessons.exposed_and_hidden"  # a part of the cell that compares sizes of buckets
RIGHT = {letter: word for letter, (_, word) in bugs.PROGRAMS.items()}


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- predict


def test_the_predicted_numbers_are_those_of_a_closed_form():
    size = GPTShape().nbytes()
    assert chapter.predict.answers == {
        "first_step": 1,
        "third_step": 4,
        "sent": 2 * 3 * size // 4,
        "devices": 16 * 64 * 8 + 2 * size + 2 * 16 * 64 * 256 * 4,
    }
    verdict = chapter.predict.check(**chapter.predict.answers)
    assert verdict.solved and verdict.text.count("right") == 4
    # Sum for mean is no slip of bytes, but twice the model in place of 2(n-1)/n is.
    assert "sent: 1,895,424 is too much" in chapter.predict.check(sent=2 * size).text


# --- write


def mine(gradients, limit, forgets=False, every=False):
    averages, bucket = [], []
    for n, gradient in enumerate(gradients):
        bucket.append(gradient)
        full = every or sum(g.nbytes for g in bucket) >= limit
        if full or (n + 1 == len(gradients) and not forgets):
            flat = torch.cat([g.flatten() for g in bucket])
            dist.all_reduce(flat)
            parts = (flat / dist.get_world_size()).split([g.numel() for g in bucket])
            averages += [part.view_as(g) for part, g in zip(parts, bucket, strict=True)]
            bucket = []
    return averages + bucket


def one_for_each(gradients, limit):
    return mine(gradients, limit, every=True)


def without_the_last(gradients, limit):
    return mine(gradients, limit, forgets=True)


def unbegun(*given): ...


def test_buckets_are_counted_not_only_their_averages(world):
    verdict = chapter.write.check(mine, world)
    assert (
        verdict.text == "Solved with 3 all-reduces.\n  bytes of your all-reduces: 480, 3,608, 24\n"
        "  bytes expected: 480, 3,608, 24"
    )
    wrong = chapter.write.check(one_for_each, world)
    assert not wrong.solved and "The averages are right, but the buckets are not." in wrong.text
    assert "120, 360, 8, 3,600, 20, 4\n  bytes expected: 480, 3,608, 24" in wrong.text
    assert "`unbegun` returns nothing" in chapter.write.check(unbegun, world).text


def test_a_partial_bucket_that_is_never_sent_is_named(world):
    text = chapter.write.check(without_the_last, world).text
    assert "rank 0 differs first" in text and "entry 5 of what it returned is 0 at [0]" in text


# --- find


def test_each_bug_shows_where_the_hints_say(world):
    whole = bugs.plain()
    seen = {letter: world.record(bugs.trained, letter) for letter in RIGHT}
    model = bugs.SHAPE.nbytes(8) * bugs.STEPS

    def moved(letter):
        rows = seen[letter].where(rank=0, lane="comm", op="all_reduce")
        return sum(row.bytes for row in rows)

    def norms(letter, name):
        return [round(getattr(one, name), 9) for one in seen[letter].results]

    by_word = {word: letter for letter, word in RIGHT.items()}
    for ledger in seen.values():  # the loss falls in all of them: it tells nothing
        assert every(one.losses[-1] < 0.5 * one.losses[0] for one in ledger.results)
    words = ("same batch", "last bucket", "nothing sent", "no_sync late", "sum")
    a, b, c, d, e = (by_word[word] for word in words)
    assert len(set(norms(a, "own"))) == 1 and moved(a) == model
    assert len(set(norms(b, "shared"))) == 4 and 0 < moved(b) < model
    by_chance = [round(norm, 1) == round(whole, 1) for norm in norms(b, "shared")]
    assert by_chance == [False, False, False, True]  # hence the warning to compare all ranks
    assert len(set(norms(c, "shared"))) == 4 and moved(c) == 0
    assert norms(c, "shared") == norms(c, "own")
    assert norms(d, "shared") == pytest.approx([whole] * 4) and moved(d) == 4 * model
    assert norms(e, "shared") == pytest.approx([4 * whole] * 4) and moved(e) == model


def test_words_are_judged_one_by_one_and_the_evidence_stays(world):
    verdict = chapter.find.check(world, **RIGHT)
    assert verdict.solved and verdict.text.count("right") == 5
    some = chapter.find.check(world, **RIGHT | {"a": "sum", "b": None})
    assert not some.solved
    assert "a: not that one" in some.text and "b: not yet" in some.text and "c: right" in some.text
    assert "10 steps of a model of 11,544 bytes: 115,440" in some.text
    open_ = chapter.find.check(world, a=None)
    assert open_.text.startswith("Not solved yet") and "53.7 53.7 53.7 53.7" in open_.text


def test_a_program_is_shown_by_its_letter():
    assert repr(chapter.find.program("e")).startswith("# lib/course/data_parallel/bugs.py\ndef pro")


# --- slower


def test_more_ranks_are_slower_for_one_of_two_reasons():
    check = chapter.slower.check
    assert check("Ethernet 10", 64, 2, "bytes").solved
    assert check("InfiniBand NDR", 256, 64, "latency").solved
    wrong = check("InfiniBand NDR", 256, 64, "bytes").text
    assert "128 ranks are slower, but the reason is not 'bytes'." in wrong
    assert "4 ranks are faster" in check("NVLink4", 4096, 2, "bytes").text
    refusal = "The batch has 6 samples; 4 ranks cannot share them equally."
    assert refusal in check("NVLink4", 6, 2, "bytes").text.replace("\n", " ")
    assert check().text.startswith("Not solved yet")
    assert "A single rank sends nothing." in check("Ethernet 10", 64, 1, "bytes").text


def test_an_nvlink_of_more_than_eight_gpus_is_refused():
    text = chapter.slower.check("NVLink4", 64, 8, "bytes").text
    assert text.startswith("Not yet. NVLink4 joins the 8 GPUs of one machine, and you need 16.")


# --- what the chapter says


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("01-data-parallel")


def test_the_first_picture_is_what_the_script_draws(notebook):
    opening = notebook.cells[0].source
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", opening)
    picture = Image.open(ROOT / "chapters" / name)
    assert picture.size[0] == 2 * WIDTH
    dp, ddp = dp_and_ddp()
    assert dp.ranks == ddp.ranks == tuple(range(COUNT)) and dp.makespan == ddp.makespan
    exchanges = [row.op for row in dp.where(rank=0, lane="comm")]
    assert exchanges == ["scatter", "broadcast", "gather", "scatter", "reduce"]
    assert {row.op for row in ddp.where(lane="comm")} == {"all_reduce"}
    phases = [row.op for row in sorted(ddp.where(rank=1, lane="compute"), key=lambda r: r.start)]
    assert phases == ["forward", "backward", "step"]
    end = max(row.end for row in ddp.where(lane=["compute", "comm"]))
    assert round(end / dp.makespan, 2) == 0.69 and "about two thirds as long]" in opening
    assert (f"{1e3 * dp.makespan:.1f}", f"{1e3 * end:.1f}") == ("4.4", "3.0")
    assert cell_with(notebook, "DP's step takes 4.4 ms there, and DDP's 3.0 ms")
    # NCCL's broadcast and reduce each take about as long as one copy.
    copy = speeds("H100", "NVLink4").moving("send", 2, MLPShape(WIDTHS, bias=False).nbytes(BF16))
    rings = [row.seconds for row in dp.where(rank=0, op=["broadcast", "reduce"])]
    assert rings == pytest.approx([copy] * 2, rel=0.02)


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    # The problem: four GPUs are slower than one over both Ethernet links, and near 4 over NVLink.
    factors = [float(x) for x in re.findall(r"([\d.]+) times", shown(notebook, "link_name in"))]
    assert factors[0] > 3 and factors[1] > 1 > factors[2] > factors[3]
    # DP's memory: 5/2 by kinds, and peaks of 2.22 and 0.88 MB, by chance the same ratio.
    text = shown(notebook, "memory(recorded)")
    first, other = (int(n.replace(",", "")) for n in re.findall(r"peak ([\d,]+) bytes", text))
    assert (f"{first / 1e6:.2f}", f"{other / 1e6:.2f}") == ("2.22", "0.88")
    assert f"{first / other:.1f}" == "2.5" and "It is 2.5." in text
    # Device 0's three kinds at its peak: five models, and a count of steps for each parameter.
    kinds = dict(re.findall(r"(\w+) ([\d,]+)", re.search(r"rank 0: peak .*\((.*)\)", text)[1]))
    held = sum(
        int(kinds[kind].replace(",", "")) for kind in ("parameters", "gradients", "optimizer")
    )
    assert held == 5 * 338_944 + 29 * 4 and cell_with(notebook, f"take {held:,} bytes at its peak")
    assert "gradients" not in re.search(r"ranks 1 to 3: peak .*", text)[0]
    # Sum or mean: exactly equal for SGD, nearly for AdamW.
    apart = re.findall(r"apart by ([\d.]+)%", shown(notebook, "def weights_after"))
    sgd, adamw = map(float, apart)
    assert sgd == 0 < adamw < 10
    # Buckets: five in place of 29; the best size is four layers, and one layer hides the most.
    sums = shown(notebook, "def hook_buckets").splitlines()[0]
    assert len(sums.split(",")) == 5 and sum(map(int, re.findall(r"\d+", sums))) == 338_944
    table = re.findall(r"^ +\d +([\d.]+) +([\d.]+)$", shown(notebook, BUCKETS), re.M)
    late, hidden = ([float(pair[n]) for pair in table] for n in (0, 1))
    assert late.index(min(late)) == 2 and late.count(min(late)) == 1 and hidden[0] == max(hidden)
    assert "It is 4." in shown(notebook, BUCKETS)
    # The step with a hook on each parameter, in parts: forward, backward with divisions, exposed.
    chain = MLPShape((512,) * 9, bias=False)
    step = data_parallel_step(
        chain, [512] * 4, SlowMotion("H100", link="NVLink4", dtype="fp32"), buckets=[1] * 8
    )
    ends = [1e6 * row.end for row in step.where(rank=0, lane="compute") if row.op != "add"]
    halves = [divided for divided in step.where(rank=0, lane="compute") if divided.op == "mul"]
    divisions = 1e6 * sum(row.seconds for row in halves)
    assert [round(t, 1) for t in (ends[14], ends[-1] - ends[14], late[0])] == [36.4, 71.7, 128.1]
    assert round(ends[-1] - ends[14] - divisions, 1) == 66.7
    prose = "\n".join(cell.source for cell in notebook.cells)
    assert (
        "36.4 + 66.7 + 8 × (20.4 + 3.5 + 0.6) = 299 µs and 36.4 + 71.7 + 128.1 exposed = 236 µs"
        in prose
    )
    # no_sync: backward alone sends everything twice, and forward alone is enough.
    text = shown(notebook, "sent[inside] =")
    assert "It is 677,888 bytes." in text
    for inside in ("nothing", "backward", "forward", "forward and backward"):
        sent = "338,944" if inside.startswith("forward") else "677,888"  # ours, and PyTorch's
        assert re.search(rf"^{inside} +{sent} +{sent}$", text, re.M)
    # PyTorch's own: equal, and twice the memory unless its gradients are views.
    own = shown(notebook, "def two_steps(wrap, **").replace("\n    ", " ")  # folded lines
    assert own.startswith("ours: held 1.0 G\n")
    assert re.findall(r"equal gradients (\w+), held ([\d.]+) G", own) == [
        ("True", "2.0"), ("True", "1.0")]  # fmt: skip
    for step in (1, 2):
        lines = re.findall(rf"in step {step}: .*(all_reduce .*)", own)
        assert len(lines) == 2 and len(set(lines)) == 1
    assert own.endswith(
        "with views: equal gradients True, held 1.0 G\n  the same exchanges as PyTorch\n"
    )
    errors = shown(notebook, "SkipsALayer").replace("\n", " ")
    assert "step 2: Expected to have finished reduction in the prior iteration" in errors
    assert "step 1: Backward has ended on rank 1 without a gradient for 1.weight, 1.bias" in errors


def test_the_picture_with_the_best_bucket_size_is_covered_with_the_answer(notebook):
    (cell,) = [
        c for c in notebook.cells if c.cell_type == "code" and "gradient_seconds(" in c.source
    ]
    revealed, picture = (output["data"] for output in cell.outputs)
    assert "It is 4." in revealed["text/plain"] and "Show the answer" in revealed["text/html"]
    assert picture["text/plain"].startswith("buckets: 8 gradients")
    assert "bucket_bytes=best * layer" in cell.source  # and not the number that was asked for


def test_waiting_for_nccl_holds_back_a_stream_as_pytorch_says(notebook):
    assert cell_with(notebook, "`wait()` holds back the GPU but not the CPU")
    text = " ".join(dist.Work.wait.__doc__.split())
    assert "the current stream block on the completion of the NCCL work" in text


def test_scaling_is_told_as_the_table_shows_it(notebook):
    text = shown(notebook, "efficiencies(scaled)")
    assert re.findall(r"(\d+) buckets: ", text) == ["148", "13", "1"]
    lines = text.partition("GPUs ")[2].splitlines()[1:11]
    rows = [[float(x.strip("%")) for x in line.split()] for line in lines]
    assert [row[0] for row in rows] == [2.0**n for n in range(10)]
    assert rows[3][1:] == [7.9, 98, 95] and rows[-1][2] < 50 < 90 < rows[-1][3]
    weak = efficiencies({"E": scaling(lessons.GPT2, "Ethernet 100", 1)})["weak, E"]
    of = {count: f"{100 * share:.0f} % on {count}" for count, share in zip(*weak)}
    words = f"Over Ethernet it is {of[16]} GPUs and {of[512]}, because everything"
    assert cell_with(notebook, words)
    errors = re.findall(r"([+-]\d+)%", shown(notebook, "in published()"))
    hidden, exposed = ([int(x) for x in errors[n::2]] for n in (0, 1))
    assert hidden[-1] > 100 and max(map(abs, exposed[:-1])) <= 10 and exposed[-1] == 50


def cell_with(notebook, words):
    """Give the one markdown cell with these words."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "markdown" and words in c.source]
    return cell


def test_the_steps_with_and_without_hooks_take_what_the_text_says(notebook):
    """299 and 236 µs without the update, and a gradient every 9.6 µs, of which 8.0 are products."""
    hardware, shape = speeds("H100", "NVLink4", "fp32"), MLPShape((512,) * 9, bias=False)
    for overlap, microseconds in ((False, 299), (True, 236)):
        step = data_parallel_step(shape, [512] * 4, hardware, overlap=overlap)
        assert round(1e6 * max(step.where(lane="comm").column("end"))) == microseconds
        assert cell_with(notebook, f"takes {microseconds} µs")
    ready = np.unique(step.where(rank=0, lane="comm").column("start"))
    assert 1e6 * np.diff(ready) == pytest.approx([9.6] * 6 + [5.6], abs=0.05)
    assert cell_with(notebook, "(the last after 5.6, because the first layer needs no gradient")
    assert cell_with(notebook, "ready every 9.6 µs")


def test_the_list_of_options_names_pytorchs_defaults(notebook):
    text = cell_with(notebook, "defaults in PyTorch 2.13 and their names here").source
    rows = re.findall(r"^\* `(\w+)` \(default `(\w+)`, here (\S+?)(?: on)?\) ", text, re.M)
    assert len(rows) == 5
    theirs, ours = (inspect.signature(c).parameters for c in (TorchDDP, DistributedDataParallel))
    for option, default, here in rows:
        if option in theirs:  # torch before 2.13 has no forward_sync_buffers
            assert str(theirs[option].default) == default
        assert here == "always" or here.strip("`") in ours


def test_each_exercise_imports_its_checker_and_has_hints(notebook):
    cells = [c.source for c in notebook.cells if "exercise" in c.metadata.get("tags", [])]
    for name, cell in zip(("predict", "write", "find", "slower"), cells, strict=True):
        assert f"from lib.course.data_parallel.exercises import {name}\n" in cell
        exercise = getattr(chapter, name)
        assert exercise.hints and exercise.name == name and exercise.task


def test_the_main_path_is_short(notebook):
    """At most 3,000 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(notebook)
    assert 0 < cells <= 45 and 0 < words <= 3000


def test_the_minutes_of_the_headings_add_up_to_those_of_the_first_page(notebook):
    opening = notebook.cells[0].source
    said = re.search(r"main path takes (\d+) minutes; .* this introduction takes (\d+)\.", opening)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    minutes = dict(re.findall(r"^## (.+) \((\d+) min\)$", prose, re.M))
    exercises = {name: int(n) for name, n in minutes.items() if name.startswith("Exercise")}
    rest = {name: int(n) for name, n in minutes.items() if name not in exercises}
    total, page = map(int, said.groups())
    assert total == page + sum(rest.values()) == 50
    more = sum(exercises.values())
    later = int(re.search(r"takes about (\d+) minutes and goes deeper", prose).group(1))
    assert f"Exercises 1 to 3 take another {more}, *Going further* {later}." in opening
    whole = f"minutes: {total + more + later}"
    assert whole in (ROOT / "book.yml").read_text().split("01-data")[1][:120]
    left_out = [n for name, n in rest.items() if name.startswith(("Turn it", "Break it"))]
    assert len(left_out) == 2 and sum(left_out) >= exercises["Exercise 1: predict"]
    assert "skip *Turn it* and *Break it* and do exercise 1" in opening


def test_what_the_prose_calls_can_be_called(notebook):
    """The text once offered `source(lessons.local)` where no name `source` was known."""
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    imports = re.findall(r"^(?:from \S+ )?import .+$", code, re.M)
    names: dict = {}
    exec("\n".join(imports), names)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    calls = re.findall(r"`((?:source\(|find\.|slower\.|predict\.|write\.)[^`]*\))`", prose)
    assert len(calls) >= 5
    for call in calls:
        eval(call, names)


def steps_with_join():
    """Take as many steps as this rank has batches, rank + 1, and return the last gradient."""
    layer = torch.nn.Linear(1, 1, bias=False)
    ddp = TorchDDP(layer)
    with ddp.join():
        for _ in range(dist.get_rank() + 1):
            ddp.zero_grad()
            ddp(torch.ones(1, 1)).sum().backward()
    return layer.weight.grad.item()


def test_join_answers_for_ranks_that_have_finished_with_zeros(notebook, worlds):
    """Each gradient is 1; in the second step only rank 1 is left, and the mean is 1/2."""
    assert cell_with(notebook, "`with ddp.join():`")
    assert worlds(2).run(steps_with_join) == [1.0, 0.5]


def test_the_script_under_going_further_runs_with_torchrun(notebook, tmp_path):
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    (text,) = re.findall(r"```python\n(# train\.py.*?)```", prose, re.S)
    (tmp_path / "train.py").write_text(text)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start += ["--redirects=1", f"--log-dir={tmp_path / 'logs'}"]  # else two ranks share a line
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # two processes may have one GPU or none
    done = subprocess.run(
        [*start, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    printed = "".join(file.read_text() for file in (tmp_path / "logs").rglob("stdout.log"))
    sums = re.findall(r"rank (\d): (\S+)", printed)
    assert sorted(rank for rank, _ in sums) == ["0", "1"] and len({total for _, total in sums}) == 1
