"""What the text of chapter 2 says: against what its cells printed, and computed again here."""

import inspect
import random
import re
from math import log2

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from lib.course.communicating_less import costs, lessons
from lib.course.communicating_less.cover import stragglers
from lib.parallel.data import LocalSGD
from lib.predict import step
from lib.predict.data import gossip
from lib.predict.data.parameter_server import Gate
from lib.predict.hardware import sweep
from lib.predict.roofline import speeds
from tests.course.stored_chapter import shown, stored_chapter


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("02-communicating-less")


def sources_of(notebook) -> str:
    """Give all sources of the chapter."""
    return "\n".join(cell.source for cell in notebook.cells)


def test_each_guess_is_answered_as_its_question_defines(notebook):
    """The answers are computed again here, from the questions and not from the library."""
    slow = [[12 if n % 12 == at else 1 for n in range(60)] for at in (11, 7, 0, 3, 5, 9)]
    all_wait = sum(max(times) for times in zip(*slow, strict=True))
    nobody = max(map(sum, slow))
    assert (all_wait, nobody) == (390, 115)
    answer = shown(notebook, "factor.reveal(")
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
    assert len(means) == 7 and means["16 bits"] == means["plain"]
    added, kept = (means[name] - means["plain"] for name in ("no feedback", "top 1 %"))
    assert 0 < added - kept < 0.2 * added  # far from the border of the first quarter
    assert "It is 0 to 25 %." in "\n".join(table)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert f"ends {added:.2f} above plain" in text
    won, share = re.search(
        r"only (0\.\d+) of that \(before rounding\), about (\d+) %", text
    ).groups()
    assert float(won) == pytest.approx(added - kept, abs=0.0101)  # each mean is rounded to 0.01
    assert int(share) == pytest.approx(100 * float(won) / added, abs=1)


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    lines = shown(notebook, "servers.staleness_of(bounds)").splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["True", "False"]
    ends = [line.split() for line in lines[3:7]]
    assert ends == [
        ["0", "225", "0.0", "0", "0"], ["1", "171", "1.6", "6", "79"],
        ["3", "152", "1.7", "14", "47"], ["None", "115", "2.0", "18", "33"]]  # fmt: skip
    lines = shown(notebook, "servers.server_losses").splitlines()
    rows = [line for line in lines if " to " in line]
    means = [[float(mean) for mean in re.findall(r"([\d.]+) \(", row)] for row in rows]
    small, large = zip(*means, strict=True)
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "0", "1", "3", "None"]
    assert max(small) - min(small) < 0.05
    assert large == (0.14, 0.32, 0.86, 0.20, 0.53, 0.35, 0.28)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "bound 1 ends worst, though only bound 0 is tighter. Which column" in text
    assert "the loss is 0.14, 0.32 or 0.86" in text
    backward = 2 / 3 * 1e3 * costs.gpt2_computing(16)
    near, far = re.findall(r"GPU +([\d.]+) ms", shown(notebook, "costs.problem"))
    told = (
        f"{near} ms is shorter than the backward pass on 16 GPUs (3.0 ms), and {far} ms is longer"
    )
    assert f"{backward:.1f}" == "3.0" and told in text
    assert float(near) < backward < float(far)
    local = re.findall(r"loss ([\d.]+) \(", shown(notebook, "averaging_every(every"))[:4]
    exact = re.search(r"4 workers: ([\d.]+ \(.*\))", shown(notebook, "lessons.plain(n, seed)"))
    assert float(local[-1]) - float(local[0]) == pytest.approx(0.03)
    outer = re.findall(r"loss ([\d.]+) \(", shown(notebook, "outer_momentum=outer"))
    assert [local[1], *outer] == ["0.28", "0.33", "0.18", "0.16"]
    assert f"loss {exact[1]}" in shown(notebook, "averaging_every(every")
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
    assert round(1e3 * costs.gpt2_computing(8, batch=512)) == 107  # "a larger batch", 64 for each
    large = 1e3 * step.seconds(step.averaged_backward(costs.GPT2, 64), speeds("H100"))
    assert numbers[4] < large < 1.1 * numbers[4]  # "would about fit under the backward pass"
    text = sources_of(notebook)
    assert "with 512 sequences the GPUs would compute for 107 ms" in text
    backward = step.seconds(step.averaged_backward(costs.GPT2, 4), speeds("H100"))
    assert round(backward / costs.gpt2_computing(8), 2) == 0.67  # two thirds
    assert numbers[2] < 1e3 * backward  # NVLink's exchange fits under it
    assert 2.6 < 3.8 < numbers[1]  # both published exchanges are shorter than computing
    one_card = 2 * 15 / 16 * 2**29 / 50e9  # a flat ring of 16, all through one card of 400 Gb/s
    assert 1e3 * one_card / numbers[5] == pytest.approx(8, rel=0.05)  # "a network card of its own"
    ring, latency = costs.gpt2_moving("plain", "InfiniBand NDR", 8), 14 * 14e-6
    assert round(((ring - latency) / 2 + latency) * 1e3, 1) == 8.9  # half of the bytes


