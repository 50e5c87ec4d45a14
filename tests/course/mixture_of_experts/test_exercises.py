"""Chapter 8's checkers, from the start state over mistakes to the solution."""

import re
from statistics import mean

import pytest
import torch
import torch.distributed as dist

from lib.course.mixture_of_experts import exercises as chapter
from lib.course.mixture_of_experts import regions
from lib.course.mixture_of_experts.training import SEEDS
from lib.ranks import collectives
from tests.course.stored_chapter import stored_chapter


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture(scope="module")
def text():
    notebook = stored_chapter("08-mixture-of-experts")
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def solution(text, words, names):
    """Run the program of the one folded solution with these words, with `names` known."""
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if words in b]
    exec(re.split(r"^\w+\.check", block, flags=re.M)[0], names)
    return names


# --- predict


def test_the_predicted_numbers_are_those_of_the_text(text):
    exec(re.search(r"```python\n([^`]*^predict\.check.*?)```", text, re.S | re.M)[1])
    assert chapter.predict.solved
    right = {"dispatch": 7 / 8 * 2 * 4096 * 4096 * 2 / 1e6, "capacity": 1280,
             "dropped": 100 * 768 / 8192}  # fmt: skip
    assert chapter.predict.check(**right).solved
    assert not chapter.predict.check(**right | {"dispatch": 8 / 7 * right["dispatch"]}).solved
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


def unbegun(rows, to, factor): ...


def right_layer(rows, to, factor):
    order = to.argsort(stable=True)
    sent = torch.bincount(to, minlength=dist.get_world_size())
    received = collectives.all_to_all(sent)
    sent, received = sent.tolist(), received.tolist()
    arrived = collectives.all_to_all(rows[order], sent=sent, received=received)
    back = collectives.all_to_all(factor * arrived, sent=received, received=sent)
    return back[order.argsort()]


def out_of_order(rows, to, factor):
    order = to.argsort(stable=True)
    return right_layer(rows, to, factor)[order]


def at_home(rows, to, factor):
    return rows * factor


def as_in_the_example(rows, to, factor):
    return rows * (to + 2.0)[:, None]


def without_counts(rows, to, factor):
    order = to.argsort(stable=True)
    sent = torch.bincount(to, minlength=dist.get_world_size()).tolist()
    return collectives.all_to_all(rows[order], sent=sent, received=sent) * factor


def test_dispatch_and_combine(world, text):
    assert chapter.write.check(unbegun, world).text.startswith("Not solved yet")
    names = {"torch": torch, "dist": dist, "collectives": collectives}
    assert chapter.write.check(solution(text, "def my_layer", names)["my_layer"], world).solved
    assert chapter.write.check(right_layer, world).solved
    for wrong in (out_of_order, at_home, as_in_the_example):
        verdict = chapter.write.check(wrong, world)
        assert not verdict.solved and "differs first" in verdict.text
    assert "differs between" in chapter.write.check(without_counts, world).text


def example(layer):
    rows, to = torch.tensor([[1.0, 1, 1], [2, 2, 2]]), torch.tensor([1, 0])
    return layer(rows, to, dist.get_rank() + 2.0).tolist()


def test_the_example_of_the_text_is_what_the_layer_returns(world, text):
    assert "returns `[[3, 3, 3], [4, 4, 4]]` on rank 0" in text
    assert world.run(example, right_layer)[0] == [[3, 3, 3], [4, 4, 4]]


def test_a_rank_gets_no_row_in_the_larger_size():
    inputs = chapter._rows(4, 12)
    assert not any((to == 3).any() for _, to, _ in inputs)


# --- repair


def balance(scores, chosen):
    f = torch.bincount(chosen.flatten(), minlength=scores.shape[-1]) / chosen.numel()
    return scores.shape[-1] * (f * scores.mean(0)).sum()


def all_at_once(scores, chosen):
    return balance(scores.flatten(0, 1), chosen.flatten())


def test_a_loss_of_all_layers_at_once_is_right_for_one_only(text):
    verdict = chapter.repair.check(all_at_once)
    assert not verdict.solved and "With one layer it is right. With four layers" in verdict.text
    assert "the loss is 1, not 3.02115. The layers alone have " in verdict.text
    alone = [float(n) for n in re.search(r"alone have (.*)\.", verdict.text)[1].split(", ")]
    assert len(alone) == 4 and mean(alone) == pytest.approx(3.02115, abs=0.01)
    assert "rank" not in verdict.text and "collective" not in verdict.text
    names = {"torch": torch, "balance": balance}
    assert chapter.repair.check(solution(text, "def my_loss", names)["my_loss"]).solved


