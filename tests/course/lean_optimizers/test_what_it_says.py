"""What chapter 11 says of its numbers is what its cells printed, and what is computed here."""

import re

import pytest
import torch

from lib.course.lean_optimizers import exercises, lessons, sharded, training
from lib.predict.optimizers import state_bytes
from lib.predict.optimizers.muon import sent_numbers
from lib.predict.optimizers.traffic import of_adafactor
from lib.predict.sharded.models import model
from lib.single.optimizers.muon import COEFFICIENTS
from tests.course.stored_chapter import chapter_fixtures, main_path, minutes_of, shown
from tests.every import every

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


def test_the_main_path_is_short(notebook):
    cells, words = main_path(notebook)
    assert 0 < cells <= 45 and 0 < words <= 3000


def test_the_minutes_are_those_of_the_headings(text):
    main, later = minutes_of(text)
    told = re.search(r"main path takes (\d+) minutes .* exercises 2 and 3 take (\d+)", text)
    assert later == int(told[2]) and 0 <= int(told[1]) - main < 5  # rounded up to five
    assert main <= 50


def test_what_the_chapter_prints_fits_a_phone(notebook):
    """49 characters stand beside one another on 360 px."""
    printed = [o.text for c in notebook.cells for o in c.get("outputs", []) if "text" in o]
    assert len(printed) > 8
    assert every(len(line) <= 49 for words in printed for line in words.splitlines())


def test_what_adam_keeps(notebook, text):
    llama = model("Llama 3 8B")
    assert f"has {llama.numel / 1e9:.2f} billion weights" in text
    assert round(8 * llama.numel / 1e9) == 64 and "are 64 GB, four fifths" in text
    peak = shown(notebook, "run = one.record")
    states, weights = (int(re.search(rf"{kind} ([\d,]+)", peak)[1].replace(",", ""))
                       for kind in ("optimizer", "parameters"))  # fmt: skip
    assert 0 < states - 2 * weights < 1000  # and the counters
    assert "It is 64 GB." in peak
    assert f"{training.SHAPE.numel:,} weights" in text and "for 200 steps by AdamW" in text


def test_seeds_alone_change_the_loss(notebook, text):
    ends = [float(n) for n in re.findall(r": (\d\.\d\d)", shown(notebook, "lessons.ends(runs"))]
    assert len(ends) == 3 and 0.02 < max(ends) - min(ends) < 0.06
    assert "by some hundredths" in text


def test_the_factors(notebook, text):
    rows = rows_of(notebook, "def rank_one", ("tokens", "qkv", "up", "down"))
    inner = rows["up"][-3:], rows["down"][-3:]
    assert min(row[0] for row in inner) == 0.77 and max(row[2] for row in inner) == 1.25
    assert "0.77 to 1.25 times" in text
    assert f"{rows['tokens'][-3]} to {rows['tokens'][-1]} times" in text
    v = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
    assert v.mean(1).tolist() == [2, 4] and v.mean(0).tolist() == [1.5, 4.5] and v.mean() == 3


def test_the_bounds(notebook, text):
    printed = shown(notebook, "def sm3(rows")
    assert "[[9.0, 4.0], [4.0, 4.0]]" in printed and "as the library's: True" in printed
    last = printed.splitlines()[-1].split()
    assert last[0] == "20" and last[2] == last[5] == "2.6"
    assert "half of the divisors are 2.6 times as large as Adagrad's or more" in text


def test_the_codes(notebook, text):
    printed = shown(notebook, "def encode")
    lines = [re.findall(r"[\d.]+(?=%)", line) for line in printed.splitlines()[-4:]]
    lost = [float(line[0]) for line in lines]
    assert "It is 45 %." in printed and lost[0] == 44.8 and lost[-1] == 0.0
    assert lines[-1][1] == "0.8" and "off by less than 0.8 %" in text
    assert f"{2 * (1 + 4 / 256):.2f} bytes" in text


def test_newton_schulz(notebook, text):
    a, b, c = COEFFICIENTS
    x, seen = 0.1, []
    for _ in range(5):
        x = a * x + b * x**3 + c * x**5
        seen.append(f"{x:.2f}")
    assert "from 0.1 come " + ", ".join(seen[:-1]) + " and " + seen[-1] in text
    rows = rows_of(notebook, "def newton_schulz", ("before", "after"))
    assert round(rows["before"][0] / rows["before"][-1], -1) == 90 and "90 times as large" in text
    assert (
        f"{rows['after'][0] / rows['after'][-1]:.1f}" == "1.4" and "is 1.4 times as large" in text
    )
    llama = model("Llama 3 8B")
    ends = 2 * 128_256 * 4096
    assert f"{ends / 1e9:.2f} billion" == "1.05 billion"
    assert f"{4 * (llama.numel - ends) / 1e9:.1f} + {8 * ends / 1e9:.1f} = 36.3 GB" in text
    assert "It is 36.3 GB." in shown(notebook, "def newton_schulz")