def test_the_example_of_exercise_2_returns_what_the_text_says(notebook, worlds):
    (text,) = [cell.source for cell in notebook.cells if "## Exercise 2: write" in cell.source]
    names = {"torch": torch, "dist": dist, "tensor": torch.tensor, "World": worlds}
    exec(re.search(r"```python.*?(def my_top_k.*?)\n\n\nwrite", text, re.S)[1], names)
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
    nvlink = table["NVLink4"]
    assert nvlink["plain"][0] - nvlink["PowerSGD"][0] == pytest.approx(0.2)
    assert infiniband["4 bits"][0] > infiniband["plain"][0] < infiniband["sign"][0]
    assert ethernet["4 bits"][0] < ethernet["plain"][0] < ethernet["4 bits"][1]
    assert ethernet["sign"][1] > ethernet["plain"][1]
    assert ethernet["top 1 %"][2] < ethernet["plain"][2]
    assert [ethernet["PowerSGD"][i] < 0.1 * ethernet["plain"][i] for i in range(3)] == [True] * 3
    assert table["computing"]["4 bits"][2] > 200
    for times in (infiniband, ethernet):  # "nearly halve the exchange over both slow links"
        assert all(0.5 < a / b < 0.6 for a, b in zip(times["16 bits"], times["plain"], strict=True))
    assert nvlink["plain"][0] - nvlink["16 bits"][0] == pytest.approx(0.3)
    assert ethernet["4 bits"][1] > 1.5 * ethernet["plain"][1]
    assert (ethernet["sign"][1], ethernet["plain"][1]) == (75.5, 75.1)
    assert ethernet["sign"][2] > 2 * ethernet["plain"][2] < ethernet["4 bits"][2]
    over_infiniband = infiniband["4 bits"][0] - table["computing"]["4 bits"][0]
    assert over_infiniband == pytest.approx(3.8, abs=0.05)


def test_the_outer_step_in_the_text_is_the_librarys(notebook):
    (text,) = [
        cell.source for cell in notebook.cells if "for p, last in last_shared" in cell.source
    ]
    own = inspect.getsource(LocalSGD._step_outer)
    for line in re.search(r"```python(.*?)```", text, re.S)[1].split("#")[1].splitlines()[1:]:
        assert line.strip() in own
    assert "0.7, momentum=outer_momentum, nesterov=" in inspect.getsource(lessons.averaged)
    assert "rate 0.7" in text and "momentum 0.9" in text


def test_fsdp2_has_what_the_text_says(notebook):
    text = "\n".join(cell.source for cell in notebook.cells)
    for name in ("set_all_reduce_hook", "set_custom_reduce_scatter"):
        assert f"`{name}(" in text and hasattr(FSDPModule, name)


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


