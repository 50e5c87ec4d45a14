"""Lossless encodings change no bit of a gradient; lossy ones change gradients and no output."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lib.predict.recompute.encodings import FORMATS, reduced_bytes, sparse_bytes
from lib.predict.shape import MLPShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP
from lib.single.convnet import VGG, ConvNet
from lib.single.encode import gist, lossless, nonzeros
from lib.single.recompute import checkpoint, kept_bytes
from tests.every import every

LOSSLESS = {"binarise": {"sparse": False}, "sparse": {"binarise": False}, "both": {}}
LOSSY = {name: {"binarise": False, "sparse": False, "delayed": name} for name in FORMATS}


def images(batch=4, size=16):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def several(*layers):
    """An nn.Sequential with weights from a seed."""
    model = nn.Sequential(*layers)
    noise = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=noise))
    return model


class Negative(nn.Module):
    """Makes -0.0 of some numbers, which a ReLU lets through."""

    def forward(self, x):
        return torch.where(x < -2, -0.0, x)


NETWORKS = {
    "VGG": lambda: VGG(),
    "odd sizes": lambda: VGG(((3,), (5, 7, 9)), (13, 11), size=16, classes=3),
    "overlapping windows": lambda: several(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), nn.Conv2d(5, 4, 3, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3),
    ),
    "in place": lambda: several(
        nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True), nn.Conv2d(5, 5, 3), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5, inplace=True), nn.Linear(180, 3),
    ),
    "norm, dropout, other layers": lambda: several(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(6, 4, 3),
        nn.Tanh(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(16, 3),
    ),
    "negative zeros": lambda: several(
        nn.Conv2d(3, 5, 3), Negative(), nn.ReLU(), nn.Conv2d(5, 5, 3, groups=5), Negative(),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(180, 3),
    ),
    "frozen": lambda: frozen(VGG()),
}  # fmt: skip


def frozen(model):
    """Freeze the second convolution and the first linear layer."""
    for block in (model.blocks["2"], model.blocks["11"]):
        block.requires_grad_(False)
    return model


def gradients(model, x, requires_grad=True):
    """The outputs, the gradient of the images, and every gradient of a weight."""
    x = x.clone().requires_grad_(requires_grad)
    torch.manual_seed(5)
    y = model(x)
    cross_entropy(y, torch.arange(len(x)) % y.shape[1]).backward()
    weights = [p.grad for p in model.parameters() if p.requires_grad]
    return [y.detach(), *([x.grad] if requires_grad else []), *weights]


def same_bits(expected, found):
    pairs = list(zip(expected, found, strict=True))
    return every(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("encodings", LOSSLESS.values(), ids=LOSSLESS)
def test_no_bit_of_a_gradient_changes(make, encodings):
    expected = gradients(make(), images())
    model = gist(make(), **encodings)
    assert same_bits(expected, gradients(model, images())) and len(expected) > 4
    assert kept_bytes(model, images()) < kept_bytes(make(), images())


@pytest.mark.parametrize("encodings", LOSSLESS.values(), ids=LOSSLESS)
@pytest.mark.parametrize(
    "x", [torch.zeros(3, 3, 16, 16), torch.full((3, 3, 16, 16), torch.nan)], ids=["zero", "nan"]
)
def test_images_that_are_special(encodings, x):
    assert same_bits(gradients(VGG(), x), gradients(gist(VGG(), **encodings), x))


@pytest.mark.parametrize("encodings", LOSSLESS.values(), ids=LOSSLESS)
def test_strides_stay(encodings):
    """A tensor that is stored channel by channel comes back as it was stored."""
    x = images().to(memory_format=torch.channels_last)
    models = [VGG().to(memory_format=torch.channels_last) for _ in range(2)]
    expected = gradients(models[0], x)
    assert same_bits(expected, gradients(gist(models[1], **encodings), x))


def test_wrong_signs_are_seen(monkeypatch):
    """A bite: with zeros counted as above 0, ReLUs pass gradients on where they must not."""
    expected = gradients(VGG(), images())

    def wrong(flat):
        parts, decode = lossless.signs(flat)
        return parts, lambda *parts: torch.ones_like(decode(*parts))

    monkeypatch.setattr(sys.modules["lib.single.encode.gist"], "signs", wrong)
    assert not same_bits(expected, gradients(gist(VGG(), sparse=False), images()))


def test_zeros_without_their_sign_are_seen(monkeypatch):
    """A bite: what is not 0 is not the same as what has bits."""
    monkeypatch.setattr(lossless, "nonzero", lambda flat: flat.nonzero().flatten())
    parts, decode = lossless.sparse_rows(torch.tensor([-0.0] * 300 + [1.0]))
    found = decode(*parts)
    assert found.count_nonzero() == 1 and not found[:300].signbit().any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("more", [{}, {"sparse": True}, {"binarise": True, "sparse": True}])
def test_fewer_bits_change_gradients_and_no_output(name, more):
    expected = gradients(VGG(), images())
    model = gist(VGG(), **{**LOSSY[name], **more})
    found = gradients(model, images())
    assert torch.equal(found[0], expected[0]) and not same_bits(expected, found)
    unequal = [(a - b).norm() / a.norm() for a, b in zip(expected[1:], found[1:], strict=True)]
    limit = {"fp16": 2e-3, "fp10": 0.1, "fp8": 0.2}[name]
    assert 0 < max(unequal) < limit


def test_the_sooner_the_numbers_are_rounded_the_more_changes():
    """A bite: rounded in forward, as the next layer sees it, the outputs are no longer the same."""
    expected, model = gradients(VGG(), images()), VGG()
    for block in model.blocks.values():
        if isinstance(block, nn.ReLU):
            block.register_forward_hook(lambda *args: args[2].to(torch.float8_e4m3fn).float())
    assert not torch.equal(gradients(model, images())[0], expected[0])


def test_training_is_the_same():
    def losses(encodings):
        model = VGG()
        if encodings is not None:
            gist(model, **encodings)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = cross_entropy(model(images()), torch.arange(4))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    plain = losses(None)
    assert losses({}) == plain and plain[-1] < plain[0]
    assert losses(LOSSY["fp8"])[0] == plain[0] and losses(LOSSY["fp8"]) != plain


@pytest.mark.parametrize("encodings", [*LOSSLESS.values(), LOSSY["fp10"]])
def test_several_backward_passes(encodings):
    model, x = gist(VGG(), **encodings), images()
    loss = model(x).square().sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(model.parameters()))
    assert same_bits(first, again)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_second_derivatives():
    def second(model):
        x = images().double().requires_grad_()
        (slope,) = torch.autograd.grad(model.double()(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), list(model.parameters())[:-1])

    pairs = list(zip(second(VGG()), second(gist(VGG())), strict=True))
    assert every(torch.equal(a, b) for a, b in pairs) and len(pairs) == 11


def test_without_gradients_nothing_is_kept():
    x, expected = images(), VGG()(images()).detach()
    with torch.no_grad():
        assert torch.equal(gist(VGG())(x), expected) and kept_bytes(gist(VGG()), x) == 0
    model = gist(VGG()).requires_grad_(False)
    assert kept_bytes(model, x) == 0 and torch.equal(model(x), expected)


def test_no_other_bytes_are_alive():
    """Nothing else is alive after forward but its output, [4, 10] of float32."""
    model, x = gist(VGG()), images()
    with Memory(model) as memory:
        y = model(x)
        held = memory.now["activations"] + memory.now["other"]
        assert held == kept_bytes(model, x) + y.nbytes + x.nbytes
        y.sum().backward()
        assert memory.now["activations"] + memory.now["other"] == y.nbytes + x.nbytes


def test_a_checkpoint_around_it_forgets_the_parts():
    expected = gradients(VGG(), images())
    model = gist(VGG())
    kept = kept_bytes(lambda_module(lambda x: checkpoint(model, x), model), images())
    assert kept == 0  # the samples are not counted
    assert same_bits(expected, gradients(lambda_module(lambda x: checkpoint(model, x), model),
                                         images()))  # fmt: skip


def lambda_module(function, model):
    """A module with the weights of a model, and another forward."""
    outer = nn.Module()
    outer.model, outer.forward = model, function
    return outer


def test_names_and_weights_stay():
    model = VGG()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert gist(model, delayed="fp8") is model and list(model.state_dict()) == list(state)
    assert every(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_the_last_call_counts():
    model, x = VGG(), images()
    first = kept_bytes(gist(model), x)
    assert kept_bytes(gist(model, delayed="fp8"), x) < first == kept_bytes(gist(model), x)


def test_what_is_fed_by_a_relu_through_other_layers():
    """Dropout and pooling keep zeros; a norm does not."""
    counted = lambda *layers: len(nonzeros(several(*layers), torch.ones(2, 3, 8, 8)))
    conv, after = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    assert counted(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), after) == 2
    assert counted(conv, nn.ReLU(), nn.Dropout(), nn.Identity(), after) == 2
    assert counted(conv, nn.ReLU(), nn.BatchNorm2d(3), after) == 0
    assert counted(conv, nn.MaxPool2d(2), after) == 0


def test_maps_of_other_blocks_are_reduced_too():
    """A GELU keeps its input, which a norm gave and does not keep."""
    model, x = several(nn.Linear(20, 20), nn.GELU(), nn.Linear(20, 5)), torch.ones(6, 20)
    assert kept_bytes(model, x) == 2 * 4 * 120
    found = kept_bytes(gist(model, delayed="fp10"), x)
    assert found == 2 * reduced_bytes(120, "fp10") == 320


def test_bytes_of_an_mlp_of_single_layers():
    """The result of a ReLU is kept once, though the ReLU and the next layer need it."""
    model = several(nn.Linear(9, 100), nn.ReLU(), nn.Linear(100, 2))
    model[0].bias.data.fill_(-2.0)
    x = torch.randn(30, 9, generator=torch.Generator().manual_seed(0))
    assert kept_bytes(model, x) == 4 * 3000
    (count,) = nonzeros(model, x)
    assert kept_bytes(gist(model), x) == sparse_bytes(3000, count) and 0 < count < 300


def test_what_is_refused():
    with pytest.raises(TypeError, match="A Linear is no chain of layers. Give a Chain, such as V"):
        gist(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="There is nothing to encode in this ConvNet: `binarise`"):
        gist(ConvNet())
    with pytest.raises(ValueError, match="There is nothing to encode in this MLP"):
        gist(MLP(MLPShape((4, 8, 2))))
    with pytest.raises(ValueError, match="There is nothing to encode in this VGG"):
        gist(VGG(), binarise=False, sparse=False)
    with pytest.raises(ValueError, match="No format is called 'fp4'. Choose fp16, fp10, fp8"):
        gist(VGG(), delayed="fp4")
    with pytest.raises(ValueError, match="A window of 400 elements needs indices of 9 bits"):
        gist(several(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.MaxPool2d(20)))
    assert gist(GPT(), delayed="fp16") is not None  # its blocks' inputs and outputs
