"""Scales from histories: step by step, after a jump, with a margin, on microbatches and ranks."""

import math

import pytest
import torch
from torch import nn

from lib.single.precision import DelayedScaling, fp8, update_scales
from lib.single.precision.scaled import scaled
from tests.every import every

LARGEST = 448.0


def scales(maxima, **options):
    """The scale that each step uses, as multiples of 1/448."""
    scaling = DelayedScaling("e4m3", **options)
    used = []
    for maximum in maxima:
        used.append(scaling.see(torch.tensor([0.5 * maximum, -maximum])).item() * LARGEST)
        scaling.update()
    return used


def test_a_step_uses_the_largest_of_the_steps_before_it():
    """The first scale is 1; then the window slides, three steps long, without the step itself."""
    found = scales([1.0, 2.0, 8.0, 3.0, 1.0, 0.5, 0.25, 0.25], history=3)
    assert found == pytest.approx([LARGEST, 1, 2, 8, 8, 8, 3, 1])
    assert scales([1.0, 8.0, 3.0, 1.0], history=3, choice="most_recent") == pytest.approx(
        [LARGEST, 1, 8, 3]
    )
    assert scales([1.0, 8.0, 3.0], history=1) == pytest.approx([LARGEST, 1, 8])


def test_a_history_of_the_maxima_by_hand():
    """For every length, the same as the maximum of a slice."""
    maxima = torch.rand(30, generator=torch.Generator().manual_seed(0)).add(0.1).tolist()
    for history in (1, 2, 5, 16, 64):
        found = scales(maxima, history=history)
        expected = [max(maxima[max(0, n - history) : n]) for n in range(1, len(maxima))]
        assert found[1:] == pytest.approx(expected)


@pytest.mark.parametrize("margin", [0, 1, 3])
def test_a_margin_leaves_room_for_a_jump(margin):
    assert scales([1.0, 1.0], margin=margin)[1] == pytest.approx(2.0**margin)


@pytest.mark.parametrize("bad", [0.0, math.inf, math.nan])
def test_a_maximum_without_use_changes_nothing(bad):
    assert scales([4.0, bad, 2.0, 2.0], history=1) == pytest.approx([LARGEST, 4, 4, 2])
    # An infinity is forgotten at once; kept, it would hold the scale for 16 steps.
    assert scales([4.0, bad, 8.0, 8.0], history=16) == pytest.approx([LARGEST, 4, 4, 8])


def clipped(x, scale):
    return int((x.abs() > LARGEST * scale).sum())


def test_a_jump_overflows_once_and_the_history_remembers_it():
    """Ten times larger at once: a tenth of its size comes out, for one step."""
    scaling = DelayedScaling("e4m3", history=4)
    x = torch.linspace(-1, 1, 100)[None]
    sizes, errors, lost = [1, 1, 10, 10, 1, 1, 1, 1, 1], [], []
    for size in sizes:
        scale = scaling.see(size * x).clone()
        rounded = scaled(size * x, "e4m3", scale=scale).decode()
        errors.append(((rounded - size * x).abs().max() / size).item())
        lost.append(clipped(size * x, scale))
        scaling.update()
    assert lost == [0, 0, 90, 0, 0, 0, 0, 0, 0]
    assert errors[2] == pytest.approx(0.9) and max(errors[3:]) < 0.05
    # The large scale stays as long as the history, and a scale of its own would not have clipped.
    assert scaled(10 * x, "e4m3").decode().abs().max() == pytest.approx(10)
    margin = DelayedScaling("e4m3", history=4, margin=4)  # room for 2^4
    margin.see(x)
    margin.update()
    assert clipped(10 * x, margin.see(10 * x)) == 0


def test_in_a_layer_a_jump_clips_the_output_for_one_step():
    torch.manual_seed(0)
    layer = fp8(nn.Linear(16, 16, bias=False), "delayed", history=4)
    x, errors = torch.randn(32, 16), []
    for size in (1, 1, 100, 100):
        y = layer(size * x)
        errors.append((y / size - x @ layer.weight.T).norm().item())
        update_scales(layer)
    assert errors[2] > 10 * errors[1] and errors[3] < 2 * errors[1]


def test_a_layer_sees_inputs_weights_and_gradients():
    torch.manual_seed(0)
    layer = fp8(nn.Linear(16, 8), "delayed", history=4)
    x, dy = torch.randn(4, 16), torch.randn(4, 8)
    layer(x).backward(dy)
    largest = {"input": x, "weight": layer.weight, "gradient": dy}
    for name, tensor in largest.items():
        assert layer.scalings[name].maxima.tolist() == [tensor.abs().max().item(), 0, 0, 0]
        assert layer.scalings[name].scale == 1
    update_scales(layer)
    for name, tensor in largest.items():
        bound = 57344 if name == "gradient" else LARGEST
        assert layer.scalings[name].scale.item() == pytest.approx(tensor.abs().max().item() / bound)
        assert layer.scalings[name].maxima[0] == 0


def test_microbatches_count_as_one_step():
    layer = fp8(nn.Linear(4, 4), "delayed", history=3)
    for size in (2.0, 5.0, 1.0):
        layer(torch.full((1, 4), size))
    assert layer.scalings["input"].maxima.tolist() == [5, 0, 0]


def test_outside_training_nothing_is_noted():
    layer = fp8(nn.Linear(4, 4), "delayed").eval()
    layer(torch.full((1, 4), 5.0))
    assert not layer.scalings["input"].maxima.any()


def test_the_gradient_uses_the_scale_of_its_own_forward():
    """What forward kept is decoded with forward's scale, also after an update between the two."""
    torch.manual_seed(0)
    results = []
    for early in (False, True):
        torch.manual_seed(0)
        layer = fp8(nn.Linear(8, 8, bias=False), "delayed", history=2)
        x, dy = torch.randn(4, 8), torch.ones(4, 8)
        y = layer(x)
        if early:
            layer.scalings["input"].update()
        y.backward(dy)
        results.append(layer.weight.grad)
    assert torch.equal(*results) and results[0].any()


def test_the_state_of_a_model_has_its_histories():
    torch.manual_seed(0)
    model = fp8(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), "delayed", history=3)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        update_scales(model)
    fresh = fp8(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), "delayed", history=3)
    fresh.load_state_dict(model.state_dict())
    x = torch.randn(4, 8)
    assert torch.equal(fresh(x), model(x))
    assert every(torch.equal(a, b) for a, b in zip(fresh.buffers(), model.buffers()))
    assert fresh[0].scalings["gradient"].maxima.any()


def test_a_history_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="choice must be 'max' or 'most_recent', not 'mean'."):
        DelayedScaling("e4m3", choice="mean")
    with pytest.raises(ValueError, match="history must be a whole number of at least 1, not 0."):
        DelayedScaling("e4m3", history=0)
