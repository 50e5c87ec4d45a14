"""The small GPT and the MLP: chains that can be sliced, the same for each seed, and that learn."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softmax

from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, Chain, next_token_loss, train
from lib.single.models import causal
from tests.every import every

SMALL = GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=3, hidden=40)
GROUPED = replace(SMALL, heads=6, kv_heads=2, positions="rotary")
MODELS = {"gpt": GPT(SMALL), "grouped": GPT(GROUPED), "mlp": MLP(MLPShape((6, 10, 4)))}


def inputs(kind):
    generator = torch.Generator().manual_seed(1)
    if kind != "mlp":
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
    assert every(p is model.get_parameter(n) for s in stages for n, p in s.named_parameters())
    assert isinstance(stages[0], Chain) and len(stages[0]) == cut
    with pytest.raises(TypeError, match=r"model\[2:5\]"):
        model[1]


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(7)
    one = GPT(SMALL, seed=3).state_dict()
    torch.manual_seed(8)
    two, other = GPT(SMALL, seed=3).state_dict(), GPT(SMALL, seed=4).state_dict()
    assert every(torch.equal(one[name], two[name]) for name in one)
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


@pytest.mark.parametrize("kind", ["gpt", "grouped"])
def test_no_token_sees_a_later_one(kind):
    model, tokens = MODELS[kind], inputs(kind)
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


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_attention_is_attention_with_repeated_keys_and_values(kv_heads, positions):
    shape = replace(GROUPED, kv_heads=kv_heads, positions=positions)
    shapes = shape, replace(shape, kv_heads=6)
    grouped, full = (GPT(one).double().blocks["1"].attention for one in shapes)
    full.proj.load_state_dict(grouped.proj.state_dict())
    rows = torch.arange(shape.qkv_width).view(kv_heads, -1, 4)  # [G, n + 2, K]
    n = 6 // kv_heads
    own = torch.stack([rows[g, [h, n, n + 1]] for g in range(kv_heads) for h in range(n)]).flatten()
    with torch.no_grad():
        grouped.qkv.bias.normal_()
        full.qkv.weight.copy_(grouped.qkv.weight[own])
        full.qkv.bias.copy_(grouped.qkv.bias[own])
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    found, expected = grouped(x), full(x)
    assert torch.allclose(found, expected, rtol=1e-10)
    for y in (found, expected):
        y.square().sum().backward()
    summed = torch.zeros_like(grouped.qkv.weight).index_add_(0, own, full.qkv.weight.grad)
    assert torch.allclose(grouped.qkv.weight.grad, summed, rtol=1e-9, atol=1e-12)


def test_dropout_falls_on_the_places_of_gpt2():
    """Each number that it sees is 0 or larger by 1/(1 - p); without training nothing happens."""
    model = GPT(replace(GROUPED, dropout=0.25))
    plain = GPT(GROUPED)
    seen = {}

    def keep(name):
        return lambda _, inputs, y: seen.update({name: (inputs[0], y)})

    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Dropout):
            part.register_forward_hook(keep(name))
    tokens = inputs("gpt")
    assert torch.equal(model.eval()(tokens), plain(tokens))
    assert every(x is y for x, y in seen.values())
    model.train()(tokens)
    layers = [f"blocks.{n}.{part}.dropout" for n in (1, 2, 3) for part in ("attention", "mlp")]
    assert list(seen) == ["blocks.0.dropout", *layers]
    for x, y in seen.values():
        assert torch.allclose(y, torch.where(y == 0, 0, x / 0.75))
        assert 0.1 < (y == 0).double().mean() < 0.4
    torch.manual_seed(1)
    one, two = model(tokens), model(tokens)
    torch.manual_seed(1)
    assert torch.equal(model(tokens), one) and not torch.equal(one, two)


@pytest.mark.parametrize("groups", [6, 2])
def test_dropout_falls_on_attentions_probabilities(groups):
    """With the unit matrix as v the result is the probabilities themselves."""
    torch.manual_seed(2)
    q, k = torch.randn(2, 6, 8, 8), torch.randn(2, groups, 8, 8)
    v = torch.eye(8).expand(2, groups, 8, 8)
    kept, dropped = causal(q, k, v), causal(q, k, v, 0.25)
    assert torch.allclose(dropped, torch.where(dropped == 0, 0, kept / 0.75), atol=1e-6)
    assert 0.15 < (dropped == 0)[kept > 0].double().mean() < 0.35


def test_the_core_is_given_the_probability_in_training_alone():
    attention, given = GPT(replace(SMALL, dropout=0.25)).blocks["1"].attention, []
    attention.core = lambda q, k, v, dropout: given.append(dropout) or q
    x = torch.randn(2, 12, 24)
    attention(x)
    attention.eval()(x)
    assert given == [0.25, 0.0]


@pytest.mark.parametrize(("kind", "ranks"), [("gpt", 3), ("grouped", 2)])
def test_attention_may_be_given_fewer_heads(kind, ranks):
    attention = copy.deepcopy(MODELS[kind].blocks["1"].attention)
    x = torch.randn(2, 12, 24)
    whole = attention(x)
    qkv, parts = attention.qkv, []
    cuts = qkv.weight.chunk(ranks), qkv.bias.chunk(ranks), attention.proj.weight.chunk(ranks, 1)
    for rows, bias, columns in zip(*cuts):
        head = copy.deepcopy(attention)
        head.qkv.weight, head.qkv.bias = torch.nn.Parameter(rows), torch.nn.Parameter(bias)
        head.proj.weight = torch.nn.Parameter(columns)
        parts.append(head(x) - attention.proj.bias)
    assert torch.allclose(sum(parts) + attention.proj.bias, whole, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"kv_heads": 1, "positions": "rotary"}], ids=str)
def test_it_learns_the_course(options):
    model = GPT(GPTShape(width=32, heads=2, layers=2, **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, optimizer, Batches(8), 40)
    assert abs(losses[0] - 5.545) < 0.05  # ln 256: it knows nothing
    assert losses[-1] < 3.2


def test_on_no_device_it_costs_nothing():
    with torch.device("meta"):
        model = GPT(GPTShape(width=4096, heads=32, layers=32, vocabulary=50_000))
    assert model.blocks["3"].mlp.up.weight.is_meta
    assert sum(p.numel() for p in model.parameters()) == model.shape.numel > 6e9


def test_a_gpt_without_layers_is_embedding_and_head():
    """Case 13: no layer is a model too; fewer than none, or no head, is refused in a sentence."""
    model = GPT(GPTShape(layers=0, vocabulary=7, width=4, heads=1))
    names = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert names == [(p.name, p.shape) for p in model.shape.parameters]
    assert model(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 7) and len(model) == 2
    for name, value, least in (("layers", -1, 0), ("heads", 0, 1)):
        words = f"{name} of a GPT must be a whole number of at least {least}, not {value}"
        with pytest.raises(ValueError, match=words):
            GPTShape(**{name: value})
