"""The checkers of chapter 4: what they say to right, wrong, unbegun and failing attempts."""

import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from lib.course import exercises_pipeline as chapter_4
from lib.course.bubbles import Score, score, table
from lib.course.check_schedule import Goal, Invent, Rows
from lib.predict import schedule as rules
from lib.predict.play import Costs, play
from lib.ranks.algorithms import exchange

CHAPTER = Path(__file__).parents[1] / "chapters" / "04-pipeline-bubbles.ipynb"


@pytest.fixture
def world(worlds):
    return worlds(4)


def unbegun(*given): ...


# --- schedules beside one another


def test_thin_stages_do_the_work_of_a_thick_one():
    thick, thin = score(rules.one_f_one_b(4, 8)), score(rules.interleaved(8, 8, 2))
    assert thick == Score("1F1B", 33, 3 / 11, 3 / 8, 3 / 11, (4, 3, 2, 1))
    assert thin.overhead == pytest.approx(3 / (2 * 8))  # (p-1)/(v m)
    assert thin.makespan == pytest.approx(24 * (1 + 3 / 16))
    assert score(rules.zb_v(8, 8)).alive == (4, 4, 4, 4)


def test_costs_are_those_of_a_rank_and_messages_stay_whole():
    costs = Costs(2, 3, 1, send=0.25)
    assert score(rules.zb_h1(4, 8), costs).makespan == play(rules.zb_h1(4, 8), costs).makespan
    half = Costs(1, 1.5, 0.5, send=0.25)
    assert score(rules.zb_v(8, 8), costs).makespan == play(rules.zb_v(8, 8), half).makespan


def test_a_table_has_a_line_for_each_schedule():
    head, *lines = table(rules.gpipe(4, 8), rules.zb_h2(4, 8)).splitlines()
    assert head.split() == ["makespan", "share", "overhead", "span", "alive,", "by", "rank"]
    told = [" ".join(line.split()) for line in lines]
    assert told[0] == "GPipe, m = 8 33 27.3% 37.5% 27.3% 8 8 8 8"
    assert told[1] == "ZB-H2, m = 8 27 11.1% 12.5% 0.0% 7 7 7 7"
    assert max(map(len, [head, *lines])) <= 88


# --- 1: write


def row_1f1b(rank, stages, m):
    return list(map(str, rules.one_f_one_b(stages, m)[rank]))


def row_gpipe(rank, stages, m):
    return list(map(str, rules.gpipe(stages, m)[rank]))


def row_in_turn(rank, stages, m):
    return list(map(str, rules.naive(stages, m)[rank]))


def row_too_short(rank, stages, m):
    return row_1f1b(rank, stages, m - 1)


def row_without_a_backward(rank, stages, m):
    return row_1f1b(rank, stages, m)[:-1]


def row_as_text(rank, stages, m):
    return "0F0"


def row_that_fails(rank, stages, m):
    return [][rank]


def test_the_row_of_1f1b_is_accepted():
    assert isinstance(chapter_4.write, Rows)
    verdict = chapter_4.write.check(row_1f1b)
    assert verdict.solved and verdict.text.startswith("Solved. As fast as 1F1B")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (unbegun, "Not solved yet: `unbegun` returns nothing. Fill in the body of `my_row`"),
        (row_gpipe, "Not yet. With 4 stages and 8 microbatches stage 0 keeps 8, and 1F1B 4."),
        (row_in_turn, "Not yet. With 4 stages and 8 microbatches it takes 96, and 1F1B 33."),
        (row_too_short, "Not yet. With 4 stages and 8 microbatches your rows are for 4 stages "
                        "and 7 microbatches."),
        (row_without_a_backward, "0F7 has no backward: write 0B7"),
        (row_as_text, "the row of rank 0 is '0F0', not a list."),
        (row_that_fails, "it fails: IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_other_rows_hear_what_is_wrong(attempt, words):
    verdict = chapter_4.write.check(attempt)
    assert not verdict.solved and words in verdict.text and "write.hint()" in verdict.text


# --- 2: beat it by hand


def test_a_text_that_meets_both_goals_is_solved():
    goal = chapter_4.shrink
    assert isinstance(goal, Goal) and (goal.par, goal.limit) == (15, 4)
    assert play(rules.one_f_one_b(4, 4), goal.costs).makespan == 21  # as the chapter says
    verdict = goal.check(str(rules.zb_h1(4, 4)))
    assert verdict.text == "Solved: makespan 15, par 15; most alive 4, at most 4."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Not solved yet: there is no text yet. Copy the picture's text"),
        (str(rules.one_f_one_b(4, 4)), "Legal, and makespan 21, par 15; most alive 4, at most 4."),
        (str(rules.gpipe(4, 8)), "Your text has 4 stages and 8 microbatches; the task has 4 and 4"),
        ("hello", "This is not the text of a schedule"),
        (str(rules.zb_h1(4, 4)).replace("3F0,3I0", "3I0,3F0"), "3I0 comes before its forward, 3F0"),
        (str(rules.zb_h1(4, 4)).replace("1F0,", ""), "1F0 is missing"),
    ],
)
def test_other_texts_hear_how_far_they_are(text, words):
    verdict = chapter_4.shrink.check(text)
    assert not verdict.solved and words in verdict.text and "shrink.hint()" in verdict.text


def test_speed_bought_with_memory_is_not_enough():
    tight = Goal(name="tight", task="", par=15, limit=3)
    assert "most alive 4, at most 3" in tight.check(str(rules.zb_h1(4, 4))).text


# --- 3: split a backward


def for_input(g, weights):
    return g @ weights.T