def of_the_first_layer(scores, chosen):
    return balance(scores[0], chosen[0])


def as_a_list(scores, chosen):
    return [balance(*layer) for layer in zip(scores, chosen)]


def summed(scores, chosen):
    return sum(balance(*layer) for layer in zip(scores, chosen))


def test_other_wrong_losses_are_told():
    text = chapter.repair.check(summed).text
    assert "the loss is 12.0846, not 3.02115. That is 4 times the mean. The layers" in text
    assert "times the mean" not in chapter.repair.check(all_at_once).text
    assert "With one layer it is right" in chapter.repair.check(of_the_first_layer).text
    assert "With one layer the loss is a list" in chapter.repair.check(as_a_list).text
    assert "it failed: TypeError" in chapter.repair.check(lambda scores: 1).text.replace("\n", " ")
    assert chapter.repair.check(lambda *_: None).text.startswith("Not solved yet")


def test_no_hint_is_the_loop_of_a_solution():
    for exercise in (chapter.repair, chapter.invent, chapter.write):
        assert not any(" for " in hint and ":`" in hint for hint in exercise.hints)
    assert not any("counts.mean()" in hint for hint in chapter.invent.hints)


# --- a rule


def no_rule(layer, counts): ...


def failing(layer, counts):
    layer.gate.bias += counts[:3]


def right_rule(layer, counts):
    layer.gate.bias += 0.1 * (counts.mean() - counts) / counts.sum()


def lower_loss_alone(layer, counts):
    layer.gate.bias += 0.05 * (counts.mean() - counts) / counts.sum()


def the_wrong_way(layer, counts):
    layer.gate.bias -= 0.1 * (counts.mean() - counts) / counts.sum()


def switches_experts_off(layer, counts):
    right_rule(layer, counts)
    layer.experts.down.zero_()


def evens_the_scores(layer, counts):
    right_rule(layer, counts)
    layer.gate.weight.mul_(0.9)


def adds_a_loss(layer, counts):
    right_rule(layer, counts)
    layer.loss_weights["balance"] = 0.01


def freezes(layer, counts):
    right_rule(layer, counts)
    layer.gate.weight.requires_grad_(False)


def places_each_token(layer, counts):
    layer.gate.bias = 9 * torch.eye(8, dtype=torch.float64).repeat(32, 1)


def two_each(layer, counts):
    right_rule(layer, counts)
    layer.gate.k = 2


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (switches_experts_off, "changes the layer's `experts.down`"),
        (evens_the_scores, "changes the layer's `gate.weight`"),
        (adds_a_loss, "changes the layer's `loss_weights`"),
        (freezes, "changes which of the layer's parameters are trained"),
        (places_each_token, "changes the shape of the layer's `gate.bias`"),
        (two_each, "changes the layer's `gate.k`"),
    ],
)
def test_a_rule_that_changes_more_than_the_bias_is_refused(rule, words):
    verdict = chapter.invent.check(rule)
    assert not verdict.solved and words in verdict.text


def test_a_rule_is_judged_by_drops_and_loss(text):
    assert chapter.invent.check().text.startswith("Not solved yet")
    assert "the bias is still 0" in chapter.invent.check(no_rule).text.replace("\n", " ")
    assert "The rule failed: RuntimeError" in chapter.invent.check(failing).text
    assert not chapter.invent.check(lower_loss_alone).solved
    assert not chapter.invent.check(regions.library_rule).solved
    worse = chapter.invent.check(the_wrong_way)
    assert not worse.solved and "with the library's bias" in worse.text.replace("\n", " ")
    solved = chapter.invent.check(solution(text, "def my_rule", {})["my_rule"])
    assert solved.solved and "0.6% of the points are dropped and the loss is 0.116" in (
        solved.text.replace("\n", " ")
    )


def test_what_the_exercise_says_of_other_rules(text):
    """In this task experts matter: without a rule, or without experts, the loss is larger."""
    of = lambda rule: [mean(x) for x in zip(*(regions.trained(rule, seed) for seed in SEEDS))]
    (dropped, loss), none = of(regions.library_rule), of(lambda layer, counts: None)
    assert f"{dropped:.1%} {loss:.3f}" == "6.3% 0.398"
    assert f"{none[0]:.0%} {none[1]:.3f}" == "26% 1.012"
    without = of(lambda layer, counts: layer.experts.down.zero_())
    assert without[1] > 3 > 2 * none[1]
    for words in ("6.3 % of the points are dropped and the loss is 0.398", "ours 0.6 % and 0.116",
                  "Without a rule 26 % are dropped, and the loss is 1.012"):  # fmt: skip
        assert words in text
