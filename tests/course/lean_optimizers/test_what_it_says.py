"""What chapter 11 says of its numbers is what its cells printed, and what is computed here."""

import re

import pytest
import torch

from lib.course.lean_optimizers import (
    cover,
    exercises,
    lessons,
    lost_moments,
    published,
    represented,
    sharded,
    training,
)
from lib.parallel.optimizers.adam_8bit import blocks_of
from lib.parallel.optimizers.places import Cut
from lib.predict.optimizers import state_bytes
from lib.predict.optimizers.muon import sent_numbers
from lib.predict.optimizers.traffic import of_adafactor
from lib.predict.sharded.models import model
from lib.single.optimizers import SM3
from lib.single.optimizers.code_maps import dynamic_values
from lib.single.optimizers.muon import COEFFICIENTS
from tests.course.stored_chapter import chapter_fixtures, limit_tests, shown

notebook, text = chapter_fixtures("11-lean-optimizers")


def rows_of(notebook, words: str, names) -> dict[str, list[float]]:
    """Give the numbers of the printed lines that begin with these names."""
    found = {}
    for line in shown(notebook, words).splitlines():
        for name in names:
            if line.startswith(name + " ") and name not in found:
                numbers = re.findall(r"-?\d[\d,]*\.?\d*(?:e[+-]\d+)?", line[len(name) :])
                found[name] = [float(number.replace(",", "")) for number in numbers]
    assert list(found) == list(names)
    return found


test_the_main_path, test_the_minutes, test_what_it_prints = limit_tests(8)


def test_what_adam_keeps(notebook, text):
    llama = model("Llama 3 8B")
    assert f"has {llama.numel / 1e9:.2f} billion weights" in text
    assert round(8 * llama.numel / 1e9) == 64 and "2 · 4 · 8.03 = 64 GB, four fifths" in text
    peak = shown(notebook, "run = one.record")
    states, weights = (int(re.search(rf"{kind} ([\d,]+)", peak)[1].replace(",", ""))
                       for kind in ("optimizer", "parameters"))  # fmt: skip
    assert 0 < states - 2 * weights < 1000  # and the counters
    assert "It is 64 GB." in peak
    assert f"{training.SHAPE.numel:,} weights" in text and "for 200 steps by AdamW" in text