def test_the_price_in_learning(notebook, text):
    rows = rows_of(notebook, "training.compared(runs)", training.LEAN)
    kept, mean, low, high = ({name: row[n] for name, row in rows.items()} for n in (0, 2, 3, 4))
    assert kept == {name: state_bytes(name, training.SHAPE) for name in training.LEAN}
    assert f"{kept['adam8bit'] / kept['adamw']:.0%}" == "28%"
    assert (
        f"{kept['adafactor'] / kept['adamw']:.0%}" == "2%"
        and "with 2 % and 28 % of AdamW's bytes" in text
    )
    close = [abs(mean[name] - mean["adamw"]) for name in ("adafactor", "adam8bit")]
    assert max(close) < high["adamw"] - low["adamw"]
    assert f"{mean['sm3'] - mean['adamw']:.2f} behind" == "0.15 behind" and low["sm3"] > max(
        high["adafactor"], high["adamw"]
    )
    assert f"{mean['adamw'] - mean['muon']:.2f} ahead" == "0.07 ahead"
    assert high["muon"] < low["adamw"]
    assert "SM3 is 0.15 behind, and Muon is 0.07 ahead" in text
    assert "It is muon." in shown(notebook, "training.compared(runs)")


@pytest.mark.limit(200)
def test_adafactor_falls_behind_in_longer_trainings(worlds, text):
    runs = training.trainings(worlds(2, device="cpu"), ("adamw", "adafactor"))
    adamw, adafactor = (sum(map(training.final, seeds.values())) / 3 for seeds in runs.values())
    assert f"{adafactor - adamw:.1f}" == "0.1"
    assert "after 400 steps Adafactor is 0.1 behind AdamW" in text and training.STEPS == 400


def test_the_answers_to_the_controls(notebook, text):
    fits = re.findall(r"^  (\w+): .* bytes, fits", shown(notebook, "training.compared"), re.M)
    assert fits == ["adafactor"] and "Adafactor alone" in text
    llama = model("Llama 3 8B")
    all_of_it = 8 * llama.numel + state_bytes("adam8bit", llama)
    assert f"{all_of_it / 1e9:.1f} GB, without activations" in text
    halves = {
        name: state_bytes(name, llama, 2) / state_bytes(name, llama) for name in training.LEAN
    }
    assert [name for name, share in halves.items() if share > 0.51] == ["adam8bit"]


def test_what_optimizers_send(notebook, text):
    flag, *sums = of_adafactor([((4096, 14_336), 0)], 2)
    assert sum(call.bytes for call in sums) // 4 == 14_338 and flag.bytes == 1
    printed = shown(notebook, "sharded.table(world")
    assert "It is 14,338 numbers." in printed and printed.count("True") == 10
    assert printed.count("equal") == 11 and printed.count("refused") == 2
    for ranks in (2, 4):
        parts = [((64, 64), [4096 // ranks] * ranks)] * ranks
        owners = sent_numbers(parts, ranks, 0) / (4096 * ranks)
        gather = sent_numbers(parts, ranks, 0, method="gather") / (4096 * ranks)
        assert owners == 2 * (ranks - 1) / ranks**2 and gather == (ranks - 1) / ranks
        assert gather / owners == ranks / 2
    printed = shown(notebook, "def update(g, together)")
    assert "together: True   off by 0.0% on average" in printed


def test_a_flat_piece_saves_nothing(worlds, text):
    alone, together = sharded.kept_alone(worlds(2))
    assert f"{round(alone / 1e3)} KB on rank 0 instead of {round(together / 1e3)} KB" in text


def test_a_missing_correction(notebook, text):
    lines = shown(notebook, "lessons.without_correction()").splitlines()
    after_ten = [float(line.split()[4]) for line in lines[1:]]
    assert lines[0].split()[-5:-2] == ["2", "5", "10"]
    assert f"{after_ten[3] - after_ten[2]:.1f} above" in text and after_ten[1] < after_ten[0]
    longer = [f"{lessons.longer_without_correction(t):.1f}" for t in (1, 12, 100)]
    assert longer == ["3.2", "6.6", "3.2"]
    assert (
        "3.2 times in the first step, 6.6 times in the twelfth, 3.2 times in the hundredth" in text
    )


def test_what_was_kept_is_printed(notebook):
    assert "recorded: 679492 679492" in shown(notebook, 'lessons.kept("adamw")')
    assert state_bytes("adamw", training.SHAPE) == 679_492


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
