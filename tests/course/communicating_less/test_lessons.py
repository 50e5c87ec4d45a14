"""What chapter 2's cells call: its cover, its spread, its words, its times of exchanges."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from lib.course.communicating_less import costs, lessons
from lib.course.communicating_less.cover import above_one_another
from lib.course.narrow import WIDTH
from lib.parallel.data import PowerSGD, Quantized, Sign, TopK
from lib.parallel.data.compressors import Cast
from tests.course.stored_chapter import main_path, stored_chapter
from tests.every import every

ROOT = Path(__file__).parents[3]


def test_the_first_picture_is_what_the_cover_draws():
    notebook = stored_chapter("02-communicating-less")
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", notebook.cells[0].source)
    assert Image.open(ROOT / "chapters" / name).size[0] == 2 * WIDTH
    one, other = above_one_another().values()
    assert one.ranks == other.ranks == (1, 2, 3) and one.source == other.source == "predicted"
    assert one.column("end").max() == pytest.approx(0.045)
    assert other.column("end").max() == pytest.approx(0.023)
    one, other = ([run.where(lane="wait", rank=r).column("seconds").sum() for r in run.ranks]
                  for run in (one, other))  # fmt: skip
    assert min(one) > 0.02 and max(other) < 0.001


def test_the_main_path_is_short():
    """At most 3,000 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(stored_chapter("02-communicating-less"))
    assert 0 < cells <= 45 and 0 < words <= 3000


def test_a_spread_is_the_mean_and_both_ends():
    assert lessons.spread([0.3, 0.1, 0.2]) == "0.20 (0.10 to 0.30)"


def test_what_is_won_back_is_a_share_of_what_was_added():
    losses = {"plain": [1.0, 3.0], "no feedback": [2.0, 6.0], "top 1 %": [2.0, 5.0]}
    assert lessons.won_back(losses) == pytest.approx(0.25)


def test_disagreement_is_a_share_of_the_first():
    by_rank = [torch.tensor([[[2.0, 0.0], [1.0, 0.0]]]), torch.zeros(1, 2, 2)]
    assert lessons.disagreement(by_rank) == pytest.approx([1, 0.5])
    two = [torch.tensor([[[1.0], [1.0]], [[1.0], [0.0]]]), torch.zeros(2, 2, 1)]
    assert lessons.disagreement(two) == pytest.approx([1, 0.5**0.5])


def test_the_words_are_those_of_the_text():
    words, count = lessons.course_words()
    assert words.max() + 1 == count == len(words.unique()) and len(words) > 10 * count


def test_batches_differ_between_workers_numbers_and_seeds():
    drawn = [lessons.samples(*key)[0] for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    for n, x in enumerate(drawn):
        assert not any(torch.equal(x, y) for y in drawn[:n])
    assert torch.equal(lessons.samples(3, 2, 1)[1], lessons.samples(3, 2, 1)[1])


def test_what_a_hook_computes_takes_time_on_the_roofline(worlds):
    seconds = {
        name: max(worlds(2).run(costs.roofline_seconds, hook, "H100", 2**20))
        for name, hook in (("sign", Sign()), ("top-k", TopK(0.01)), ("PowerSGD", PowerSGD(2)))
    }
    once = 1 / 3.35e12  # s to move a byte: each hook moves every gradient several times
    assert min(seconds.values()) > 2 * once and max(seconds.values()) < 200 * once


def test_exchanges_are_measured(worlds):
    both = worlds(2).run(costs.exchange_seconds, None, 2**18)
    alone = worlds(2).run(costs.exchange_alone, TopK(0.01), 2**18)
    assert every(0 < seconds < 10 for seconds in (*both, *alone))
    assert len(both) == len(alone) == 2


def test_two_different_pairings_of_four_ranks_give_the_mean():
    x = torch.tensor([0.0, 0.0, 0.0, 12.0])
    for pairing in ([1, 0, 3, 2], [2, 3, 0, 1]):
        x = (x + x[pairing]) / 2
    assert x.tolist() == [3, 3, 3, 3]


def test_feedback_wins_back_nearly_all_with_plain_sgd(worlds):
    """The text under the table of compressors: 8 % with AdamW, also after as many steps."""
    hooks = {"plain": lambda: None, "no feedback": lambda: TopK(0.01, False)}
    hooks["top 1 %"] = lambda: TopK(0.01)

    def losses_of(rate):
        return {
            name: [
                worlds(4).run(lessons.train_gpt, make(), seed, 60, rate)[0]
                for seed in lessons.SEEDS
            ]
            for name, make in hooks.items()
        }

    assert 0.05 < lessons.won_back(losses_of(None)) < 0.12  # AdamW
    losses = losses_of(0.3)
    assert 0.9 < lessons.won_back(losses) < 1.1, losses  # the mean of three seeds that scatter
    shares = [lessons.won_back({name: [of[n]] for name, of in losses.items()}) for n in range(3)]
    assert min(shares) < 0.5 and max(shares) > 1.2, shares


def first_loss(seed):
    return lessons.gpt_loss(lessons.small_gpt(seed), 0, seed).item()


def test_the_small_gpt_starts_where_the_text_says(worlds):
    (text,) = [c.source for c in stored_chapter("02-communicating-less").cells
               if "`trained_with` trains" in c.source]  # fmt: skip
    assert "(29,664 weights), whose loss starts at 5.56, " in text
    assert sum(p.numel() for p in lessons.small_gpt().parameters()) == 29_664
    starts = [worlds(4).run(first_loss, seed) for seed in lessons.SEEDS]
    assert round(sum(map(sum, starts)) / 12, 2) == 5.56


def test_the_hooks_that_keep_a_residual_are_those_of_the_text():
    assert all(hook.feedback for hook in (TopK(0.01), Sign(), PowerSGD(2)))
    assert not any(hook.feedback for hook in (Cast(), Quantized(4)))


def test_momentum_does_for_the_plain_version_what_it_does_for_diloco():
    losses = [lessons.plain(4, seed, 0.9) for seed in lessons.SEEDS]
    assert round(sum(losses) / 3, 2) == 0.16
