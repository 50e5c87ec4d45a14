"""What chapter 7 says of mixed versions: when PyTorch notices, and what stashing gains."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from lib.course.asynchronous_pipelines import learning, lessons
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import Costs, play
from lib.single.models import MLP
from tests.course.stored_chapter import chapter_fixtures

notebook, text = chapter_fixtures("07-asynchronous-pipelines")


@pytest.mark.parametrize("stage", range(4))
def test_pytorch_refuses_a_changed_weight_except_on_stage_0(stage):
    module = MLP(lessons.SHAPE).double()[stage : stage + 1]
    x = torch.randn(8, lessons.SHAPE.widths[stage], dtype=torch.float64)
    y = module(x.requires_grad_(stage > 0)).sum()
    y.backward(retain_graph=True)
    torch.optim.SGD(module.parameters(), 0.1).step()
    if stage == 0:
        y.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def gradient_after_an_update(forward):
    """Return the input's gradient of one linear layer whose weight changes from 2 to 3 after F."""
    layer, x = torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1, requires_grad=True)
    layer.weight.data.fill_(2.0)
    y = forward(layer, x)
    with torch.no_grad():
        layer.weight.add_(1.0)
    y.sum().backward()
    return x.grad.item()


def under_autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


def test_under_autocast_the_backward_uses_the_weights_of_its_forward(text):
    """Autograd saved the bfloat16 copy of the old weight, so versions are not mixed."""
    assert gradient_after_an_update(under_autocast) == 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient_after_an_update(lambda layer, x: layer(x))
    assert "uses the bfloat16 copy of the weights that its forward saved" in text


def test_under_autocast_a_whole_stage_gets_the_gradients_of_its_stashed_weights():
    """Two layers: an update between F and B changes no gradient, of weights or of the input."""
    results = []
    for update in (False, True):
        torch.manual_seed(0)
        stage = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
        x = torch.randn(4, 6, requires_grad=True)
        y = under_autocast(stage, x)
        if update:
            with torch.no_grad():
                for weight in stage.parameters():
                    weight.add_(1.0)
        y.float().square().mean().backward()
        results.append([x.grad, *(weight.grad for weight in stage.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_checkpointed_forward_is_computed_again_with_the_new_weights(text):
    again = gradient_after_an_update(lambda *both: checkpoint(*both, use_reentrant=False))
    assert again == 3.0 and "computes the forward again, with the new weights" in text


def test_stashing_does_not_diverge_less_often_than_latest(text):
    ended = {}
    for rule in ("stashing", "latest"):
        losses = learning.trained(rule, 1, (0.4,), range(63))
        ended[rule] = sum(end >= 10 for end in learning.ends(losses, 0.4))
    assert ended == {"stashing": 25, "latest": 23}
    assert "of 63 seeds at 0.4, 25 diverge with stashing and 23 with `latest`" in text


def test_the_plain_stream_is_1f1b_without_a_flush_before_the_end(text):
    assert schedules.one_f_one_b(4, 32) == schedules.pipedream(4, 32)
    assert "the plain stream *is* 1F1B without a flush before the end" in text
    zb_v = play(schedules.zb_v(8, 32), Costs(0.5, 0.5, 0.5, send=2)).makespan
    stream = play(schedules.pipedream(4, 32), Costs(send=2)).makespan
    assert f"The plain stream takes {stream:g}, but ZB-V with m = 32 takes {zb_v:g}" in text


@pytest.mark.parametrize(("m", "least"), [(4, 1.2), (6, 1.05), (7, 1), (8, 1)])
def test_zb_v_almost_fills_its_ranks_from_2p_minus_1_microbatches_on(m, least):
    """Its time for each microbatch, of 3 units of work: within 2 % of them from m = 7 on."""
    time = play(schedules.repeated(schedules.zb_v(8, m), 8), Costs(0.5, 0.5, 0.5)).makespan
    share = time / (8 * m * 3)
    assert share >= least and (share < 1.02) == (m >= 7)


def test_how_often_the_loss_is_looked_at(text):
    for rule, m, each in (("stashing", 1, 24), ("stashing", 4, 24), ("1F1B", 4, 42)):
        assert learning.units(rule, m, 16) - learning.units(rule, m, 8) == each
    assert "every 24 units for a stream and every 42 for `1F1B, 4`" in text


def test_what_2bw_and_zb_h2_need_at_last():
    """Times of the fold, 273 and 291 units: 88 and all 96 microbatches."""
    assert [learning.units("2BW", 4, 88), learning.units("ZB-H2", 8, 96)] == [273, 291]
