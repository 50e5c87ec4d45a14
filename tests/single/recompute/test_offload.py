"""Activations in the host's memory: no bit of a gradient changes, and bytes are as predicted."""

import copy

import pytest
import torch
from torch import nn

from lib.predict.recompute.offload import offload_use
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.offload import HostSpeeds
from lib.ranks.memory import Memory
from lib.single import GPT, MLP
from lib.single.convnet import ConvNet
from lib.single.host_memory import HostMemory
from lib.single.recompute import block_costs, recompute
from lib.single.recompute.offload import offload_activations
from tests.every import every

SMALL = {"vocabulary": 40, "sequence": 16, "width": 32, "heads": 2, "layers": 3, "hidden": 64}
HOST = HostSpeeds(1e-6, 1e9, 1e9)


def drawn(*size):
    return torch.randn(*size, generator=torch.Generator("cpu").manual_seed(3), device="cpu")


def tokens():
    generator = torch.Generator("cpu").manual_seed(3)
    return torch.randint(40, (2, 16), generator=generator, device="cpu")


def frozen():
    model = GPT(GPTShape(**SMALL))
    for parameter in model.blocks["2"].parameters():
        parameter.requires_grad_(False)
    model.blocks["0"].tokens.weight.requires_grad_(False)
    return model


class Sum(nn.Module):
    """Adds a table, a buffer that backward needs, and multiplies by it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(8, 8))

    def forward(self, x):
        return x @ self.table + x


MODELS = {
    "GPT": (lambda: GPT(GPTShape(**SMALL)), tokens),
    "tied": (lambda: GPT(GPTShape(**SMALL, tied=True)), tokens),
    "dropout": (lambda: GPT(GPTShape(**SMALL, dropout=0.1)), tokens),
    "rotary, two keys": (
        lambda: GPT(GPTShape(**SMALL | {"heads": 4}, kv_heads=2, positions="rotary")), tokens,
    ),
    "frozen": (frozen, tokens),
    "MLP": (lambda: MLP(MLPShape((8, 16, 24, 16, 4))), lambda: drawn(6, 8)),
    "ConvNet": (lambda: ConvNet((3, 8, 16, 8)), lambda: drawn(4, 3, 8, 8)),
    "buffers": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Sum(), nn.Tanh(), Sum()),
        lambda: drawn(6, 8),
    ),
    "views": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 8), nn.Tanh(),
            nn.Identity(), nn.Linear(8, 2),
        ), lambda: drawn(4, 3, 8, 8),
    ),
}  # fmt: skip
WAYS = [(1, 1), (0, 0), (2, 2), ({0, 2}, 1), ((), 7)]


def placed(name):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make()
    return model, batch().to(next(model.parameters()).device)


def steps(model, x, count=3):
    """The outputs, all gradients and the weights after some steps of SGD."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    torch.manual_seed(4)
    for _ in range(count):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        seen += [y.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]
        optimizer.step()
    return [*seen, *(p.detach() for p in model.parameters())]


