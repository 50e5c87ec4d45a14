"""Chapter 10's checkers, from the start state over mistakes to the solution."""

import pytest
import torch

from lib.course.mixed_precision import exercises as chapter
from lib.ranks import collectives


def text_of(verdict):
    return " ".join(repr(verdict).split())


# --- predict

RIGHT = {"half": -6.5, "tiny": 3 * 2**-16, "scale": 2**17, "weight": 4}


def test_the_predicted_numbers_are_those_of_pytorch():
    assert chapter.predict.check(**RIGHT).solved
    bits = torch.tensor([0b1_10001_1010000000 - 2**16], dtype=torch.int16)
    assert bits.view(torch.float16).item() == RIGHT["half"]
    tiny = torch.tensor([0b0_00000_11], dtype=torch.uint8).view(torch.float8_e5m2)
    assert tiny.item() == RIGHT["tiny"]
    gradient, weight = torch.tensor([0.3]), torch.tensor([4.0]).bfloat16()
    assert (gradient * RIGHT["scale"]).half().isfinite()
    assert (gradient * RIGHT["scale"] * 2).half().isinf()
    for _ in range(100):
        weight += 0.01
    assert weight.item() == RIGHT["weight"]
    assert chapter.largest_scale(1.0) == 2**15, "the example of the text"
    unsolved = chapter.predict.check(half=None, tiny=None, scale=None, weight=None)
    assert unsolved.text.startswith("Not solved")


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("half", 6.5, "so the number is negative"),
        ("half", -2.5, "a 1 before its mantissa that is not stored"),
        ("half", -13, "is 2^4 - 1 = 15"),
        ("tiny", 1.75 * 2**-15, "no 1 stands before the mantissa"),
        ("tiny", 0.75 * 2**-15, "1 - bias, and not 0 - bias"),
        ("scale", 17, "and not its exponent"),
        ("scale", 2**18, "78,643, and fp16's largest number is 65,504"),
        ("scale", 2**16, "Twice the scale does not overflow yet"),
        ("scale", 65504 / 0.3, "Scales are powers of two"),
        ("weight", 5, "each update is rounded before the next one comes"),
        ("weight", 4.01, "after one update in fp32"),
    ],
)
def test_a_well_known_mistake_is_told_its_reason(name, number, words):
    verdict = chapter.predict.check(**RIGHT | {name: number})
    assert not verdict.solved and words in text_of(verdict)
    assert words not in text_of(chapter.predict.check(**RIGHT | {name: 1000.0}))


# --- write


def unbegun(x, generator): ...


