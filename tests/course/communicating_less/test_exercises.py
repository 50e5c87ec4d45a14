"""Chapter 2's checkers: played from the start state to the solution, and typical mistakes."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib.course.communicating_less import exercises as chapter


@pytest.fixture
def world(worlds):
    return worlds(4)


def unbegun(*given): ...


# --- predict


def test_the_predicted_numbers_are_those_of_a_closed_form():
    whole = 4_000_000
    bits = 1_000_000 + 1954 * 4  # 8 bits each, and a scale for each 512
    gathered = [n for n in range(2, 100) if (n - 1) * bits > 2 * (n - 1) / n * whole]
    assert chapter.predict.answers == {
        "waiting": sum(12 if n in (11, 7, 0, 3, 5) else 1 for n in range(12)),
        "top_k": 7 * 10_000 * 8,
        "sign": 7 * (125_000 + 4),
        "eight_bits": gathered[0],
        "staleness": 28,
    }


def test_predict_from_start_to_solution():
    check, answers = chapter.predict.check, chapter.predict.answers
    empty = dict.fromkeys(answers)
    assert check(**empty).text.startswith("Not solved yet: no number is there.")
    one = check(**empty | {"sign": 1})
    assert "sign: 1 is too little" in one.text and "top_k: not answered yet" in one.text
    # The full buffer is not what a rank sends.
    assert "top_k: 640,000 is too much" in check(**empty | {"top_k": 640_000}).text
    verdict = check(**answers)
    assert verdict.solved and verdict.text.count("right") == 5


# --- write


def my_top_k(gradient, residual, k, feedback=True, keeps=True, divides=True):
    whole = gradient + residual if feedback else gradient.clone()
    indices = whole.abs().topk(k).indices.to(torch.int32)
    values, ranks = whole[indices.long()], dist.get_world_size()
    all_values = [torch.empty_like(values) for _ in range(ranks)]
    all_indices = [torch.empty_like(indices) for _ in range(ranks)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_indices, indices)
    mean = torch.zeros_like(whole)
    for their_indices, their_values in zip(all_indices, all_values, strict=True):
        mean[their_indices.long()] += their_values
    if keeps:
        whole[indices.long()] = 0
    return mean / ranks if divides else mean, whole


def without_feedback(gradient, residual, k):
    return my_top_k(gradient, residual, k, feedback=False)


def keeps_all(gradient, residual, k):
    return my_top_k(gradient, residual, k, keeps=False)


def sums(gradient, residual, k):
    return my_top_k(gradient, residual, k, divides=False)


def sends_all(gradient, residual, k):
    """Right, but dense: the message is a tensor of zeros with k entries."""
    whole = gradient + residual
    message = torch.zeros_like(whole)
    indices = whole.abs().topk(k).indices
    message[indices] = whole[indices]
    kept = whole - message
    dist.all_reduce(message)
    return message / dist.get_world_size(), kept


def test_write_from_start_to_solution(world):
    check = chapter.write.check
    assert check(unbegun, world).text.startswith("Not solved yet: `unbegun` returns nothing")
    for wrong, words in (
        (without_feedback, "differs first"),
        (keeps_all, "entry 1 of what it returned"),
        (sums, "entry 0 of what it returned"),
        (sends_all, "The tensors are right, but you send no less."),
    ):
        verdict = check(wrong, world)
        assert not verdict.solved and words in verdict.text
    verdict = check(my_top_k, world)
    assert verdict.solved
    assert "bytes sent by the busiest rank: 2,400, plain all-reduce 6,000" in verdict.text


# --- repair


def equal_weights(rank, ranks):
    neighbours = [r for r in (rank - 1, rank + 1) if 0 <= r < ranks]
    return dict.fromkeys([rank, *neighbours], 1 / (1 + len(neighbours)))


def symmetric(rank, ranks):
    def count(r):
        return (r > 0) + (r < ranks - 1)

    neighbours = [r for r in (rank - 1, rank + 1) if 0 <= r < ranks]
    weights = {r: 1 / (1 + max(count(rank), count(r))) for r in neighbours}
    return {rank: 1 - sum(weights.values())} | weights


def with_everybody(rank, ranks):
    return dict.fromkeys(range(ranks), 1 / ranks)


def alone(rank, ranks):
    return {rank: 1.0}


def test_repair_from_start_to_solution(world):
    check = chapter.repair.check
    start = check(equal_weights, world)
    assert not start.solved and "The ranks agree, but not on the mean." in start.text
    assert "hold: 20.00, 20.00, 20.00, 20.00" in start.text and "started with: 25.00" in start.text
    assert "rank 0: row adds up to 1.00, column to 0.83" in start.text
    assert "Rank 0 has a weight for rank 2, which is not" in check(with_everybody, world).text
    assert "The ranks do not agree." in check(alone, world).text
    assert check(unbegun, world).text.startswith("Not solved yet")
    verdict = check(symmetric, world)
    assert verdict.solved and "hold: 25.00, 25.00, 25.00, 25.00" in verdict.text


# --- invent


def in_bytes(bucket, group, at_random=True):
    ranks = dist.get_world_size(group)
    largest = bucket.flat.abs().max()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    largest.clamp_(min=1e-30)
    steps = 127 // ranks  # a sum over ranks fits into 8 bits
    x = bucket.flat / largest * steps
    low = x.floor()
    codes = (low + ((torch.rand_like(x) if at_random else 0.5) < x - low)).to(torch.int8)
    work = dist.all_reduce(codes, group=group, async_op=True)

    def wait():
        work.wait()
        bucket.flat.copy_(codes * (largest / steps / ranks))

    return SimpleNamespace(wait=wait)


def by_the_answer(size):
    bucket = SimpleNamespace(flat=torch.tensor([size, -size]))
    in_bytes(bucket, dist.group.WORLD).wait()
    return bucket.flat.tolist()


def in_bytes_to_the_nearest(bucket, group):
    return in_bytes(bucket, group, at_random=False)


def in_halves(bucket, group):
    half = bucket.flat.bfloat16()
    work = dist.all_reduce(half, group=group, async_op=True)

    def wait():
        work.wait()
        bucket.flat.copy_(half).div_(dist.get_world_size(group))

    return SimpleNamespace(wait=wait)


def whole(bucket, group):
    bucket.flat.div_(dist.get_world_size(group))
    return dist.all_reduce(bucket.flat, group=group, async_op=True)


def nothing(bucket, group):
    bucket.flat.zero_()
    return SimpleNamespace(wait=lambda: None)


def failing(bucket, group):
    raise ValueError("no idea")


def test_an_invented_hook_must_send_less_and_learn(world):
    check = chapter.invent.check
    assert check(in_bytes, world).text.startswith("Solved: 3.8 times fewer bytes.")
    assert "At most 30 % of the bytes" in check(in_halves, world).text
    assert not check(in_bytes_to_the_nearest, world).solved  # what is always rounded off is lost
    assert "At most 30 % of the bytes" in check(whole, world).text
    assert not check(nothing, world).solved  # saves all bytes, and learns nothing
    assert "no idea" in check(failing, world).text
    assert check(unbegun, world).text.startswith("Not solved yet: `unbegun` returns nothing")


def test_the_answers_codes_fit_and_a_bucket_of_zeros_stays_zero(world):
    for size in (0.0, 1.0):
        (mean, *_) = world.run(by_the_answer, size)
        assert mean == pytest.approx([size, -size], abs=1e-6)
