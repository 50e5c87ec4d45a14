"""The checkers of chapter 6: what they say to right, wrong, unbegun and failing attempts."""

import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from lib.course.checks.schedules import Goal, Rows
from lib.course.pipeline import exercises as chapter_6
from lib.course.tools.run import execute
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.play import Costs, play
from lib.ranks.algorithms import exchange
from tests import on_gpus
from tests.course.stored_chapter import main_path, stored_chapter, text_of

CHAPTER = Path(__file__).parents[3] / "chapters" / "06-pipeline-bubbles.ipynb"


@pytest.fixture
def world(worlds):
    return worlds(4)


def unbegun(*given): ...


# --- 1: predict


def test_the_numbers_of_the_closed_forms_are_accepted():
    """All times are in ms; the chapter's solution computes them from the same forms."""
    right = {"makespan": 24 * 3 + 7 * 3, "overhead": 100 * 21 / 72, "kept": 6, "enough": 64}
    right |= {"interleaved": 72 + 21 / 2, "zb_h1": 72 + 7}
    assert chapter_6.predict.check(**right).solved
    for name, number in right.items():
        wrong = chapter_6.predict.check(**(right | {name: 1.05 * number}))
        assert not wrong.solved and f"{name}: " in wrong.text and "is too much" in wrong.text
    exactly = chapter_6.predict.check(**(right | {"enough": 63}))  # 7/(63 + 7) is not below 10 %
    assert not exactly.solved and "enough: 63 is too little" in exactly.text
    assert chapter_6.predict.check().text.startswith("Not solved yet: no number is there.")


# --- 2: write


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


def row_for_many_microbatches(rank, stages, m):
    warm = stages - 1 - rank  # without min(..., m)
    row = [f"{rank}F{j}" for j in range(warm)]
    for j in range(m):
        row += [f"{rank}F{j + warm}"] * (j + warm < m) + [f"{rank}B{j}"]
    return row


def row_of_the_last_rank(rank, stages, m):
    return row_1f1b(stages - 1, stages, m)


def row_as_text(rank, stages, m):
    return "0F0"


def row_that_fails(rank, stages, m):
    return [][rank]


def test_the_row_of_1f1b_is_accepted():
    assert isinstance(chapter_6.write, Rows)
    verdict = chapter_6.write.check(row_1f1b)
    assert verdict.solved and verdict.text.startswith("Solved. As fast as 1F1B")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (unbegun, "Not solved yet: `unbegun` returns nothing. Fill in the body of `my_row`"),
        (row_gpipe, "Not yet. With 4 stages and 8 microbatches stage 0 keeps 8, and 1F1B 4."),
        (row_in_turn, "Not yet. With 4 stages and 8 microbatches it takes 96, and 1F1B 33."),
        (row_too_short, "Not yet. With 4 stages and 8 microbatches your rows are for 4 stages "
                        "and 7 microbatches."),
        (row_without_a_backward, "0F7 has no backward. Add 0B7"),
        (row_for_many_microbatches, "With 4 stages and 2 microbatches"),
        (row_of_the_last_rank, "Not yet. With 4 stages and 8 microbatches: row 0 contains 3F0, "
                               "but in this exercise rank 0 holds only stage 0."),
        (row_as_text, "the row of rank 0 is '0F0', not a list."),
        (row_that_fails, "it fails: IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_other_rows_hear_what_is_wrong(attempt, words):
    verdict = chapter_6.write.check(attempt)
    assert not verdict.solved and words in verdict.text and "write.hint()" in verdict.text


def test_the_example_of_exercise_1_returns_what_the_text_says():
    cells = nbformat.read(CHAPTER, as_version=4).cells
    (text,) = [c.source for c in cells if "## Exercise 1: write 1F1B" in c.source]
    block = r"```python[^`]*(def my_row\(rank, stages.*?)\n\n\nwrite"
    (solution,) = [code for c in cells for code in re.findall(block, c.source, re.S)]
    names: dict = {}
    exec(solution, names)
    call, returned = re.search(r"`(my_row\(.*?\))` returns `(.*?)`", text).groups()
    assert eval(call, names) == eval(returned)


# --- 4: beat 1F1B by hand


def test_a_text_that_meets_both_goals_is_solved():
    goal = chapter_6.shrink
    assert isinstance(goal, Goal) and (goal.par, goal.limit) == (15, 4)
    assert play(rules.one_f_one_b(4, 4), goal.costs).makespan == 21
    assert play(goal.start, goal.costs).makespan == 18
    told = (
        "It takes 18, where 1F1B with whole Bs takes 21, because the result of I is sent before W."
    )
    assert told in text_of(stored_chapter(CHAPTER.stem))
    assert play(goal.start, goal.costs).makespan == 18
    verdict = goal.check(str(rules.zb_h1(4, 4)))
    assert verdict.text == (
        "Solved.\n  makespan 15; the goal is 15\n  microbatches alive: 4; the goal is at most 4"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Not solved yet: there is no text yet. Move Ws in the picture"),
        (
            str(rules.one_f_one_b(4, 4)),
            "does not meet both goals.\n  makespan 21; the goal is 15\n  microbatches alive: 4;",
        ),
        (str(rules.gpipe(4, 8)), "Your text has 4 stages and 8 microbatches; the task has 4 and 4"),
        ("hello", "This is not the text of a schedule"),
        (str(rules.zb_h1(4, 4)).replace("3F0,3I0", "3I0,3F0"), "3I0 comes before its forward, 3F0"),
        (str(rules.zb_h1(4, 4)).replace("1F0,", ""), "1F0 is missing"),
    ],
)
def test_other_texts_hear_how_far_they_are(text, words):
    verdict = chapter_6.shrink.check(text)
    assert not verdict.solved and words in verdict.text and "shrink.hint()" in verdict.text


