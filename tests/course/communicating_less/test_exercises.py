"""Chapter 2's checkers: played from the start state to the solution, and typical mistakes."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib.course.communicating_less import costs, lessons
from lib.course.communicating_less import exercises as chapter
from lib.parallel.data import LocalSGD
from lib.predict import step
from lib.predict.hardware import sweep
from lib.predict.roofline import speeds
from tests.course.stored_chapter import shown, stored_chapter

ROOT = Path(__file__).parents[3]


@pytest.fixture
def world(worlds):
    return worlds(4)


def unbegun(*given): ...


# --- predict


def test_the_predicted_numbers_are_those_of_a_closed_form():
    whole = 4_000_000
    bits = 1_000_000 + 1954 * 4  # 8 bits each, and a scale for each 512
    gathered = [n for n in range(2, 100) if (n - 1) * bits > 2 * (n - 1) / n * whole]
    assert chapter.predict.answers == {
        "waiting": sum(12 if n in (11, 7, 0, 3, 5) else 1 for n in range(12)),
        "top_k": 7 * 10_000 * 8,
        "sign": 7 * (125_000 + 4),
        "eight_bits": gathered[0],
        "staleness": 28,
    }


def test_predict_from_start_to_solution():
    check, answers = chapter.predict.check, chapter.predict.answers
    empty = dict.fromkeys(answers)
    assert check(**empty).text.startswith("Not solved yet: no number is there.")
    one = check(**empty | {"sign": 1})
    assert "sign: 1 is too little" in one.text and "top_k: not answered yet" in one.text
    # The full buffer is not what a rank sends.
    assert "top_k: 640,000 is too much" in check(**empty | {"top_k": 640_000}).text
    verdict = check(**answers)
    assert verdict.solved and verdict.text.count("right") == 5


# --- write


def my_top_k(gradient, residual, k, feedback=True, keeps=True, divides=True):
    whole = gradient + residual if feedback else gradient.clone()
    indices = whole.abs().topk(k).indices.to(torch.int32)
    values, ranks = whole[indices.long()], dist.get_world_size()
    all_values = [torch.empty_like(values) for _ in range(ranks)]
    all_indices = [torch.empty_like(indices) for _ in range(ranks)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_indices, indices)
    mean = torch.zeros_like(whole)
    for their_indices, their_values in zip(all_indices, all_values, strict=True):
        mean[their_indices.long()] += their_values
    if keeps:
        whole[indices.long()] = 0
    return mean / ranks if divides else mean, whole


def without_feedback(gradient, residual, k):
    return my_top_k(gradient, residual, k, feedback=False)


def keeps_all(gradient, residual, k):
    return my_top_k(gradient, residual, k, keeps=False)


def sums(gradient, residual, k):
    return my_top_k(gradient, residual, k, divides=False)


def sends_all(gradient, residual, k):
    """Right, but dense: the message is a tensor of zeros with k entries."""
    whole = gradient + residual
    message = torch.zeros_like(whole)
    indices = whole.abs().topk(k).indices
    message[indices] = whole[indices]
    kept = whole - message
    dist.all_reduce(message)
    return message / dist.get_world_size(), kept


def test_write_from_start_to_solution(world):
    check = chapter.write.check
    assert check(unbegun, world).text.startswith("Not solved yet: `unbegun` returns nothing")
    for wrong, words in (
        (without_feedback, "differs first"),
        (keeps_all, "entry 1 of what it returned"),
        (sums, "entry 0 of what it returned"),
        (sends_all, "The tensors are right, but you send no less."),
    ):
        verdict = check(wrong, world)
        assert not verdict.solved and words in verdict.text
    verdict = check(my_top_k, world)
    assert verdict.solved
    assert "bytes sent by the busiest rank: 2,400, plain all-reduce 6,000" in verdict.text


# --- repair


def equal_weights(rank, ranks):
    neighbours = [r for r in (rank - 1, rank + 1) if 0 <= r < ranks]
    return dict.fromkeys([rank, *neighbours], 1 / (1 + len(neighbours)))


def symmetric(rank, ranks):
    def count(r):
        return (r > 0) + (r < ranks - 1)

    neighbours = [r for r in (rank - 1, rank + 1) if 0 <= r < ranks]
    weights = {r: 1 / (1 + max(count(rank), count(r))) for r in neighbours}
    return {rank: 1 - sum(weights.values())} | weights


def with_everybody(rank, ranks):
    return dict.fromkeys(range(ranks), 1 / ranks)


def alone(rank, ranks):
    return {rank: 1.0}


def test_repair_from_start_to_solution(world):
    check = chapter.repair.check
    start = check(equal_weights, world)
    assert not start.solved and "The ranks agree, but not on the mean." in start.text
    assert "hold: 20.00, 20.00, 20.00, 20.00" in start.text and "started with: 25.00" in start.text
    assert "rank 0: row adds up to 1.00, column to 0.83" in start.text
    assert "Rank 0 has a weight for rank 2, which is not" in check(with_everybody, world).text
    assert "The ranks do not agree." in check(alone, world).text
    assert check(unbegun, world).text.startswith("Not solved yet")
    verdict = check(symmetric, world)
    assert verdict.solved and "hold: 25.00, 25.00, 25.00, 25.00" in verdict.text


# --- invent


def in_bytes(bucket, group, at_random=True):
    ranks = dist.get_world_size(group)
    largest = bucket.flat.abs().max()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    largest.clamp_(min=1e-30)
    steps = 127 // ranks  # a sum over ranks fits into 8 bits
    x = bucket.flat / largest * steps
    low = x.floor()
    codes = (low + ((torch.rand_like(x) if at_random else 0.5) < x - low)).to(torch.int8)
    work = dist.all_reduce(codes, group=group, async_op=True)

    def wait():
        work.wait()
        bucket.flat.copy_(codes * (largest / steps / ranks))

    return SimpleNamespace(wait=wait)


def by_the_answer(size):
    bucket = SimpleNamespace(flat=torch.tensor([size, -size]))
    in_bytes(bucket, dist.group.WORLD).wait()
    return bucket.flat.tolist()


def in_bytes_to_the_nearest(bucket, group):
    return in_bytes(bucket, group, at_random=False)


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
    assert check(in_bytes, world).text.startswith("Solved: 3.8 times fewer bytes.")
    assert "At most 30 % of the bytes" in check(in_halves, world).text
    assert not check(in_bytes_to_the_nearest, world).solved  # what is always rounded off is lost
    assert "At most 30 % of the bytes" in check(whole, world).text
    assert not check(nothing, world).solved  # saves all bytes, and learns nothing
    assert "no idea" in check(failing, world).text
    assert check(unbegun, world).text.startswith("Not solved yet: `unbegun` returns nothing")


# --- what the chapter says


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("02-communicating-less")


def test_each_guess_is_answered_as_its_question_defines(notebook):
    """The answers are computed again here, from the questions and not from the library."""
    slow = [[12 if n % 12 == at else 1 for n in range(60)] for at in (11, 7, 0, 3, 5, 9)]
    all_wait = sum(max(times) for times in zip(*slow, strict=True))
    nobody = max(map(sum, slow))
    assert (all_wait, nobody) == (390, 115)
    answer = shown(notebook, "all_wait = ")
    assert f"It is {round(all_wait / nobody, 2)}." in answer

    ends = {}
    for every in (1, 4, 12, 16):
        parts = [[sum(times[n : n + every]) for times in slow[:3]] for n in range(0, 60, every)]
        ends[every] = sum(map(max, parts))
    assert ends == {1: 225, 4: 225, 12: 115, 16: 137}
    answer = shown(notebook, "run_of_fours.reveal").splitlines()
    assert answer[1] == "It is 225 ms."
    assert [line.split()[1:3] for line in answer[2:6]] == [
        [str(k), str(v)] for k, v in ends.items()
    ]

    x = torch.cos(2 * torch.pi * torch.arange(16, dtype=torch.float64) / 16)  # the slowest start
    first, rounds = x.norm(), 0
    while x.norm() > 0.01 * first:
        x, rounds = (x + x.roll(1) + x.roll(-1)) / 3, rounds + 1
    assert f"It is {rounds} rounds." in shown(notebook, "rounds_needed.reveal")

    numbers = 124_439_808  # of GPT-2
    payload = numbers / 2 + -(-numbers // 512) * 4
    more = next(n for n in range(2, 99) if (n - 1) * payload > 2 * (n - 1) / n * 4 * numbers)
    assert f"It is {more} ranks." in shown(notebook, "from_ranks.reveal")

    table = shown(notebook, "won_back.reveal").splitlines()
    rows = [line for line in table if re.search(r"\(.* to ", line)]
    means = {line[:12].strip(): float(line.split()[-4]) for line in rows}
    assert len(means) == 6
    added, kept = (means[name] - means["plain"] for name in ("no feedback", "top 1 %"))
    assert 0 < added - kept < 0.2 * added  # far from the border of the first quarter
    assert "It is 0 to 25 %." in "\n".join(table)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert f"ends {added:.2f} above plain" in text and f"only {added - kept:.2f} of that" in text
    assert f"about {(added - kept) / added:.0%}".replace("%", " %") in text


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    lines = shown(notebook, "source(servers.served)").splitlines()
    ends = [line.split() for line in lines[1:5]]
    assert ends == [
        ["0", "225", "0.0", "0", "0"], ["1", "171", "1.6", "6", "79"],
        ["3", "152", "1.7", "14", "47"], ["None", "115", "2.0", "18", "33"]]  # fmt: skip
    rows = [line for line in lines[5:] if " to " in line][:7]
    means = [[float(mean) for mean in re.findall(r"([\d.]+) \(", row)] for row in rows]
    small, large = zip(*means, strict=True)
    assert [row.split()[0] for row in rows] == ["0", "1", "3", "None", "0", "1", "2"]
    assert max(small) - min(small) < 0.05
    assert large == (0.20, 0.53, 0.35, 0.28, 0.14, 0.32, 0.86)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "0.53 with bound 1, 0.35 with bound 3, 0.28 without one" in text
    assert "the loss is 0.14, 0.32 or 0.86" in text
    local = re.findall(r"loss ([\d.]+) \(", shown(notebook, "source(lessons.learn)"))[:4]
    exact = re.search(r"4 workers: ([\d.]+ \(.*\))", shown(notebook, "lessons.plain(n, seed)"))
    assert float(local[-1]) - float(local[0]) == pytest.approx(0.03)
    outer = re.findall(r"loss ([\d.]+) \(", shown(notebook, "outer_momentum=outer"))
    assert [local[1], *outer] == ["0.28", "0.33", "0.18", "0.16"]
    assert f"loss {exact[1]}" in shown(notebook, "source(lessons.learn)")
    assert exact[1] in shown(notebook, "def local_sgd(")
    said = shown(notebook, "def pytorchs_ddp").split("PowerSGD:")[1]
    theirs, own = (
        [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes", part)]
        for part in said.split("ours:")
    )
    assert own == [theirs[0] + theirs[1], theirs[2]] == [8448, 2560]
    assert re.search(r"still there: \[0, 1, 2, 3\]", shown(notebook, "def pairs_of_my_own"))
    assert "as on one device: True" in shown(notebook, "def bulk_server")
    words = shown(notebook, "lessons.word_gradient_on_rank")
    assert "as on one device: True" in words
    assert "sparse 173,184 bytes" in words and "dense 560,640 bytes" in words


def test_the_problem_is_stated_with_its_counter_example(notebook):
    lines = shown(notebook, "costs.problem()").splitlines()
    numbers = [float(line.split()[-2]) for line in lines if line.endswith(" ms")]
    assert numbers == [7.8, 4.6, 2.0, 17.6, 69.9, 2.6, 3.8]  # computing, rings, two published
    infiniband, ethernet = (wait / numbers[0] for wait in numbers[3:5])
    assert 2 < infiniband < 2.5 and round(ethernet) == 9  # "more than twice", "nine times"
    assert round(1e3 * costs.gpt2_computing(8, batch=64), 1) == 14.4  # hides more
    backward = step.seconds(step.averaged_backward(costs.GPT2, 4), speeds("H100"))
    assert round(backward / costs.gpt2_computing(8), 2) == 0.67  # two thirds
    assert numbers[2] < 1e3 * backward  # NVLink's exchange fits under it
    assert 2.6 < 3.8 < numbers[1]  # both published exchanges are shorter than computing
    ring, latency = costs.gpt2_moving("plain", "InfiniBand NDR", 8), 14 * 14e-6
    assert round(((ring - latency) / 2 + latency) * 1e3, 1) == 8.9  # half of the bytes


def test_the_example_of_exercise_2_returns_what_the_text_says(notebook, worlds):
    (text,) = [cell.source for cell in notebook.cells if "## Exercise 2: write" in cell.source]
    names = {"torch": torch, "dist": dist, "tensor": torch.tensor, "World": worlds}
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], names)
    call, returned = re.search(r"`(World\(1\)\.run\(.*?\))` returns `(.*?)`", text).groups()
    ((mean, residual),), ((expected, kept),) = (eval(code, names) for code in (call, returned))
    assert torch.equal(mean.cpu(), expected.cpu()) and torch.equal(residual.cpu(), kept.cpu())


def test_what_pays_off_is_as_the_text_says(notebook):
    text = shown(notebook, "costs.pays_off").splitlines()
    table, now = {}, None
    for line in text:
        if not line.startswith("  "):
            now = table[line[:15].strip()] = {}
        else:
            now[line[:15].strip()] = [float(number) for number in line[15:].split()]
    infiniband, ethernet = table["InfiniBand NDR"], table["Ethernet 100"]
    assert infiniband["4 bits"][0] > infiniband["plain"][0] < infiniband["sign"][0]
    assert ethernet["4 bits"][0] < ethernet["plain"][0] < ethernet["4 bits"][1]
    assert ethernet["sign"][1] > ethernet["plain"][1]
    assert ethernet["top 1 %"][2] < ethernet["plain"][2]
    assert [ethernet["PowerSGD"][i] < 0.1 * ethernet["plain"][i] for i in range(3)] == [True] * 3
    assert table["computing"]["4 bits"][2] > 200
    assert ethernet["4 bits"][1] > 1.5 * ethernet["plain"][1]
    assert (ethernet["sign"][1], ethernet["plain"][1]) == (75.5, 75.1)
    assert ethernet["sign"][2] > 2 * ethernet["plain"][2] < ethernet["4 bits"][2]
    over_infiniband = infiniband["4 bits"][0] - table["computing"]["4 bits"][0]
    assert over_infiniband == pytest.approx(3.8, abs=0.05)


def test_the_outer_step_in_the_text_is_the_librarys(notebook):
    (text,) = [
        cell.source for cell in notebook.cells if "for p, last in last_average" in cell.source
    ]
    own = inspect.getsource(LocalSGD._step_outer)
    for line in re.search(r"```python(.*?)```", text, re.S)[1].split("#")[1].splitlines()[1:]:
        assert line.strip() in own
    assert "0.7, momentum=outer_momentum, nesterov=" in inspect.getsource(lessons.averaged)
    assert "rate 0.7" in text and "momentum 0.9" in text


def test_the_answers_codes_fit_and_a_bucket_of_zeros_stays_zero(world):
    for size in (0.0, 1.0):
        (mean, *_) = world.run(by_the_answer, size)
        assert mean == pytest.approx([size, -size], abs=1e-6)


def test_published_times_over_two_nodes_are_as_the_text_says(notebook):
    rows = [line.split() for line in shown(notebook, "costs.beside_published").splitlines()]
    numbers = [
        [float(row[1].replace(",", "")), row[3]] for row in rows if len(row) == 4 and "%" in row[3]
    ]
    times = [number for number, _ in numbers]
    factors = [a / b for a, b in zip(times, times[1:])]
    assert factors == pytest.approx([4.3, 3.6, 1.25], abs=0.05)
    small = [costs.published_seconds(sweep("H100 2-node all-reduce"), 2**i) for i in (16, 17)]
    assert [round(1e6 * seconds) for seconds in small] == [135, 109]


def refused_hooks():
    """Register hooks as the text says, and give PyTorch's words and how often a hook ran."""
    calls, words = [], []

    def hook(state, bucket):
        calls.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2, device="cpu"))
    for refused in (lambda state, b: None, hook, hook):
        try:
            ddp.register_comm_hook(None, refused)
        except (KeyError, RuntimeError) as error:
            words.append(f"{type(error).__name__}: {error}")
    x = torch.ones(1, 2, device="cpu")
    with ddp.no_sync():
        ddp(x).sum().backward()
    silent = len(calls)
    ddp(x).sum().backward()
    return words, silent, len(calls)


def test_pytorch_treats_hooks_as_the_text_says(notebook, world):
    words, silent, after = world.run(refused_hooks)[0]
    text = "\n".join(cell.source for cell in notebook.cells)
    assert words[0] == "KeyError: 'bucket'" and "`KeyError: 'bucket'`" in text
    assert words[1].startswith("RuntimeError: ") and words[1].split(": ", 1)[1] in text
    assert (silent, after) == (0, 1) and "No hook runs under `no_sync()`" in text
