"""What a plan takes, counted by hand, and the rules that make plans."""

import pytest

from lib.predict.recompute import BlockCost, every, none, read_plan, square_root, use_of

EQUAL = [BlockCost(1, 4, 1.0)] * 6


def test_rules():
    assert none(3) == (0, 1, 2)
    assert every(5, 2) == ((0, 1), (2, 3), (4,))
    assert square_root(10) == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9,))


def test_everything_kept():
    assert use_of(none(6), EQUAL) == (30, 30, 0.0, (1,) * 6)


def test_checkpoints_beside_one_another():
    """After forward two inputs; at the peak one input, and three blocks."""
    assert use_of(every(6, 3), EQUAL) == (2, 1 + 3 * 5, 6.0, (2,) * 6)
    assert use_of(every(6, 1), EQUAL) == (6, 5 + 5, 6.0, (2,) * 6)


def test_kept_blocks_beside_checkpoints():
    costs = [BlockCost(1, 9, 1.0), BlockCost(2, 8, 2.0), BlockCost(3, 5, 4.0)]
    use = use_of((0, (1,), 2), costs)
    assert use == (10 + 2 + 8, 20, 2.0, (1, 2, 1))
    assert use_of(((0, 1), 2), costs) == (1 + 8, 20, 3.0, (2, 2, 1))


def test_a_checkpoint_in_a_checkpoint():
    use = use_of((((0, 1), 2), 3), EQUAL[:4])
    # Forward holds the input and block 3; then block 2 beside the input; then blocks 0 and 1.
    assert use == (1 + 5, 10, 5.0, (3, 3, 2, 1))


@pytest.mark.parametrize("plan", [(0, 2), (1, 0), ((0,), 0, 1), [0, 1], ()])
def test_plans_that_do_not_fit_are_refused(plan):
    with pytest.raises(ValueError, match="A plan for 2 blocks has the numbers 0 to 1 once each"):
        use_of(plan, EQUAL[:2])


@pytest.mark.parametrize(("inside", "best"), [(0, 10), (15, 5)])
def test_the_best_number_of_equal_blocks_in_a_checkpoint(inside, best):
    """It is √(n · i/h): √100 for blocks that hold their input alone, √25 for four times as much."""
    costs = [BlockCost(5, inside, 1.0)] * 100
    peaks = {k: use_of(every(100, k), costs).peak for k in (1, 2, 4, 5, 10, 20, 25, 50, 100)}
    assert peaks == {k: (100 // k - 1) * 5 + k * (5 + inside) for k in peaks}
    assert min(peaks.values()) == peaks[best]
    assert use_of(square_root(100), costs).peak == peaks[10]


@pytest.mark.parametrize("plan", [((0, 1), 2), (((0,), 1), 2), (0, 1, 2)])
def test_the_text_of_a_plan_is_read(plan):
    assert read_plan(f"\n {plan} ", 3) == plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0, 1, (2", "The text of a plan has numbers of blocks, in tuples"),
        ("forget all", "This is not such a text: 'forget all'."),
        ("(0, 1)", "A plan for 3 blocks has the numbers 0 to 2 once each"),
        ("[0, 1, 2]", "A plan for 3 blocks has the numbers"),
        ("(0, (), 1, 2)", "A plan for 3 blocks has the numbers"),
        ("(False, True, 2.0)", "A plan for 3 blocks has the numbers"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_plan(text, 3)