def rows_of(schedule):
    return [[str(action) for action in schedule[rank]] for rank in range(len(schedule))]


def behind(row, action, other):
    """Move an action of a row right behind another."""
    row.remove(action)
    row.insert(row.index(other) + 1, action)


def test_moving_ws_as_the_hints_say_leads_from_the_start_to_the_solution():
    """Rank r does its W of microbatch j only after I of microbatch j + r, in order."""
    goal = chapter_6.shrink
    rows = rows_of(goal.start)
    for rank, row in enumerate(rows):
        for j in reversed(range(4)):
            last = f"{rank}I{min(j + rank, 3)}"
            behind(row, f"{rank}W{j}", last)
    verdict = goal.check("\n".join(",".join(row) for row in rows))
    assert verdict.solved, verdict.text
    without = lambda row: [action for action in row if "W" not in action]
    assert [without(row) for row in rows] == [without(row) for row in rows_of(goal.start)]


def test_speed_bought_with_memory_is_not_enough():
    tight = Goal(name="tight", task="", par=15, limit=3)
    assert (
        "microbatches alive: 4; the goal is at most 3" in tight.check(str(rules.zb_h1(4, 4))).text
    )


# --- 5: split a backward


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
    assert chapter_6.halves.check(for_input, for_weights).solved


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
    verdict = chapter_6.halves.check(first, second)
    assert not verdict.solved and words in verdict.text and "halves.hint()" in verdict.text


# --- 3: repair


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


def receive_between(x):
    left, right, came, back = neighbours(x)
    if right > 0:
        dist.send(x, right)
    if left >= 0:
        dist.recv(came, left)
        dist.send(-x, left)
    if right > 0:
        dist.recv(back, right)
    return torch.stack([came, back])


def no_gradients(x):
    return torch.stack([at_once(x)[0], torch.zeros_like(x)])


def test_all_at_once_ends(world):
    verdict = chapter_6.repair.check(at_once, world)
    assert verdict.solved and "Right on ranks 0, 1, 2 and 3" in verdict.text


def test_receiving_between_two_sends_also_ends_as_the_solution_says(world):
    assert chapter_6.repair.check(receive_between, world).solved