def test_the_cover(text):
    llama = model(cover.MODEL)
    weights, states = 8 * llama.numel, state_bytes("adamw", llama)
    assert f"{(weights + states) / 1e9:,.0f} GB" == "1,129 GB" and "half of 1,129 GB" in text
    assert f"{weights / 1e9:.0f} GB remain" in text and states == pytest.approx(weights, rel=1e-6)
    needed = [-(-(weights + state_bytes(name, llama)) // (80 * 10**9))
              for name in ("adamw", "adafactor")]  # fmt: skip
    assert needed == [15, 8] and "AdamW needs 15 of them, Adafactor 8" in text


def mean_step(every_k: int, steps: int = 20_000) -> float:
    """Give the mean step of Adam in learning rates, with a gradient of 1 in every k-th step."""
    m = v = total = 0.0
    for t in range(1, steps + 1):
        g = float(t % every_k == 0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        total += (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    return total / steps


def test_rare_gradients_slow_a_weight_down(text):
    assert mean_step(1) == pytest.approx(1) and mean_step(100) == pytest.approx(0.1, rel=0.05)
    told = "Each gradient then counts ten times as much, and the weight moves a tenth as far"
    assert told in text


def test_seeds_alone_change_the_loss(notebook, text):
    ends = [float(n) for n in re.findall(r": (\d\.\d\d)", shown(notebook, "def train(name"))]
    assert len(ends) == 3 and 0.02 < max(ends) - min(ends) < 0.06
    assert "by some hundredths" in text


def test_the_factors(notebook, text):
    rows = rows_of(notebook, "represented.moments().items()", ("tokens", "qkv", "up", "down"))
    inner = rows["up"][-3:], rows["down"][-3:]
    assert min(row[0] for row in inner) == 0.77 and max(row[2] for row in inner) == 1.25
    assert "nine steps in ten are within 25 % of Adam's" in text
    ends = [(rows[name][-3], rows[name][-1]) for name in ("tokens", "qkv")]
    assert ends == [(0.43, 1.52), (0.53, 1.74)]
    assert "some steps are half as long, others 1.5 to 1.7 times" in text
    assert max(row[-1] for row in rows.values()) == rows["qkv"][-1]
    v = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
    rare = torch.tensor([[1.0, 2.0], [0.01, 0.02]])  # a row with few gradients
    assert torch.allclose(
        (rare.mean(1)[:, None] * rare.mean(0) / rare.mean()).mean(1), rare.mean(1)
    )
    assert "A rare token has a row of its own" in text
    assert v.mean(1).tolist() == [2, 4] and v.mean(0).tolist() == [1.5, 4.5] and v.mean() == 3


def test_the_bounds(notebook, text):
    printed = shown(notebook, "def sm3(rows")
    assert "[[9.0, 4.0], [4.0, 4.0]]" in printed
    low, median, high = re.findall(r"%: (\d\.\d)", printed)
    assert f"between {low} and {high}" in text
    assert f"Half of SM3-I's divisors are at least {median} times Adagrad's" in text
    total, rows, columns = torch.zeros(256, 64), torch.zeros(256), torch.zeros(64)
    for g in represented.gradients():
        total += g**2
        nu, rows, columns = represented.sm3_ii(rows, columns, g)
    second = [f"{share:.1f}" for share in represented.percentiles((nu / total).sqrt())]
    assert second[:2] == [low, median] and 0 <= float(high) - float(second[2]) < 0.2
    assert "percentiles of √(ν/γ) are {}, {} and {}".format(*second) in text
    assert "SM3-II's bounds are hardly nearer than SM3-I's" in text


def test_sm3_of_the_cell_is_the_librarys(notebook):
    (cell,) = [c.source for c in notebook.cells if "def sm3(rows" in c.source]
    space = {"torch": torch}
    exec(cell.split("\n\n\n")[0], space)
    weight = torch.nn.Parameter(torch.zeros(256, 64))
    optimizer = SM3([weight], lr=0.1, momentum=0.0, version="I")
    w, rows, columns = torch.zeros(256, 64), 0, 0
    for g in represented.gradients()[:5]:
        nu, rows, columns = space["sm3"](rows, columns, g)
        w -= 0.1 * g / nu.sqrt()
        weight.grad = g
        optimizer.step()
    assert torch.allclose(w, weight)


def test_the_codes(notebook, text):
    assert "It is 45 %." in shown(notebook, "def encode")
    printed = shown(notebook, "maps.items()")
    lines = [re.findall(r"[\d.]+(?=%)", line) for line in printed.splitlines()[-4:]]
    lost = [float(line[0]) for line in lines]
    assert lost[0] == 44.8 and lost[-1] == 0.0
    errors = [float(line[1]) for line in lines]
    assert lost[2] < lost[1] and errors[1] < errors[2]  # the map alone, blocks alone
    assert "The dynamic map avoids more zeros, while blocks make the other errors smaller" in text
    assert lines[-1][1] == "0.8" and "half are off by less than 0.9 %" in text
    assert f"{2 * (1 + 4 / 256):.2f} bytes" in text


def test_newton_schulz(notebook, text):
    a, b, c = COEFFICIENTS
    x, seen = 0.1, []
    for _ in range(5):
        x = a * x + b * x**3 + c * x**5
        seen.append(f"{x:.2f}")
    assert "from 0.1 come " + ", ".join(seen[:-1]) + " and " + seen[-1] in text
    rows = rows_of(notebook, "def newton_schulz", ("before", "after"))
    assert f"began at {rows['before'][-1]} of the norm" in text
    assert f"make it only {rows['after'][-1]:.2f}" in text
    m = represented.moments()["down"].m
    before = torch.linalg.svdvals(m / m.norm())
    after = before.double()
    for _ in range(5):
        after = a * after + b * after**3 + c * after**5
    inside = (after >= 0.68) & (after <= 1.21)
    assert f"Of the {len(after)} singular values, {int(inside.sum())} lie between" in text
    assert bool(inside[before >= 0.003].all()) and not bool(inside.all())
    assert rows["after"] == pytest.approx([after[n].item() for n in (0, 20, 40, 60)], rel=0.05)
    grid = torch.linspace(0.003, 1, 100_001, dtype=torch.float64)
    for _ in range(5):
        grid = a * grid + b * grid**3 + c * grid**5
    assert 0.68 < grid.min() < grid.max() < 1.21
    llama = model("Llama 3 8B")
    ends = 2 * 128_256 * 4096
    assert f"{ends / 1e9:.2f} billion" == "1.05 billion"
    assert f"{4 * (llama.numel - ends) / 1e9:.1f} + {8 * ends / 1e9:.1f} = 36.3 GB" in text
    assert f"{state_bytes('muon', llama) / 1e9:.1f}" == "36.3"


def test_the_price_in_learning(notebook, text):
    rows = rows_of(notebook, "training.compared(runs)", training.LEAN)
    kept, mean, low, high = ({name: row[n] for name, row in rows.items()} for n in (0, 2, 3, 4))
    assert kept == {name: state_bytes(name, training.SHAPE) for name in training.LEAN}
    assert f"{kept['adam8bit'] / kept['adamw']:.0%}" == "28%"
    assert f"{kept['adafactor'] / kept['adamw']:.0%}" == "2%"
    assert "With 2 % and 28 % of AdamW's bytes" in text
    assert f"{mean['sm3'] - mean['adamw']:.2f} behind" == "0.15 behind" and low["sm3"] > max(
        high["adafactor"], high["adamw"]
    )
    assert f"{mean['adamw'] - mean['muon']:.2f} ahead" == "0.07 ahead"
    assert high["muon"] < low["adamw"]
    assert "SM3 is 0.15 behind, and Muon is 0.07 ahead" in text
    assert "It is sm3." in shown(notebook, "training.compared(runs)")


@pytest.mark.limit(200)
def test_muon_is_better_at_twice_its_rate(worlds, notebook, text):
    rates = training.rates_tried(worlds(2, device="cpu"), "muon", [0.02], steps=200)
    rows = rows_of(notebook, "training.compared(runs)", training.LEAN)
    assert training.RATES["muon"] == 0.01 and rates[0.02] < rows["muon"][2] - 0.02
    assert "Muon is better still at 0.02, twice its rate here" in text


@pytest.mark.limit(200)
def test_adafactor_falls_behind_in_longer_trainings(worlds, text):
    names = ("adamw", "adafactor", "adam8bit")
    runs = training.trainings(worlds(2, device="cpu"), training.trained, names)
    first = [sum(training.final(losses[:200]) for losses in seeds.values()) / 3
             for seeds in runs.values()]  # fmt: skip
    assert all(abs(loss - first[0]) < 0.01 for loss in first)
    assert "Adafactor and 8-bit Adam differ from AdamW by less than 0.01" in text
    adamw, adafactor, _ = (sum(map(training.final, seeds.values())) / 3 for seeds in runs.values())
    assert f"{adafactor - adamw:.1f}" == "0.1"
    assert "After 400 steps Adafactor is 0.1 behind as well" in text
    assert training.STEPS == 400


def test_the_answers_to_the_controls(notebook, text):
    fits = re.findall(r"^  (\w+): .* bytes, fits", shown(notebook, "training.compared"), re.M)
    assert fits == ["adafactor"] and "Only Adafactor" in text
    llama = model("Llama 3 8B")
    all_of_it = 8 * llama.numel + state_bytes("adam8bit", llama)
    assert f"It needs {all_of_it / 1e9:.1f} GB, {all_of_it / 1e9 - 80:.1f} more" in text
    wide = (4 + 2 + 4) * llama.numel + state_bytes("adafactor", llama)
    assert f"fp32 gradients Adafactor would not fit either: it would need {wide / 1e9:.1f}" in text
    card = 79.25 * 2**30  # as PyTorch's messages say of an A100 of 80 GB
    assert f"{card / 1e9:.1f} · 10⁹ bytes" in text
    assert f"with {(card - all_of_it) / 1e9:.1f} GB left" in text
    halves = {name: state_bytes(name, llama, 2) / state_bytes(name, llama)
              for name in training.LEAN}  # fmt: skip
    assert [name for name, share in halves.items() if share > 0.51] == ["adam8bit"]


def test_what_optimizers_send(notebook, text):
    flag, *sums = of_adafactor([((4096, 14_336), 0)], 2)
    assert sum(call.bytes for call in sums) // 4 == 14_338 and flag.bytes == 1
    assert "this makes 14,338 numbers, while its gradient has 59 million" in text
    assert round(4096 * 14_336 / 1e6) == 59
    printed = shown(notebook, "traffic=False")
    assert "It is 4 bytes." in printed and "which is 4 bytes for each weight" in text
    assert re.search(r"^adafactor +\d+% +equal$", printed, re.M)
    assert re.search(r"^sm3 +\d+% +equal$", printed, re.M)
    assert re.search(r"^adam8bit +equal +equal$", printed, re.M) and "refused" not in printed
    printed = shown(notebook, '["muon, gather", "muon, owners"]')
    assert printed.count("equal") == 7 + 4 + 10 and printed.count("refused") == 2
    assert "its 16 bytes are those flags" in text and "1,792 sums and 16 flags" in text
    assert sum(p.requires_grad for p in sharded.gpt().parameters()) == 16
    assert sum(call.bytes for call in of_adafactor([((256, 64), 0)], 2)[1:]) == 4 * (64 + 2)
    assert "other" not in printed
    for ranks in (2, 4):
        parts = [((64, 64), [4096 // ranks] * ranks)] * ranks
        owners = sent_numbers(parts, ranks, 0) / (4096 * ranks)
        gather = sent_numbers(parts, ranks, 0, method="gather") / (4096 * ranks)
        assert owners == 2 * (ranks - 1) / ranks**2 and gather == (ranks - 1) / ranks
        assert gather / owners == ranks / 2
    fsdp, tensor = printed.split("tensor ", 1)
    buffers = [int(re.search(r"gather.* ([\d,]{6,}) ", part)[1].replace(",", ""))
               for part in (fsdp, tensor)]  # fmt: skip
    assert [round(nbytes / 1e3) for nbytes in buffers] == [655, 393]
    assert "its buffers take 655 KB where 393 KB would do" in text
    printed = shown(notebook, "def update(g, together)")
    assert "together: True   off by 0.0% on average" in printed
    assert "together: False  off by 3.5% on average" in printed
    assert "first update differs from one device's by 3.5 % on average" in text


def test_pytorchs_optimizers_under_fsdp2(notebook, text):
    printed = shown(notebook, "fsdp2.table(world)")
    assert re.search(r"^Adafactor +RuntimeError$", printed, re.M)
    assert re.search(r"^AdamW +equal$", printed, re.M) and "equal within 2 %" in printed
    assert "`torch.optim.Adafactor` raises a RuntimeError in PyTorch 2.13" in text
    assert "the 2 % are the rounding of its iteration" in text


def test_pytorchs_adafactor_with_the_papers_epsilon_makes_nan_of_an_unseen_row(text):
    rows = {}
    for eps in (1e-18, 1e-30):
        weight = torch.nn.Parameter(torch.ones(2, 3))
        weight.grad = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
        torch.optim.Adafactor([weight], eps=(eps, 1e-3)).step()
        rows[eps] = weight.detach()
    assert bool(rows[1e-18].isfinite().all()) and torch.equal(rows[1e-18][1], torch.ones(3))
    assert bool(rows[1e-30][1].isnan().all()) and "Do not write the paper's 1e-30 there" in text


def test_adafactor_loads_adamws_state_and_fails_in_the_next_step(text):
    weight = torch.nn.Parameter(torch.ones(2, 3))
    weight.grad = torch.ones(2, 3)
    first = torch.optim.AdamW([weight])
    first.step()
    second = torch.optim.Adafactor([weight])
    second.load_state_dict(first.state_dict())
    with pytest.raises(TypeError):
        second.step()
    assert "loads AdamW's state dict without an error, and its next step raises a TypeError" in text


def test_the_defaults_of_weight_decay_and_of_adafactors_rate(text):
    weight = [torch.nn.Parameter(torch.ones(2, 3))]
    decays = [make(weight).defaults["weight_decay"]
              for make in (torch.optim.AdamW, torch.optim.Muon, torch.optim.Adafactor)]  # fmt: skip
    assert decays == [0.01, 0.1, 0] and "0.01 in AdamW" in text and "0.1 in PyTorch's Muon" in text
    assert torch.optim.Adafactor(weight).defaults["lr"] == 0.01 == 10_000**-0.5
    rates = training.RATES
    assert (rates["adamw"], rates["adam8bit"], rates["adafactor"], rates["sm3"], rates["muon"]) == (
        0.002, 0.002, 0.02, 0.02, 0.01
    )  # fmt: skip
    assert "0.02 for Adafactor and SM3, and 0.01 for Muon" in text


def test_a_flat_piece_saves_nothing(worlds, text):
    alone, together = sharded.kept_alone(worlds(2))
    alone, together = (round(nbytes / 2 / 1e3) for nbytes in (alone, together))  # float64 there
    assert f"in float32, rank 0 then keeps {alone} KB instead of {together} KB" in text


def test_the_published_fine_tuning_became_six_percent_slower(text):
    assert "3,200 tokens per second" in text and "3,000 with bitsandbytes" in text
    assert "became 6 % slower in all" in text and round(1 - 3000 / 3200, 2) == 0.06


def _refused(block: int) -> bool:
    try:
        blocks_of(Cut((64, 256), 1), None, {"block": block, "smallest": 4096}, None)
    except ValueError:
        return True
    return False


def test_blocks_of_256_are_refused_in_tensor_parallelism(worlds, text):
    refused = [worlds(2).run(_refused, block) for block in (sharded.BLOCK, 128, 256)]
    assert refused == [[False] * 2, [False] * 2, [True] * 2]
    assert "blocks have only 32 numbers here" in text and sharded.BLOCK == 32
    assert "With 256, `down` [64, 256] would be refused" in text


def test_moments_that_become_0(notebook, text):
    lines = shown(notebook, "lost_moments.table(cases)").splitlines()[2:]
    rows = {line[:24].strip(): (line[24:30].strip(), line[30:37].strip(), *line[37:].split(None, 1))
            for line in lines}  # fmt: skip
    assert list(rows) == ["AdamW", *lost_moments.CASES]
    for name, (least, most, third, last) in rows.items():
        linear = name.startswith("linear")
        assert linear == (last == "> 1,000") and abs(float(third) - 5.2) < 0.5
        if linear and "embeddings" not in name:
            assert least in ("> 10", "> 100") and most == "> 100"
    moves = {name: row[:2] for name, row in rows.items()}
    assert moves["AdamW"] == ("0.002", "0.002") and moves["dynamic, blocks"] == ("> 0.1", "> 1")
    assert moves["dynamic, embeddings fp32"][1] == "0.004"
    of_seeds = [lost_moments.training_of("dynamic, blocks", n, 2)[1][1][0] for n in range(3)]
    assert sum(move > 1 for move in of_seeds) == 1
    assert "With the linear map some weight moves by more than 10 with every" in text
    assert "after the first step a few of the embedding's v become 0" in text  # test_lessons.py
    assert "moves by more than 0.1 with every seed, and by more than 1 with one." in text
    assert "the largest move is 0.004" in text


def test_a_missing_correction(text):
    longer = [f"{lessons.longer_without_correction(t):.1f}" for t in (1, 12, 1000)]
    assert longer == ["3.2", "6.6", "1.3"]
    assert "3.2 in the first step, 6.6 in the twelfth, 1.3 in the thousandth" in text


def test_published_figures(text):
    adafactor = state_bytes("adafactor", published.t5_3b())
    assert f"without it Adafactor keeps {adafactor / 1e6:.0f} MB" in text
    saved = 6.738e9 * (4 - 2 * (1 + 4 / 256))  # Llama 2 7B, moments in bf16
    assert f"{saved / 1e9:.1f} · 10⁹ bytes, or {saved / 2**30:.1f} GiB" in text
    assert f"{51.6 - 39.3:.1f} GB" == "12.3 GB" and "The difference is 12.3 GB" in text


def test_what_was_kept_is_printed(notebook):
    assert "recorded: 679492 679492" in shown(notebook, 'lessons.kept("adamw")')
    assert state_bytes("adamw", training.SHAPE) == 679_492


def test_the_dynamic_map_has_twice_as_many_values_in_each_higher_decade(text):
    values = dynamic_values(signed=False)
    counts = [int(((values > 10.0 ** -(k + 1)) & (values < 10.0**-k)).sum()) for k in range(7)]
    assert counts == [128, 64, 32, 16, 8, 4, 2]
    told = (
        "of v has 128 values from 0.1 to 1, 64 from 0.01 to 0.1, and so on, down to 2 between 10⁻⁷"
    )
    assert told in text


def test_the_solutions_follow_their_exercises(text):
    space = {"torch": torch, "predict": exercises.predict}
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 4
    exec(blocks[0], space)
    weights, slices = space["weights"], space["slices"]
    assert round(weights / slices, -1) == 450 and "takes 450 times as much" in text
    exec(blocks[1], space)
    assert exercises.write.check(space["my_sm3"]).solved
    exec(blocks[2], space)
    assert exercises.repair.check(space["MyAdam"]).solved
