"""Chapter 9's checkers, from the start state over mistakes to the solution."""

import math
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from lib.course.recomputation import exercises as chapter
from lib.predict.recompute import best, every, none, square_root, use_of
from tests.every import every as every_one


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- predict


def test_the_predicted_numbers_are_those_of_the_formula():
    peak = lambda k: (100 / k - 1) * 2 + k * 18
    k = min((k for k in range(1, 101) if 100 % k == 0), key=peak)
    right = {"k": k, "peak": peak(k), "longer": 100 * 2 / 5}
    assert chapter.predict.check(**right).solved
    assert (k, peak(k), peak(10)) == (4, 120, 198)
    assert abs(math.sqrt(100 * 2 / 18) - k) < 1
    for wrong in ({"k": 10}, {"peak": peak(10)}, {"longer": 50}, {"longer": 33.3}):
        assert not chapter.predict.check(**right | wrong).solved
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


class Unbegun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x): ...


class Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(dy)
        return None, x.grad


class WithoutWeights(Reentrant):
    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        return None, torch.autograd.grad(y, x, dy)[0]


class Thrice(Reentrant):
    @staticmethod
    def forward(ctx, function, x):
        function(x)
        return Reentrant.forward(ctx, function, x)


class KeepsMore(Reentrant):
    @staticmethod
    def forward(ctx, function, x):
        y = Reentrant.forward(ctx, function, x)
        ctx.save_for_backward(x, x * 2)
        return y

    @staticmethod
    def backward(ctx, dy):
        both = ctx.saved_tensors
        return Reentrant.backward(
            SimpleNamespace(function=ctx.function, saved_tensors=both[:1]), dy
        )


@pytest.mark.parametrize(
    "attempt, words",
    [
        (Unbegun, "Not solved yet"),
        (WithoutWeights, "differs first"),
        (Thrice, "the function ran 3 times in a step"),
        (KeepsMore, "60 bytes were kept from forward to backward beside x"),
    ],
)
def test_a_wrong_checkpoint_is_told_why(world, attempt, words):
    verdict = chapter.write.check(attempt, world)
    assert not verdict.solved and words in " ".join(repr(verdict).split())


def test_the_checkpoint(world):
    assert chapter.write.check(Reentrant, world).solved


# --- repair


def repaired(before=True, after=True):
    """Give the chapter's checkpoint, with the states of the random numbers set or not."""

    def my_checkpoint(function, x):
        numbers, caught = count(), {}
        state = torch.get_rng_state()

        def forget(tensor):
            return next(numbers)

        def catch(tensor):
            caught[len(caught)] = tensor.detach()

        def remember(number):
            if number not in caught:
                present = torch.get_rng_state()
                if before:
                    torch.set_rng_state(state)
                with torch.enable_grad(), saved_tensors_hooks(catch, lambda none: none):
                    function(x.detach().requires_grad_(x.requires_grad))
                if after:
                    torch.set_rng_state(present)
            return caught.pop(number)

        with saved_tensors_hooks(forget, remember):
            return function(x)

    return my_checkpoint


def test_the_repaired_checkpoint(world):
    assert chapter.repair.check(repaired(), world).solved
    for half in (repaired(before=False), repaired(after=False), repaired(False, False)):
        verdict = chapter.repair.check(half, world)
        assert not verdict.solved and "differs first" in verdict.text
    assert chapter.repair.check(lambda function, x: None, world).text.startswith("Not solved yet")


def test_the_example_beside_the_exercise():
    """As the text says, x.grad equals y in the repaired checkpoint, and not in the first one."""
    for checkpoint, equal in ((repaired(), True), (repaired(False, False), False)):
        torch.manual_seed(1)
        x = torch.ones(3, 4, requires_grad=True)
        y = checkpoint(lambda x: x * (torch.rand(x.shape) < 0.5), x)
        y.sum().backward()
        assert torch.equal(x.grad, y) == equal


# --- a plan by hand


def test_the_plan_by_hand():
    goal = best(chapter.UNEQUAL, chapter.BUDGET)
    assert chapter.by_hand.check(goal).solved
    assert chapter.by_hand.check().text.startswith("Not solved yet")
    assert "does not fit" in chapter.by_hand.check(none(8)).text
    for lazy in (square_root(8), every(8, 1)):
        assert use_of(lazy, chapter.UNEQUAL).peak <= chapter.BUDGET
        assert "computes too much again" in chapter.by_hand.check(lazy).text
    assert "once each" in chapter.by_hand.check((0, 1)).text


def test_no_plan_beats_the_goal():
    """All plans without nested checkpoints: each gap between blocks joins two or does not."""
    plans = []

    def grow(items, block):
        if block == 8:
            plans.append(tuple(items))
            return
        grow([*items, block], block + 1)
        for end in range(block + 1, 9):
            grow([*items, tuple(range(block, end))], end)

    grow([], 0)
    uses = [use_of(plan, chapter.UNEQUAL) for plan in plans]
    fits = [use.again for use in uses if use.peak <= chapter.BUDGET]
    goal = use_of(best(chapter.UNEQUAL, chapter.BUDGET), chapter.UNEQUAL)
    assert len(plans) == 1597 and min(fits) == pytest.approx(goal.again)
    assert every_one(use.again > 0 for use in uses if use.peak <= chapter.BUDGET)