def test_with_delays_at_random_rare_averages_save_time(notebook):
    """Three workers, each gradient 12 ms with a chance of one in twelve, and else 1 ms."""
    draw = torch.Generator("cpu").manual_seed(0)
    is_slow = torch.rand(2000, 60, 3, generator=draw, device="cpu") < 1 / 12
    times = torch.where(is_slow, 12.0, 1.0)
    ends = [times.view(2000, -1, k, 3).sum(2).amax(2).sum(1).mean() for k in (1, 4)]
    assert 0.8 < ends[1] / ends[0] < 0.9
    text = "\n".join(cell.source for cell in notebook.cells)
    assert (
        "`every=4` saves no time" in text and "(With delays at random it would save some.)" in text
    )


def test_the_rule_of_the_cell_is_the_librarys(notebook):
    """Fresh gates with random deliveries: each lets the workers begin that the cell would."""
    (code,) = [c.source for c in notebook.cells if c.source.startswith("def may_start")]
    names = {}
    exec(code.split("\n\n\n")[0], names)
    draw, both = random.Random(0), set()
    for _ in range(200):
        bound, delivered = draw.choice((0, 1, 3, None)), [draw.randrange(6) for _ in range(3)]
        gate = Gate(stragglers(bound))
        gate.delivered, gate.waiting = delivered, [0, 1, 2]
        started = gate.admit()
        assert started == [w for w in range(3) if names["may_start"](w, delivered, bound)]
        both.add(len(started))
    assert both == {1, 2, 3}


def test_agreement_costs_what_the_table_says(notebook):
    (text,) = [c.source for c in notebook.cells if "### What agreement costs" in c.source]
    rows = [
        [cell.strip().replace(",", "") for cell in line.split("|")[2:-1]]
        for line in text.splitlines()
        if re.match(r"\| (gossip|ring|halving)", line)
    ]
    expected = [[], [], [], []]
    for n in (16, 256):
        ring, pairs = (gossip.rounds_until(0.01, kind, n) for kind in ("ring", "pairs"))
        sums = f"{2 * (n - 1) / n:.2f}"
        costs_of_n = [(ring, 2 * ring), (pairs, pairs), (2 * (n - 1), sums), (2 * log2(n), sums)]
        for row, (rounds, sent) in zip(expected, costs_of_n, strict=True):
            row += [f"{rounds:.0f}", str(sent)]
    assert rows == expected


def test_a_difference_counts_if_every_seed_shows_it(notebook, world):
    assert "every seed ends 0.01 to 0.03 higher" in sources_of(notebook)
    often, rarely = (lessons.averaging_every(every, world)[0] for every in (1, 64))
    higher = sorted(round(b - a, 2) for a, b in zip(often, rarely, strict=True))
    assert len(higher) == 3 and (higher[0], higher[-1]) == (0.01, 0.03)


def test_sparse_rows_send_more_from_13_ranks_on(notebook):
    assert "from 13 ranks on the sparse line lies above" in sources_of(notebook)
    (_, ours), (_, dense) = costs.rows_sent(1460, 222, range(2, 20)).values()
    assert [n for n, (a, b) in enumerate(zip(ours, dense, strict=True), 2) if a > b][0] == 13


def test_bfloat16_rounds_sums_to_8_significant_bits(notebook):
    assert "partial sums are rounded to 8 significant bits" in sources_of(notebook)
    large = torch.tensor([255.0, 256.0], dtype=torch.bfloat16)
    assert (large + 1).tolist() == [256, 256]  # 257 needs 9 bits


def test_pytorchs_defaults_are_those_of_the_text(notebook):
    assert inspect.signature(PowerSGDState).parameters["start_powerSGD_iter"].default == 1000
    assert "sends the first 1,000 steps plainly" in sources_of(notebook)
    assert MixedPrecisionPolicy().reduce_dtype is None
    assert not hasattr(FSDPModule, "register_comm_hook")