def right_rounding(x, generator):
    noise = torch.randint(0, 2**16, x.shape, generator=generator, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def by_comparison(x, generator):
    low = (x.view(torch.int32) & -(2**16)).view(torch.float32)
    high = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
    share = ((x - low).double() / (high - low).double()).float()
    return torch.where(torch.rand(x.shape, generator=generator) < share, high, low).bfloat16()


def other_way_round(x, generator):
    low = (x.view(torch.int32) & -(2**16)).view(torch.float32)
    high = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
    share = ((x - low).double() / (high - low).double()).float()
    up = (torch.rand(x.shape, generator=generator) > share) & (x != low)
    return torch.where(up, high, low).bfloat16()


def a_coin(x, generator):
    low = (x.view(torch.int32) & -(2**16)).view(torch.float32)
    high = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
    up = (torch.rand(x.shape, generator=generator) < 0.5) & (x != low)
    return torch.where(up, high, low).bfloat16()


def one_draw_for_all(x, generator):
    noise = torch.randint(0, 2**16, (), generator=generator, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def always_noise(x, generator):
    noise = torch.randint(1, 2**16 + 1, x.shape, generator=generator, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def too_wide(x, generator):
    return (x * (1 + 2**-6 * torch.rand(x.shape, generator=generator))).bfloat16()


def without_generator(x, generator):
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def own_generator(x, generator):
    return right_rounding(x, torch.Generator().manual_seed(0))


def in_place(x, generator):
    bits = x.view(torch.int32)
    bits += torch.randint(0, 2**16, x.shape, generator=generator, dtype=torch.int32)
    return (bits & -(2**16)).view(torch.float32).bfloat16()


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (unbegun, "Not solved yet: `unbegun` returns nothing"),
        (lambda x, generator: x.bfloat16(), "Does each entry draw a random number of its own?"),
        (lambda x, generator: 1.0, "It returns a float, not a tensor"),
        (lambda x, generator: right_rounding(x, generator).float(), "not of torch.bfloat16"),
        (lambda x, generator: right_rounding(x, generator)[:1], "it returns a tensor of [1]"),
        (other_way_round, "which is the share of the other neighbour"),
        (a_coin, "not about 12.5%"),
        (one_draw_for_all, "Does each entry draw a random number of its own?"),
        (always_noise, "is a bfloat16 already and has to stay"),
        (too_wide, "is a bfloat16 already and has to stay"),
        (without_generator, "other random numbers than those of `generator`"),
        (own_generator, "Generators of different seeds give the same result"),
        (in_place, "It changes x"),
        (lambda x, generator: x.view(torch.int17), "fails: AttributeError"),
    ],
)
def test_a_wrong_rounding_is_told_why(attempt, words):
    verdict = chapter.write.check(attempt)
    assert not verdict.solved and words in text_of(verdict)


def test_a_rounding_to_no_neighbour_is_named():
    def beyond(x, generator):
        result = right_rounding(x, generator)
        return torch.where(x == result, result, 2 * result)

    assert "which is not one of its two neighbours" in text_of(chapter.write.check(beyond))


@pytest.mark.parametrize("attempt", [right_rounding, by_comparison])
def test_stochastic_rounding(attempt):
    state = torch.get_rng_state()
    assert chapter.write.check(attempt).solved
    assert torch.equal(torch.get_rng_state(), state)


# --- repair


def my_step(weight, gradient, scale, *, clip_late=True, together=True, whole_norm=True):
    """The program that the chapter gives has neither `clip_late` nor `together`."""

    def clipped(gradient):
        square = gradient.square().sum()
        square = collectives.all_reduce(square) if whole_norm else square
        return gradient * (1 / square.sqrt()).clamp(max=1)

    gradient = gradient.float()
    if not clip_late:
        gradient = clipped(gradient)
    gradient = gradient / scale
    overflow = (~gradient.isfinite().all()).float()
    if together:
        overflow = collectives.all_reduce(overflow)
    if clip_late:
        gradient = clipped(gradient)
    return (weight, scale / 2) if overflow else (weight - 0.1 * gradient, scale)


def variant(**options):
    def my_step_of_mine(weight, gradient, scale):
        return my_step(weight, gradient, scale, **options)

    return my_step_of_mine


def early_return(weight, gradient, scale):
    gradient = gradient.float() / scale
    if not gradient.isfinite().all():
        return weight, scale / 2
    norm = collectives.all_reduce(gradient.square().sum()).sqrt()
    return weight - 0.1 * gradient * (1 / norm).clamp(max=1), scale


@pytest.fixture(params=[2, 4])
def world(request, worlds):
    return worlds(request.param)


def test_the_step_as_it_is_given_differs_in_its_first_step(world):
    verdict = chapter.repair.check(variant(clip_late=False, together=False), world)
    assert not verdict.solved
    assert "rank 0 differs first: the weight after step 1 is" in text_of(verdict)
    assert "Rank 0 launched 4 times all_reduce (4 bytes)." in text_of(verdict)
    nothing = chapter.repair.check(lambda weight, gradient, scale: None, world)
    assert nothing.text.startswith("Not solved yet")


def test_a_step_repaired_by_half_is_told_where_it_still_differs(world):
    alone = chapter.repair.check(variant(together=False), world)
    assert not alone.solved and "rank 0 differs first" in text_of(alone)
    assert "the scale after step 3 is 1024, not 512" in text_of(alone)
    together = chapter.repair.check(variant(clip_late=False), world)
    assert not together.solved and "the weight after step 1" in text_of(together)
    own = chapter.repair.check(variant(whole_norm=False), world)
    assert not own.solved and "the weight after step 1" in text_of(own)


def test_the_repaired_step(world, worlds):
    verdict = chapter.repair.check(my_step, world)
    assert verdict.solved, verdict.text
    assert chapter.repair.check(my_step, worlds(1)).solved


def test_a_rank_that_leaves_before_a_collective_is_named(world):
    verdict = chapter.repair.check(early_return, world)
    last = world.size - 1
    assert not verdict.solved and f"rank {last} has finished without it" in text_of(verdict)
