"""The small GPT and the MLP: chains that can be sliced, the same for each seed, and that learn."""

import copy

import pytest
import torch
from torch.nn.functional import softmax

from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, Chain, next_token_loss, train
from lib.single.models import causal

SMALL = GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=3, hidden=40)
MODELS = {"gpt": GPT(SMALL), "mlp": MLP(MLPShape((6, 10, 4)))}


def inputs(kind):
    generator = torch.Generator().manual_seed(1)
    if kind == "gpt":
        return torch.randint(50, (2, 12), generator=generator)
    return torch.randn(5, 6, generator=generator)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("cut", [1, 2])
def test_slices_run_one_after_the_other_are_the_model(kind, cut):
    model, x = MODELS[kind], inputs(kind)
    stages = model[:cut], model[cut:]
    assert torch.equal(stages[1](stages[0](x)), model(x))
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    assert all(p is model.get_parameter(n) for s in stages for n, p in s.named_parameters())
    assert isinstance(stages[0], Chain) and len(stages[0]) == cut
    with pytest.raises(TypeError, match=r"model\[2:5\]"):
        model[1]


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(7)
    one = GPT(SMALL, seed=3).state_dict()
    torch.manual_seed(8)
    two, other = GPT(SMALL, seed=3).state_dict(), GPT(SMALL, seed=4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["blocks.1.mlp.up.weight"], other["blocks.1.mlp.up.weight"])
    scale = one["blocks.1.attention.proj.weight"].std() * (2 * SMALL.layers) ** 0.5
    assert abs(scale - 0.02) < 0.002
    assert abs(one["blocks.0.tokens.weight"].std() - 0.02) < 0.002


def test_a_tied_head_is_the_embedding():
    tied = GPT(GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=1, tied=True))
    last = tied[-1:].blocks["2"]
    assert last.linear.weight is tied.blocks["0"].tokens.weight
    assert copy.deepcopy(tied).blocks["2"].linear.weight is not last.linear.weight
    next_token_loss(tied(inputs("gpt")), inputs("gpt")).backward()
    untied = GPT(GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=1))
    untied.load_state_dict(tied.state_dict())
    next_token_loss(untied(inputs("gpt")), inputs("gpt")).backward()
    parts = untied.blocks["0"].tokens.weight.grad + untied.blocks["2"].linear.weight.grad
    assert torch.allclose(last.linear.weight.grad, parts, atol=1e-7)


def test_no_token_sees_a_later_one():
    model, tokens = MODELS["gpt"], inputs("gpt")
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    one, two = model(tokens), model(changed)
    assert torch.equal(one[:, :7], two[:, :7])
    assert not torch.allclose(one[:, 7:], two[:, 7:])


def test_attention_is_its_formula():
    q, k, v = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    scores = q @ k.transpose(-1, -2) / 2
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.allclose(causal(q, k, v), softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v)


def test_attention_may_be_given_fewer_heads():
    attention = copy.deepcopy(MODELS["gpt"].blocks["1"].attention)
    x = torch.randn(2, 12, 24)
    whole = attention(x)
    qkv, parts = attention.qkv, []
    cuts = qkv.weight.chunk(3), qkv.bias.chunk(3), attention.proj.weight.chunk(3, 1)
    for rows, bias, columns in zip(*cuts):
        head = copy.deepcopy(attention)
        head.qkv.weight, head.qkv.bias = torch.nn.Parameter(rows), torch.nn.Parameter(bias)
        head.proj.weight = torch.nn.Parameter(columns)
        parts.append(head(x) - attention.proj.bias)
    assert torch.allclose(sum(parts) + attention.proj.bias, whole, atol=1e-6)


def test_it_learns_the_course():
    model = GPT(GPTShape(width=32, heads=2, layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, optimizer, Batches(8), 40)
    assert abs(losses[0] - 5.545) < 0.05  # ln 256: it knows nothing
    assert losses[-1] < 3.2


def test_on_no_device_it_costs_nothing():
    with torch.device("meta"):
        model = GPT(GPTShape(width=4096, heads=32, layers=32, vocabulary=50_000))
    assert model.blocks["3"].mlp.up.weight.is_meta
    assert sum(p.numel() for p in model.parameters()) == model.shape.numel > 6e9