def test_the_planted_deadlock_is_told_and_the_ranks_live(world):
    text = chapter_6.repair.check(send_first, world).text
    told = "ranks 0, 1, 2 and 3 wait for ever: they wait for each other."
    if on_gpus.WANTED:  # NCCL's order of messages is compared before anybody waits
        told = "at a time between two ranks, in the order of the calls, and these two wait for"
    assert told in " ".join(text.split())
    assert "repair.hint()" in text
    assert chapter_6.repair.check(at_once, world).solved


def test_a_lost_gradient_is_found_on_the_first_rank_that_misses_it(world):
    verdict = chapter_6.repair.check(no_gradients, world)
    assert not verdict.solved and "rank 0 differs first" in verdict.text
    assert "Rank 3 is right." in verdict.text
    assert chapter_6.repair.check(unbegun, world).text.startswith("Not solved yet")


# --- and invent

# ZB-H2 with one more forward on rank 0 before its first I.
DEEPEST = str(rules.zb_h2(4, 8)).replace(",0F7", "").replace("0F6", "0F6,0F7")


def test_what_lies_between_the_zero_bubble_schedules_is_an_invention():
    (answer,) = [
        code
        for cell in nbformat.read(CHAPTER, as_version=4).cells
        if "<summary>One answer</summary>" in cell.source
        for code in re.findall(r"```python\n(.*?)```", cell.source, re.S)
    ]
    space = {}
    exec(answer.split("display(")[0], space)
    assert isinstance(chapter_6.invent, chapter_6.Invent)
    verdict = chapter_6.invent.check(space["yours"])
    assert verdict.solved and verdict.text.startswith("Solved. It is faster than ZB-H1")
    assert re.search(r"^schedule m=8 +48 ", verdict.text, re.M)
    assert re.search(r"^schedule m=8 +5 \d \d \d$", verdict.text, re.M)
    again = chapter_6.invent.check(space["yours"], Costs(1, 1, 1))  # there ZB-H1 takes no longer
    assert not again.solved and "must be faster than ZB-H1's" in again.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  ", "Not solved yet: there is no text yet."),
        (str(rules.zb_h2(4, 8)), "This is ZB-H2, action for action. Change it."),
        (str(rules.zb_v(8, 8)), "Your schedule has 8 stages on 4 ranks; the task has one stage on"),
        (
            str(rules.naive(4, 8)),
            "Your schedule is legal, but it takes 160, and must be faster than ZB-H1's 49.",
        ),
        (
            str(rules.gpipe(4, 8)),
            "Your schedule is legal, but it takes 55, and must be faster than ZB-H1's 49.",
        ),
        (
            DEEPEST,
            "Your schedule is legal, but a rank keeps 8 microbatches, and must keep fewer than 7,",
        ),
        (str(rules.one_f_one_b(4, 8)).replace("1F0,", ""), "1F0 is missing"),
        ("0F0,1F0,1B0,0B0\n2F0,2B0", "Your schedule has 3 stages on 2 ranks"),
    ],
)
def test_other_texts_are_no_inventions(text, words):
    verdict = chapter_6.invent.check(text)
    assert not verdict.solved and words in verdict.text and "invent.hint()" in verdict.text


# --- started alone


def test_each_exercise_runs_in_a_new_session(tmp_path):
    notebook = nbformat.read(CHAPTER, as_version=4)
    asks = lambda c: "exercise" in c.metadata.get("tags", []) or "invent.check" in c.source
    alone = [c for c in notebook.cells if c.cell_type == "code" and asks(c)]
    assert len(alone) == 6
    notebook.cells = alone
    nbformat.write(notebook, tmp_path / "alone.ipynb")
    for cell in execute(tmp_path / "alone.ipynb").cells:
        output, *_ = cell.outputs  # a picture may follow
        assert output.data["text/plain"].startswith(("Not solved yet", "Not yet"))


def test_the_main_path_is_short():
    """At most 2,750 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(stored_chapter(CHAPTER.stem))
    assert 0 < cells <= 45 and 0 < words <= 2750