def same(ours, theirs):
    return len(ours) == len(theirs) and every(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize(("keep", "ahead"), WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_bit_of_a_gradient_changes(name, keep, ahead):
    model, x = placed(name)
    expected = steps(copy.deepcopy(model), x)
    names, host = list(model.state_dict()), Counting()
    assert offload_activations(model, keep, ahead, host) is model
    assert same(steps(model, x), expected) and list(model.state_dict()) == names
    assert (host.moved["to_host"] > 0) is (ahead < 7)
    assert host.moved["to_device"] == host.moved["to_host"]


class Counting(HostMemory):
    """Adds up the bytes that are copied, and can leave the way back out."""

    def __init__(self, back=True):
        super().__init__()
        self.moved, self.back = {"to_host": 0, "to_device": 0}, back

    def together(self, op, pairs, after=()):
        self.moved[op] += sum(one.nbytes for one, _ in pairs)
        if op == "to_device" and not self.back:
            pairs = [(one, torch.zeros_like(other)) for one, other in pairs]
        return super().together(op, pairs, after)


@pytest.mark.parametrize("name", MODELS)
def test_without_the_way_back_it_does(name):
    model, x = placed(name)
    expected = steps(copy.deepcopy(model), x, 1)
    offload_activations(model, 0, 0, Counting(back=False))
    assert not same(steps(model, x, 1), expected)


# --- bytes


@pytest.mark.parametrize(("keep", "ahead"), [(1, 1), (0, 0), (2, 1), ({1, 3}, 1)], ids=str)
@pytest.mark.parametrize("name", ["GPT", "MLP", "ConvNet"])
def test_bytes_after_forward_are_the_prediction(name, keep, ahead):
    """On the device, where the input of the first block is the reader's, and on the host."""
    model, x = placed(name)
    costs = block_costs(model, x, [0.0] * len(model))
    use = offload_use(costs, [0.0] * len(model), HOST, keep, ahead)
    offload_activations(model, keep, ahead)
    with Memory(model) as memory:
        y = model(x)
        assert memory.now["activations"] == use.after_forward
        assert memory.host == use.host > 0
        y.sum().backward()
        assert memory.now["activations"] == memory.host == 0
    assert memory.host_peak == use.host


def test_a_plain_forward_keeps_all_of_it_on_the_device():
    """The bite: the same count without offload."""
    model, x = placed("GPT")
    costs = block_costs(model, x, [0.0] * len(model))
    use = offload_use(costs, [0.0] * len(model), HOST)
    with Memory(model) as memory:
        y = model(x)
        assert memory.now["activations"] == use.after_forward + use.host - x.nbytes
        assert memory.host == 0 and y.requires_grad


def test_in_backward_a_block_and_the_next_ones_are_there():
    """What is held when a block's backward begins, block by block."""
    model, x = placed("MLP")
    costs = block_costs(model, x, [0.0] * 4)
    offload_activations(model, keep=1, ahead=1)
    with Memory(model) as memory:
        held = []
        for block in model.blocks.values():
            block.linear.weight.register_hook(lambda _: held.append(memory.now["activations"]))
        model(x).sum().backward()
    back = [cost.kept for cost in costs]
    assert held[0] == back[3] + back[2] and held[1] == back[2] + back[1]
    assert held[2] == back[1] + back[0]  # what came back counts, the first input too


def test_a_storage_that_two_blocks_save_is_sent_once():
    """A ReLU's result is what the next layer multiplies; all storages of an MLP are such."""
    model, x = placed("MLP")
    host = Counting()
    offload_activations(model, 0, 0, host)
    model(x).sum().backward()
    assert host.moved["to_host"] == 4 * 6 * (8 + 16 + 24 + 16)


# --- what a reader may do


def test_checkpoints_send_their_inputs_only():
    model, x = placed("dropout")
    expected = steps(copy.deepcopy(model), x)
    plan, host = (0, (1, 2), (3,), 4), Counting()
    costs = block_costs(model, x, [0.0] * 5)
    use = offload_use(costs, [0.0] * 5, HOST, plan=plan)
    offload_activations(model, host=host, plan=plan)
    assert same(steps(model, x), expected)
    assert host.moved["to_host"] == 3 * use.host
    assert use.host == costs[0].kept + costs[1].input + costs[3].input


def test_evaluation_and_a_forward_without_backward_leave_nothing_behind():
    model, x = placed("GPT")
    expected = steps(copy.deepcopy(model), x)
    offload_activations(model)
    with Memory(model) as memory:
        with torch.no_grad():
            model(x)
        assert memory.host_peak == 0
        y = model(x)
        assert memory.host > 0
        del y
        assert memory.host == memory.now["activations"] == 0  # at once, not when garbage is sought
    assert same(steps(model, x), expected)


def test_two_forwards_before_their_backwards():
    model, x = placed("MLP")
    plain = copy.deepcopy(model)
    offload_activations(model)
    for one in (model, plain):
        first, second = one(x), one(2 * x)
        first.sum().backward()
        second.square().sum().backward()
    assert same(*([p.grad for p in one.parameters()] for one in (model, plain)))


def test_a_backward_that_ends_early_and_one_that_runs_twice():
    model, x = placed("MLP")
    plain = copy.deepcopy(model)
    offload_activations(model, 0, 1)
    found = []
    for one in (model, plain):
        loss, (*_, last) = one(x).square().sum(), one.parameters()
        found.append(list(torch.autograd.grad(loss, [last], retain_graph=True)))
        loss.backward(retain_graph=True)
        loss.backward()
        found[-1] += [p.grad for p in one.parameters()]
    assert same(*found)
    *_, last = model.parameters()
    torch.autograd.grad(model(x).sum(), [last])  # and what it left on its way comes for nothing
    assert same(steps(model, x), steps(plain, x))


class Fails(nn.Module):
    """Fails when it is told to."""

    failing = False

    def forward(self, x):
        if self.failing:
            raise RuntimeError("This block fails.")
        return x.tanh()


def test_a_forward_that_fails_leaves_a_model_that_works():
    model = nn.Sequential(nn.Linear(8, 8), Fails(), nn.Linear(8, 8), nn.Linear(8, 2))
    x = drawn(4, 8).to(model[0].weight.device)
    expected = steps(copy.deepcopy(model), x)
    offload_activations(model)
    model[1].failing = True
    with pytest.raises(RuntimeError, match="This block fails."):
        model(x)
    model[1].failing = False
    assert same(steps(model, x), expected)


def ones(model):
    return torch.ones(1, 2, device=model[0].weight.device)


class Spoils(nn.Module):
    """Changes what backward needs, after it was saved."""

    def forward(self, x):
        y = x.exp()
        z = 2 * y
        y.add_(1)
        return z


@pytest.mark.parametrize("keep", [0, 1])
def test_what_is_changed_after_it_was_saved_is_refused(keep):
    model = offload_activations(nn.Sequential(nn.Linear(2, 2), Spoils()), keep, 0)
    y = model(ones(model))
    with pytest.raises(RuntimeError, match="block 1 has saved for backward was changed in place"):
        y.sum().backward()


def test_a_weight_that_is_changed_before_backward_is_refused():
    model = offload_activations(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 1)
    y = model(ones(model))
    with torch.no_grad():
        model[1].weight.add_(1)
    with pytest.raises(RuntimeError, match="block 1 has saved for backward was changed in place"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"keep": 6}, "keep=6 last blocks shall stay on the device, and there are 5."),
        ({"keep": -1}, "keep must be a whole number of at least 0, not -1."),
        ({"keep": [1, 9]}, "keep names block 9, and the blocks here are 0 to 4."),
        ({"ahead": 0.5}, "ahead must be a whole number of at least 0, not 0.5."),
        ({"plan": (0, 1)}, "A plan for 5 blocks has the numbers 0 to 4 once each"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence(more, words):
    with pytest.raises(ValueError) as told:
        offload_activations(placed("GPT")[0], **more)
    assert words in str(told.value)


def test_a_model_that_cannot_be_offloaded_is_refused():
    with pytest.raises(TypeError, match="A Linear is no chain of blocks."):
        offload_activations(nn.Linear(2, 2))
    model = recompute(placed("GPT")[0], "all")
    with pytest.raises(ValueError, match="Give the plan of recomputation"):
        offload_activations(model)


def test_offload_may_be_set_anew():
    model, x = placed("MLP")
    first, second = Counting(), Counting()
    offload_activations(model, host=first)
    offload_activations(model, host=second)
    model(x)
    assert first.moved["to_host"] == 0 < second.moved["to_host"]
