"""Bugs of mixed precision that people have shipped: each can be seen, the right step has none."""

import pytest
import torch

from lib.course.mixed_precision.bugs import (
    LIMIT,
    WARM_UP,
    advance_always,
    clip_first,
    right_step,
    run,
    softmax_of_parts,
)
from lib.single.precision.mixed import KEEP, Formats
from tests.every import every

TOO_LARGE = 2.0**40  # a scale at which the first steps overflow


def moved(step):
    """How far one whole step moves the copies of the weights, divided by the learning rate."""
    one = run()
    before = [p.detach().clone() for p in one.optimizer.parameters()]
    assert step(one, 0)
    after = one.optimizer.parameters()
    length = torch.cat([(a - b).flatten() for a, b in zip(after, before)]).norm().item()
    return length / one.rates[0]


def test_clipping_before_unscaling_shrinks_the_step_by_the_scale():
    one = run()
    one.backward(0)
    one.scaler.unscale_(one.optimizer)
    gradients = [p.grad.flatten() for p in one.optimizer.parameters()]
    assert torch.cat(gradients).norm() > LIMIT, "there is something to clip"
    assert moved(right_step) == pytest.approx(LIMIT, rel=1e-2)
    # Shorter still, because most of such an update rounds to nothing even in the fp32 copies.
    assert 0 < moved(clip_first) < 1.01 * LIMIT / 2**16


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # the bug, if it is first
def test_a_skipped_step_does_not_advance_the_schedule():
    """The warm-up reaches its n-th rate in its n-th step that was done, not in its n-th batch."""
    found = {}
    for step in (right_step, advance_always):
        one = run(scale=TOO_LARGE)
        done = [step(one, number) for number in range(30)]
        skipped = done.count(False)
        assert done == [False] * skipped + [True] * (30 - skipped) and skipped > 4
        found[step] = one, skipped
    right, skipped = found[right_step]
    assert right.rates == pytest.approx([0.1 * min(1, (n + 1) / WARM_UP)
                                         for n in range(30 - skipped)])  # fmt: skip
    wrong, _ = found[advance_always]
    assert wrong.rates[skipped] == pytest.approx(0.1 * (skipped + 1) / WARM_UP)  # its first step
    assert wrong.rates[skipped] > 4 * right.rates[0]


def test_a_softmax_in_fp16_overflows_above_11():
    scores = torch.tensor([[0.0, 11.0], [0.0, 11.2]])
    expected = scores.softmax(-1)
    in_fp16 = softmax_of_parts(scores.half())
    assert in_fp16[0].isfinite().all() and in_fp16[1, 1].isnan()
    torch.testing.assert_close(softmax_of_parts(scores), expected)
    with Formats(torch.float16):
        kept = softmax_of_parts(scores.half())
    assert kept.dtype == torch.float32 and kept.isfinite().all()
    left_out = set(KEEP) - {"power", "sum"}
    with Formats(torch.float16, keep=left_out):
        assert softmax_of_parts(scores.half())[1, 1].isnan()


def test_a_softmax_in_fp16_makes_the_loss_of_a_rare_token_infinite():
    """PyTorch's softmax subtracts the largest score, and yet a probability of e^-17 becomes 0."""
    scores = torch.tensor([0.0, 18.0])
    assert scores.softmax(-1).log()[0].item() == pytest.approx(-18, abs=1e-4)
    assert scores.half().softmax(-1).log()[0].isinf()
    with Formats(torch.float16):
        assert scores.half().softmax(-1).log()[0].isfinite()


def sharded(together):
    """Each rank has a weight of its own; only the gradient of the last one overflows in step 1."""
    import torch.distributed as dist

    from lib.course.mixed_precision.bugs import own_decision
    from lib.ranks.agreement import on_any_rank
    from lib.single.precision import LossScaler

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = LossScaler(8.0, found_anywhere=on_any_rank if together else own_decision)
    done = []
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale((weight * (torch.inf if (step, rank) == (1, last) else 1.0)).sum()).backward()
        done.append(scaler.step(optimizer))
        scaler.update()
    return done, scaler.factor, weight.tolist()


def test_ranks_that_each_decide_alone_diverge(worlds):
    world = worlds(2)
    first, last = world.run(sharded, True)
    assert first == last and first[:2] == ([True, False, True], 4.0)
    first, last = world.run(sharded, False)
    assert (first[0], last[0]) == ([True] * 3, [True, False, True])
    assert (first[1], last[1]) == (8.0, 4.0) and first[2] != last[2]
    assert every(a < b for a, b in zip(first[2], last[2]))  # one step further down
