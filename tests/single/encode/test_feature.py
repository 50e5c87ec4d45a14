"""A block keeps its input and output encoded, once, and anything else as it is."""

import pytest
import torch
from torch import nn

from lib.single.encode.feature import Feature, identity_of, run


def halves(flat):
    """An encoding that is easily seen: what comes back is half of what was there."""
    return (flat.half(),), lambda half: half.float() / 2


def kept_by(block, x, encoding, feature=None):
    """What hooks around a block see, the output, and its feature map."""
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        y, output = run(block, x, feature or Feature(x, None), encoding)
    return seen, y, output


def test_a_result_comes_back_as_it_was_encoded():
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    class Exp(nn.Module):
        def forward(self, x):
            return x.exp()

    seen, y, _ = kept_by(Exp(), x, halves)
    assert [t.dtype for t in seen] == [torch.float16]
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach() / 2, rtol=1e-3, atol=0)


def test_two_layers_share_what_is_kept():
    x = torch.randn(3, 4, requires_grad=True)
    _, y, output = kept_by(nn.ReLU(), x, halves)
    again, _, _ = kept_by(nn.Linear(4, 2), y, None, output)
    halved = [t for t in again if t.dtype == torch.float16]
    assert halved == [] and output.kept is not None  # it was encoded for the ReLU


def test_what_is_no_feature_map_stays():
    norm, x = nn.BatchNorm1d(4), torch.randn(3, 4, requires_grad=True)
    feature = Feature(x, halves)
    seen, _, _ = kept_by(norm, x, halves, feature)
    assert sorted(t.numel() for t in seen if t.dtype == torch.float32) == [4] * 5
    assert [t.numel() for t in seen if t.dtype == torch.float16] == [12]


def test_a_part_of_a_storage_comes_back():
    """What is encoded is the whole storage; views of it come back with their strides."""

    class Part(nn.Module):
        def forward(self, x):
            return x.t()[1:].sin()

    x = torch.randn(4, 6).requires_grad_()
    y, _ = run(Part(), x, Feature(x, lambda flat: ((flat.clone(),), lambda t: t)), None)
    y.sum().backward()
    expected = torch.zeros(4, 6)
    expected[:, 1:] = x.detach()[:, 1:].cos()
    assert torch.equal(x.grad, expected)


def test_identities():
    x = torch.ones(4)
    before = identity_of(x)
    assert identity_of(x.view(2, 2)) == before != identity_of(x.clone())
    x += 1
    assert identity_of(x) != before


def test_a_view_passes_its_feature_map_on():
    x = torch.ones(2, 3, 4)
    feature = Feature(x, None)
    _, output = run(nn.Flatten(), x, feature, halves)
    assert output is feature
    _, output = run(nn.ReLU(), x, feature, halves)
    assert output is not feature and output.encoding is halves


def test_a_block_that_changes_what_it_needs_is_told():
    """PyTorch tells it in backward; here the wrong values would be encoded."""

    class Careless(nn.Module):
        def forward(self, x):
            y = x.sin()
            x.mul_(2)
            return y

    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="A Careless changes in place a tensor that it needs"):
        run(Careless(), x, Feature(x, None), None)


def test_nothing_is_held_in_a_circle():
    """What is kept dies with the graph, without Python's collector of garbage."""
    import gc
    import weakref

    x = torch.randn(5, 5, requires_grad=True)
    gc.disable()
    try:
        y, output = run(nn.ReLU(), x, Feature(x, None), halves)
        alive = weakref.ref(output.kept)
        del y, output
        assert alive() is None
    finally:
        gc.enable()
