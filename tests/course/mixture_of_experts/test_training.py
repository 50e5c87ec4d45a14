"""Chapter 8's trainings: what collapses and what does not, on any machine the same."""

import pytest
import torch

from lib.course.mixture_of_experts import training
from lib.course.mixture_of_experts.training import EXPERTS, LAST, RANKS, SEEDS, SHOWN, STEPS, WAYS
from lib.single.experts import with_experts
from tests.course.stored_chapter import stored_chapter
from tests.every import every


@pytest.fixture(scope="module")
def runs(worlds):
    return training.trainings(worlds(2), ways=tuple(WAYS))


def rows(text: str) -> dict:
    """The cells of each way's line in what `compared` writes."""
    return {line[:19].strip(): line[19:].split() for line in text.splitlines()[1:]}


def test_one_seed_is_enough_for_the_table_and_the_picture(worlds):
    """Where many readers share a machine, the chapter offers it."""
    runs = training.trainings(worlds(2), ways=("no loss", "bias"), seeds=(0,))
    assert list(rows(training.compared(runs))) == ["no loss", "bias"]
    assert set(training.recorded_tables(runs)["bias"]) == {0}


def test_every_way_and_seed_is_trained_once(runs):
    assert list(runs) == list(WAYS) and every(tuple(seeds) == SEEDS for seeds in runs.values())
    for name, seeds in runs.items():
        of_a_step = 256 * WAYS[name][0].get("k", 1)
        for run in seeds.values():
            assert len(run.tables) == len(run.losses) == STEPS
            assert every(len(t) == RANKS and len(t[0]) == EXPERTS for t in run.tables)
            assert every(sum(map(sum, table)) == of_a_step for table in run.tables)


def test_the_main_path_trains_what_can_be_compared_with_one_expert_a_token():
    jobs = []

    class Counted:
        def run(self, function, given):
            jobs.extend(given)
            return [[(job, [], []) for job in given]]

    runs = training.trainings(Counted())
    assert list(runs) == [way for way in WAYS if "k" not in WAYS[way][0]] and len(jobs) == 15
    assert len(runs) == 5 and training.trainings(Counted(), seeds=(0,)) and len(jobs) == 20
    text = " ".join(c.source for c in stored_chapter("08-mixture-of-experts").cells)
    assert "5 trainings instead of 15" in text and "The 15 trainings" in text


def test_importance_and_load_has_the_share_that_the_text_says(runs):
    shares = [run.busiest() for run in runs["importance and load"].values()]
    text = " ".join(c.source for c in stored_chapter("08-mixture-of-experts").cells)
    assert f"leaves the busiest expert {100 * sum(shares) / 3:.0f} % of the rows" in text
    assert WAYS["importance and load"][0]["k"] == 2 and max(shares) < 0.5


def test_the_ranks_train_what_one_process_trains(runs):
    alone = training.trained(*WAYS["balance loss"], 1)
    assert runs["balance loss"][1].tables == alone.tables


def test_without_a_loss_or_with_the_z_loss_one_expert_gets_nearly_everything(runs):
    for name in ("no loss", "z-loss"):
        assert every(run.busiest() > 0.7 for run in runs[name].values())
    for name in set(WAYS) - {"no loss", "z-loss"}:
        assert every(run.busiest() < 0.35 for run in runs[name].values())


def test_the_importance_loss_leaves_experts_idle_and_the_balance_loss_none(runs):
    assert sorted(run.idle() for run in runs["importance loss"].values()) == [1, 2, 2]
    assert every(run.idle() == 0 for run in runs["balance loss"].values())


def switched_off(layer, counts):
    layer.experts.down.zero_()


def test_the_loss_says_nothing_because_it_is_the_same_with_experts_switched_off(runs):
    """The table once had a column of losses, which no rule could have made worse."""
    off = [training.trained({}, 0.0, seed, switched_off).loss() for seed in SEEDS]
    medians = [sorted(run.loss() for run in runs[way].values())[1] for way in WAYS]
    assert [f"{loss:.2f}" for loss in (*medians, sorted(off)[1])] == ["2.60"] * 7
    assert every(abs(run.loss() - a) < 0.01 for run, a in zip(runs["no loss"].values(), off))
    assert "loss" not in training.compared(runs).splitlines()[0]


def test_the_table_says_what_the_runs_did(runs):
    cells = rows(training.compared(runs))
    for name in WAYS:
        busiest = sum(run.busiest() for run in runs[name].values()) / 3
        assert len(cells[name]) == 2 and cells[name][0] == f"{busiest:.0%}"
    assert cells["importance loss"][1] == "1.7"


def test_the_way_that_does_not_help_is_found_and_not_written_down(runs):
    ways = ["z-loss", "importance loss", "importance and load", "bias"]
    assert training.least_even(runs, ways) == "z-loss"
    assert training.least_even(runs, ways[1:]) == "bias"


def test_shares_are_those_of_the_last_steps_over_all_ranks():
    table = [[40, 10, *[0] * 6], *[[0, 0, 1, 0, 0, 0, 1, 0]] * 3]
    run = training.Run([[[0] * 8] * 4] + [table] * LAST, [0.0])
    assert len(run.shares()) == LAST
    assert run.shares()[0][:3] == pytest.approx([40 / 56, 10 / 56, 3 / 56])


def test_the_busiest_expert_is_that_of_each_step():
    """Two experts take turns: each has half of the rows, and the busiest has all."""
    first, second = [[8, *[0] * 7]] * 4, [[0, 8, *[0] * 6]] * 4
    run = training.Run([first, second] * (LAST // 2), [0.0])
    assert run.busiest() == 1 and run.idle() == 6


def test_the_picture_has_the_tables_of_the_steps_that_it_shows(runs):
    shown = training.recorded_tables(runs)["bias"][2]
    assert tuple(shown) == SHOWN and SHOWN[-1] == STEPS - 1
    assert shown[20] is runs["bias"][2].tables[20]


@pytest.mark.parametrize("name", ["no loss", "balance loss", "importance and load"])
def test_rounding_does_not_change_who_is_chosen(monkeypatch, name):
    """What another processor rounds otherwise is 100 times smaller than this."""
    expected = training.trained(*WAYS[name], 0)

    class Nudged:
        def __init__(self, *args, **options):
            self.model = with_experts(*args, **options)

        def double(self):
            draw = torch.Generator("cpu").manual_seed(5)
            for p in self.model.double().parameters():
                noise = torch.randn(p.shape, generator=draw, dtype=p.dtype, device="cpu")
                p.data.mul_(1 + 1e-14 * noise)
            return self.model

    monkeypatch.setattr(training, "with_experts", Nudged)
    found = training.trained(*WAYS[name], 0)
    assert found.tables == expected.tables and found.losses != expected.losses