def for_weights(g, x):
    return x.flatten(0, -2).T @ g.flatten(0, -2)


def for_weights_of_a_matrix(g, x):
    return x.mT @ g


def for_input_without_transposing(g, weights):
    return g @ weights


def for_weights_twice(g, x):
    return 2 * for_weights(g, x)


def test_both_halves_of_a_linear_layer_are_accepted():
    assert chapter_4.halves.check(for_input, for_weights).solved


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (unbegun, unbegun, "Not solved yet: `unbegun` returns nothing. Fill in both functions"),
        (for_input, unbegun, "Not solved yet: `unbegun` returns nothing."),
        (for_input_without_transposing, for_weights,
         "`for_input_without_transposing` fails for x [3, 4]: RuntimeError: mat1 and mat2"),
        (for_input, for_weights_of_a_matrix,
         "`for_weights_of_a_matrix` for x [2, 5, 4]: has shape [2, 4, 6], not [4, 6]"),
        (for_input, for_weights_twice, "`for_weights_twice` for x [3, 4]:"),
    ],
)  # fmt: skip
def test_other_halves_hear_which_and_for_what(first, second, words):
    verdict = chapter_4.halves.check(first, second)
    assert not verdict.solved and words in verdict.text and "halves.hint()" in verdict.text


# --- 4: repair


def neighbours(x):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    return rank - 1, rank + 1 if rank < last else -1, torch.zeros_like(x), torch.zeros_like(x)


def at_once(x):
    left, right, came, back = neighbours(x)
    sends = {right: x} if right > 0 else {}
    receives = {right: back} if right > 0 else {}
    if left >= 0:
        sends[left], receives[left] = -x, came
    exchange(sends, receives)
    return torch.stack([came, back])


def send_first(x):
    left, right, came, back = neighbours(x)
    if right > 0:
        dist.send(x, right)
    if left >= 0:
        dist.send(-x, left)
        dist.recv(came, left)
    if right > 0:
        dist.recv(back, right)
    return torch.stack([came, back])


def no_gradients(x):
    return torch.stack([at_once(x)[0], torch.zeros_like(x)])


def test_all_at_once_ends(world):
    verdict = chapter_4.repair.check(at_once, world)
    assert verdict.solved and "Right on ranks 0, 1, 2 and 3" in verdict.text


def test_the_planted_deadlock_is_told_and_the_ranks_live(world):
    text = chapter_4.repair.check(send_first, world).text
    assert "ranks 0, 1, 2 and 3 wait for ever: they wait for each other." in text
    assert "repair.hint()" in text
    assert chapter_4.repair.check(at_once, world).solved


def test_a_lost_gradient_is_found_on_the_first_rank_that_misses_it(world):
    verdict = chapter_4.repair.check(no_gradients, world)
    assert not verdict.solved and "rank 0 differs first" in verdict.text
    assert "Rank 3 is right." in verdict.text
    assert chapter_4.repair.check(unbegun, world).text.startswith("Not solved yet")


# --- 5: explain


def test_the_three_definitions_are_told_apart():
    check = chapter_4.explain.check
    assert check(huang="share", narayanan="overhead", qi="span").solved
    assert check().text.startswith("Not solved yet: nothing is there.")
    some = check(huang="span", narayanan="overhead", qi=None)
    assert not some.solved
    assert "huang: not that one" in some.text and "narayanan: right" in some.text
    assert "qi: not yet" in some.text


def test_the_figures_of_the_question_are_those_of_the_definitions():
    assert f"{play(rules.gpipe(4, 8)).bubble('share'):.1%}" == "27.3%"
    assert f"{play(rules.one_f_one_b(8, 64)).bubble('overhead'):.1%}" == "10.9%"
    run = play(rules.zb_h2(8, 24), Costs(29.718, 29.444, 19.927, send=0.527))
    assert f"{run.bubble('span'):.2%}" == "6.98%" != f"{run.bubble('share'):.2%}"


# --- and invent


def test_what_neither_zero_bubble_schedule_dominates_is_an_invention():
    (answer,) = [
        code
        for cell in nbformat.read(CHAPTER, as_version=4).cells
        if cell.source.startswith("## Invent")
        for code in re.findall(r"```python\n(.*?)```", cell.source, re.S)
    ]
    space = {}
    exec("from lib.predict.actions import Schedule\n" + answer, space)
    assert isinstance(chapter_4.invent, Invent)
    verdict = chapter_4.invent.check(space["yours"])
    assert verdict.solved and verdict.text.startswith("Solved: yours")
    assert re.search(r"schedule, m = 8 +48 .* 5 \d \d \d$", verdict.text)
    again = chapter_4.invent.check(space["yours"], Costs(1, 1, 1))  # there ZB-H1 takes no longer
    assert not again.solved and "ZB-H1 takes no longer and keeps no more" in again.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  ", "Not solved yet: there is no text yet."),
        (str(rules.zb_h2(4, 8)), "This is ZB-H2, action for action. Change it."),
        (str(rules.zb_v(8, 8)), "This is ZB-V, action for action."),
        (str(rules.gpipe(4, 8)), "Legal and yours, but ZB-H1 takes no longer and keeps no more."),
        (str(rules.one_f_one_b(4, 8)).replace("1F0,", ""), "1F0 is missing"),
        ("0F0,1F0,1B0,0B0\n2F0,2B0", "Give every rank as many stages as the others."),
    ],
)
def test_other_texts_are_no_inventions(text, words):
    verdict = chapter_4.invent.check(text)
    assert not verdict.solved and words in verdict.text and "invent.hint()" in verdict.text
