"""Chapter 1's checkers and its five bugs: right, wrong and not yet begun, on real ranks."""

import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from lib.course import bugs_data, lessons_data
from lib.course import exercises_data as chapter
from lib.course.cover_data import COUNT, side_by_side
from lib.predict.shape import GPTShape

ROOT = Path(__file__).parents[1]
RIGHT = {letter: word for letter, (_, word) in bugs_data.PROGRAMS.items()}


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
        "top_k": 4 * 8 * -(-GPTShape().numel // 100),
    }
    verdict = chapter.predict.check(**chapter.predict.answers)
    assert verdict.solved and verdict.text.count("right") == 5
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
        verdict.text
        == "Solved. 3 all-reduces.\n  all-reduces, bytes: 480, 3,608, 24; par 480, 3,608, 24"
    )
    wrong = chapter.write.check(one_for_each, world)
    assert not wrong.solved and "The averages are right, the buckets are not." in wrong.text
    assert "120, 360, 8, 3,600, 20, 4; par 480, 3,608, 24" in wrong.text
    assert "`unbegun` returns nothing" in chapter.write.check(unbegun, world).text


def test_a_partial_bucket_that_is_never_sent_is_named(world):
    text = chapter.write.check(without_the_last, world).text
    assert "rank 0 differs first" in text and "entry 5 of what it returned is 0 at [0]" in text


# --- find


def test_each_bug_shows_where_the_hints_say(world):
    whole = bugs_data.plain()
    seen = {letter: world.record(bugs_data.trained, letter) for letter in RIGHT}
    model = bugs_data.SHAPE.nbytes(8) * bugs_data.STEPS

    def moved(letter):
        rows = seen[letter].where(rank=0, lane="comm", op="all_reduce")
        return sum(row.bytes for row in rows)

    def norms(letter, name):
        return [round(getattr(one, name), 9) for one in seen[letter].results]

    by_word = {word: letter for letter, word in RIGHT.items()}
    for ledger in seen.values():  # the loss falls in all of them: it tells nothing
        assert all(one.losses[-1] < 0.5 * one.losses[0] for one in ledger.results)
    words = ("same batch", "last bucket", "nothing sent", "no_sync late", "sum")
    a, b, c, d, e = (by_word[word] for word in words)
    assert len(set(norms(a, "own"))) == 1 and moved(a) == model
    assert len(set(norms(b, "shared"))) == 4 and 0 < moved(b) < model
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
    assert open_.text.startswith("Not solved yet") and "53.69 53.69 53.69 53.69" in open_.text


# --- slow down, invent


def test_more_ranks_are_slower_for_one_of_two_reasons():
    check = chapter.slower.check
    assert check("Ethernet 10", 64, 2, "bytes").solved
    assert check("NVLink4", 256, 64, "start-ups").solved
    assert "But why? You say 'bytes'" in check("NVLink4", 256, 64, "bytes").text
    assert "4 ranks are faster here" in check("NVLink4", 4096, 2, "bytes").text
    assert "cannot share 6 samples" in check("NVLink4", 6, 2, "bytes").text
    assert check().text.startswith("Not solved yet")


def test_a_step_on_paper_is_compute_start_ups_and_bytes():
    compute, starts, wire = lessons_data.step_seconds(lessons_data.GPT2, "NVLink4", 32, 4)
    half = lessons_data.step_seconds(lessons_data.GPT2, "NVLink4", 32, 8)
    assert half[0] == pytest.approx(compute / 2) and half[1] == pytest.approx(starts * 7 / 3)
    assert half[2] == pytest.approx(wire * (7 / 8) / (3 / 4))
    assert lessons_data.step_seconds(lessons_data.GPT2, "NVLink4", 32, 1)[1:] == (0, 0)


def in_halves(bucket, group):
    half = bucket.flat.bfloat16()
    work = dist.all_reduce(half, group=group, async_op=True)

    def wait():
        work.wait()
        bucket.flat.copy_(half).div_(dist.get_world_size(group))

    return SimpleNamespace(wait=wait)


def whole(bucket, group):
    bucket.flat.div_(dist.get_world_size(group))
    return dist.all_reduce(bucket.flat, group=group, async_op=True)


def nothing(bucket, group):
    bucket.flat.zero_()
    return SimpleNamespace(wait=lambda: None)


def failing(bucket, group):
    raise ValueError("no idea")


def test_an_invented_hook_must_send_less_and_learn(world):
    check = chapter.invent.check
    assert check(in_halves, world).text.startswith("Solved: 2.0 times fewer bytes.")
    assert "At most half of the bytes" in check(whole, world).text
    assert not check(nothing, world).solved  # saves all bytes, and learns nothing
    assert "no idea" in check(failing, world).text
    assert check(unbegun, world).text.startswith("Not solved yet: `unbegun` returns nothing")


# --- what the chapter says


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "chapters" / "01-data-parallel.ipynb", as_version=4)


def shown(notebook, words):
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return "".join(o.get("text") or o.data.get("text/plain", "") for o in cell.outputs)


def test_the_first_picture_is_what_the_script_draws(notebook):
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", notebook.cells[0].source)
    picture = Image.open(ROOT / "chapters" / name)
    assert picture.size[0] > 1000
    ledger = side_by_side()
    assert ledger.ranks == tuple(range(2 * COUNT))
    exchanges = [row.op for row in ledger.where(rank=0, lane="comm")]
    assert exchanges == ["scatter", "broadcast", "gather", "scatter", "reduce"]
    assert {row.op for row in ledger.where(rank=COUNT, lane="comm")} == {"all_reduce"}
    ends = [max(row.end for row in ledger if (row.rank < COUNT) == dp) for dp in (True, False)]
    assert ends[0] > 2 * ends[1]  # DDP's step is over before half of DP's


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    rates = shown(notebook, "def last_loss").split()
    mean, total = [rates[n::7] for n in (4, 6)]
    timid, right, adam = ((float(a), float(b)) for a, b in zip(mean, total, strict=True))
    assert timid[1] < timid[0] and right[1] > 10 * right[0] and adam[0] == adam[1]
    sums = shown(notebook, "def hook_buckets").splitlines()[0]
    assert len(sums.split(",")) == 5 and sum(map(int, re.findall(r"\d+", sums))) == 338_944
    assert "after step 2, layers in each bucket: [0, 1] [2, 3]" in shown(notebook, "layers_in_")
    late = re.findall(r"([\d,]+) bytes", shown(notebook, "def accumulate"))
    assert late[0] == late[1] == "677,888" and late[2] == "338,944"
    dial = [line.split() for line in shown(notebook, "for n, dial in").splitlines()[:4]]
    small, large = ([float(line[place]) for line in dial] for place in (-3, -1))
    assert max(small) - min(small) < 0.05 and large[0] < large[1] < large[2]
    assert float(dial[0][3].strip(",")) > 2 * float(dial[2][3].strip(","))
    best = re.findall(r"fastest with ([\d,]+) ranks", shown(notebook, "ranks = [2**n"))
    assert all(1 < int(n.replace(",", "")) < 1024 for n in best) and len(best) == 4
